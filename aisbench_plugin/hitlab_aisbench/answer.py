"""What one answer of a completions or chat server says, and when. No I/O: fed with bytes and times.

The definitions are those of HitLab's request records, so that its drivers measure the same. AISBench counts every event
of a stream as a chunk, the closing one with the usage as well; for its own results `event_ns` has them all.
"""

from typing import Any

import orjson

from hitlab_aisbench.sse import Event, EventTooLargeError, SseReader
from hitlab_aisbench.usage import read_usage

_ERROR_BODY = 1 << 16
_LARGEST_BODY = 64 * 2**20
_MORE_CHUNKS = 64
"""Token chunks that a stream may have beyond two for each token: none ends that does not end here."""


class Answer:
    """One answer, streamed or not (its content type decides).

    `token_ns` are the times of chunks that carry a choice (one of a chat whose delta is none, empty, or only tells the
    role is none), `event_ns` those of all events before the end mark.
    `most_output_tokens` is how many the request allowed; None: not known.
    Times are nanoseconds of `time.perf_counter_ns`, of the read that brought the bytes.
    """

    def __init__(self, most_output_tokens: int | None = None) -> None:
        self.status: int | None = None
        self.error_kind: str | None = None
        self.error_text: str | None = None
        self.token_ns: list[int] = []
        self.event_ns: list[int] = []
        self.done = False
        self.cut = False
        """It has failed, and what follows is not read: the connection has to be closed."""
        self.done_ns: int | None = None
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.image_tokens: int | None = None
        self.finish_reason: str | None = None
        self._texts: list[str] = []
        self._events: SseReader | None = None
        self._body = bytearray()
        self._most_output_tokens = most_output_tokens

    @property
    def text(self) -> str:
        """The generated text."""
        return "".join(self._texts)

    @property
    def success(self) -> bool:
        return self.done and self.error_kind is None

    @property
    def streams(self) -> bool:
        """Whether it comes token by token; not known before its headers are there."""
        return self._events is not None

    def begin(self, status: int, content_type: str, content_encoding: str) -> None:
        """Headers are there."""
        self.status = status
        if content_encoding not in ("", "identity"):
            self.fail(
                "http",
                f"the server answers with content-encoding {content_encoding}, which was not asked for",
            )
        elif status == 200 and content_type.partition(";")[0].strip().lower() == "text/event-stream":
            self._events = SseReader()

    def body(self, data: bytes, now_ns: int) -> None:
        """The next piece of the body."""
        if self.cut or self.done:
            return
        if self._events is not None:
            try:
                events = self._events.feed(data)
            except EventTooLargeError as error:
                self._cut("stream_error", str(error))
                return
            for event in events:
                self._event(event, now_ns)
            return
        self._body += data
        if self.status != 200 and len(self._body) > _ERROR_BODY:
            self._cut("http", f"HTTP {self.status}: {error_message(bytes(self._body[:_ERROR_BODY]))}")
        elif len(self._body) > _LARGEST_BODY:
            self._cut("http", f"an answer of more than {_LARGEST_BODY >> 20} MiB")

    def end(self, now_ns: int) -> None:
        """The message is complete."""
        if self.cut:
            return
        if self._events is not None:
            for event in self._events.finish():
                self._event(event, now_ns)
            if not self.done and self.error_kind is None and not (self.finish_reason and self._has_usage()):
                self.fail("stream_error", f"the stream ended early, after {len(self.token_ns)} chunks")
        elif self.error_kind is None:
            self._whole_body()
        if self.done_ns is None:
            self.done_ns = now_ns
        self.done = True
        if self.error_kind is None and not self._has_usage():
            self.fail("no_usage", "no usage in the answer; streams need stream_options.include_usage")

    def fail(self, kind: str, text: str) -> None:
        """Note the first failure; later ones are its consequences."""
        if self.error_kind is None:
            self.error_kind, self.error_text = kind, text

    def _cut(self, kind: str, text: str) -> None:
        self.fail(kind, text)
        self.cut = True
        self._body.clear()

    def _has_usage(self) -> bool:
        return self.prompt_tokens is not None and self.completion_tokens is not None

    def _event(self, event: Event, now_ns: int) -> None:
        if self.done or self.cut:
            return
        if event.data == b"[DONE]":
            self.done, self.done_ns = True, now_ns
            if not self._has_usage():
                self.fail("no_usage", "no usage in the stream; it needs stream_options.include_usage")
            return
        self.event_ns.append(now_ns)
        chunk = self._object(event.data, "a chunk")
        if chunk is None:
            return
        if event.name == b"error" or chunk.get("error") is not None:
            self.fail("stream_error", error_message(event.data))
            return
        self._usage(chunk.get("usage"))
        choice = _first(chunk.get("choices"))
        if choice is None:
            return
        self._choice(choice, "delta")
        if _brings_token(choice):
            self.token_ns.append(now_ns)
            self._require_an_end()

    def _require_an_end(self) -> None:
        """An engine that never stops would never be late."""
        most, chunks = self._most_output_tokens, len(self.token_ns)
        if most is not None and chunks > 2 * most + _MORE_CHUNKS:
            self._cut("bad_usage", f"the stream does not end: {chunks} chunks, {most} tokens were allowed")

    def _whole_body(self) -> None:
        body = bytes(self._body)
        if self.status != 200:
            self.fail("http", f"HTTP {self.status}: {error_message(body)}")
            return
        answer = self._object(body, "the answer")
        if answer is None:
            return
        if answer.get("error") is not None:
            self.fail("http", f"HTTP 200 with an error: {error_message(body)}")
            return
        self._usage(answer.get("usage"))
        choice = _first(answer.get("choices"))
        if choice is not None:
            self._choice(choice, "message")

    def _object(self, data: bytes, what: str) -> dict[str, Any] | None:
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            self.fail("json", f"{what} is not JSON ({error}): {_text(data)}")
            return None
        if not isinstance(value, dict):
            self.fail("json", f"{what} is not an object: {_text(data)}")
            return None
        return value

    def _choice(self, choice: dict[str, Any], chat: str) -> None:
        reason, message = choice.get("finish_reason"), choice.get(chat)
        text = message.get("content") if isinstance(message, dict) else choice.get("text")
        if isinstance(reason, str):
            self.finish_reason = reason
        if isinstance(text, str):
            self._texts.append(text)

    def _usage(self, usage: Any) -> None:
        if not isinstance(usage, dict):
            return
        told = read_usage(usage, self._most_output_tokens)
        self.prompt_tokens, self.completion_tokens = told.prompt_tokens, told.completion_tokens
        self.cached_tokens, self.image_tokens = told.cached_tokens, told.image_tokens
        if told.impossible is not None:
            self.fail("bad_usage", told.impossible)


def _first(choices: Any) -> dict[str, Any] | None:
    usable = isinstance(choices, list) and choices and isinstance(choices[0], dict)
    return choices[0] if usable else None


def _brings_token(choice: dict[str, Any]) -> bool:
    """Whether a chunk brings a token or the end: one of a chat may bring a role, or nothing."""
    if "delta" not in choice or choice.get("finish_reason") is not None:
        return True
    delta = choice["delta"]
    return isinstance(delta, dict) and any(value for key, value in delta.items() if key != "role")


def error_message(body: bytes) -> str:
    """The message inside an error body (OpenAI's, vLLM's older and FastAPI's shape), or its text."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return _text(body)
    if isinstance(value, dict):
        inner = value.get("error", value)
        if isinstance(inner, dict):
            inner = inner.get("message") or inner.get("detail") or inner
        if isinstance(inner, str):
            return inner
    return _text(body)


def _text(body: bytes) -> str:
    # Not shorter: it is cut when its secrets have been masked.
    return body[:_ERROR_BODY].decode("utf-8", "replace")
