"""What one answer of an OpenAI-compatible server says, and when. No I/O: fed with bytes and times."""

from typing import Any, Final

import orjson

from contract.foreign import LARGEST_BODY
from contract.records import ErrorKind
from contract.usage import read_usage
from runner.drivers.native.sse import Event, EventTooLargeError, SseReader

_ERROR_BODY: Final = 1 << 16
_MORE_CHUNKS: Final = 64
"""Token chunks that a stream may have beyond two for each token: none ends that does not end here."""
_ENCODING_FAULT: Final = "the server answers with content-encoding {}, which was not asked for"


class Answer:
    """One answer, streamed or not (its content type decides).

    Times are the nanoseconds of the read that brought the bytes, taken before anything is parsed; several chunks in
    one read have gaps of 0. A chunk counts as a token chunk when it carries a choice, except one of a chat whose delta
    is none, empty, or only announces the role. `most_output_tokens` is how many the request allowed; None: not known.
    """

    __slots__ = (
        "_body",
        "_events",
        "_most_output_tokens",
        "_text",
        "cached_tokens",
        "completion_tokens",
        "cut",
        "done",
        "done_ns",
        "error_kind",
        "error_text",
        "finish_reason",
        "image_tokens",
        "prompt_tokens",
        "status",
        "token_ns",
    )

    def __init__(self, *, keep_text: bool = False, most_output_tokens: int | None = None) -> None:
        self.status: int | None = None
        self.error_kind: ErrorKind | None = None
        self.error_text: str | None = None
        self.token_ns: list[int] = []
        self.done = False
        """The answer is complete, whatever still happens to the connection."""
        self.cut = False
        """It has failed, and what follows is not read: the connection has to be closed."""
        self.done_ns: int | None = None
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.image_tokens: int | None = None
        self.finish_reason: str | None = None
        self._events: SseReader | None = None
        self._body = bytearray()
        self._most_output_tokens = most_output_tokens
        self._text: list[str] | None = [] if keep_text else None

    @property
    def text(self) -> str:
        """What was answered, without reasoning that the server tells apart; "" unless it was asked to be kept."""
        return "".join(self._text or ())

    @property
    def streams(self) -> bool:
        """Whether it comes token by token; not known before its headers are there."""
        return self._events is not None

    def begin(self, status: int, content_type: bytes, content_encoding: bytes) -> None:
        """Headers are there."""
        self.status = status
        if content_encoding not in (b"", b"identity"):
            self.fail("http", _ENCODING_FAULT.format(content_encoding.decode("latin-1")))
        elif status == 200 and content_type.partition(b";")[0].strip().lower() == b"text/event-stream":
            self._events = SseReader()

    def body(self, data: bytes, now_ns: int) -> None:
        """The next piece of the decoded body."""
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
        elif len(self._body) > LARGEST_BODY:
            self._cut("http", f"an answer of more than {LARGEST_BODY >> 20} MiB")

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

    def fail(self, kind: ErrorKind, text: str) -> None:
        """Note the first failure; later ones are its consequences."""
        if self.error_kind is None:
            self.error_kind, self.error_text = kind, text

    def _cut(self, kind: ErrorKind, text: str) -> None:
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
        try:
            chunk = orjson.loads(event.data)
        except orjson.JSONDecodeError as error:
            self.fail("json", f"a chunk is not JSON ({error}): {_text(event.data)}")
            return
        if not isinstance(chunk, dict):
            self.fail("json", f"a chunk is not an object: {_text(event.data)}")
            return
        if event.name == b"error" or chunk.get("error") is not None:
            self.fail("stream_error", error_message(event.data))
            return
        self._usage(chunk.get("usage"))
        choices = chunk.get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            choice = choices[0]
            self._finish(choice)
            if _brings_token(choice):
                self.token_ns.append(now_ns)
                self._require_an_end()
            if self._text is not None:
                self._text.append(_content(choice, "delta"))

    def _whole_body(self) -> None:
        if self.status != 200:
            self.fail("http", f"HTTP {self.status}: {error_message(bytes(self._body))}")
            return
        try:
            answer = orjson.loads(self._body)
        except orjson.JSONDecodeError as error:
            self.fail("json", f"the answer is not JSON ({error}): {_text(bytes(self._body))}")
            return
        if not isinstance(answer, dict):
            self.fail("json", f"the answer is not an object: {_text(bytes(self._body))}")
            return
        if answer.get("error") is not None:
            self.fail("http", f"HTTP 200 with an error: {error_message(bytes(self._body))}")
            return
        self._usage(answer.get("usage"))
        choices = answer.get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            self._finish(choices[0])
            if self._text is not None:
                self._text.append(_content(choices[0], "message"))

    def _finish(self, choice: dict[str, Any]) -> None:
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            self.finish_reason = reason

    def _require_an_end(self) -> None:
        """An engine that never stops would never be late."""
        most, chunks = self._most_output_tokens, len(self.token_ns)
        if most is not None and chunks > 2 * most + _MORE_CHUNKS:
            self._cut("bad_usage", f"the stream does not end: {chunks} chunks, {most} tokens were allowed")

    def _usage(self, usage: Any) -> None:
        if not isinstance(usage, dict):
            return
        told = read_usage(usage, self._most_output_tokens)
        self.prompt_tokens, self.completion_tokens = told.prompt_tokens, told.completion_tokens
        self.cached_tokens, self.image_tokens = told.cached_tokens, told.image_tokens
        if told.impossible is not None:
            self.fail("bad_usage", told.impossible)


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


def _brings_token(choice: dict[str, Any]) -> bool:
    """Whether a chunk brings a token or the end: one of a chat may bring a role, or nothing."""
    if "delta" not in choice or choice.get("finish_reason") is not None:
        return True
    delta = choice["delta"]
    return isinstance(delta, dict) and any(value for key, value in delta.items() if key != "role")


def _content(choice: dict[str, Any], chat: str) -> str:
    """The text of a choice: of a completion, or of the chat object of that name."""
    message = choice.get(chat)
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    return text if isinstance(text, str) else ""


def _text(body: bytes) -> str:
    # Not shorter: it is cut when its secrets have been masked.
    return body[:_ERROR_BODY].decode("utf-8", "replace")
