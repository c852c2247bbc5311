"""What one answer of a completions or chat server says, and when. No I/O: fed with bytes and times.

The definitions are those of HitLab's request records, so that its drivers measure the same. AISBench counts every event
of a stream as a chunk, the closing one with the usage as well; for its own results `event_ns` has them all.
"""

from typing import Any

import orjson

from hitlab_aisbench.sse import Event, SseReader

_ERROR_BODY = 1 << 16


class Answer:
    """One answer, streamed or not (its content type decides).

    `token_ns` are the times of chunks that carry a choice (a chat delta that only tells the role is none), `event_ns`
    those of all events before the end mark.
    Times are nanoseconds of `time.perf_counter_ns`, of the read that brought the bytes.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        self.error_kind: str | None = None
        self.error_text: str | None = None
        self.token_ns: list[int] = []
        self.event_ns: list[int] = []
        self.done = False
        self.done_ns: int | None = None
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.image_tokens: int | None = None
        self.finish_reason: str | None = None
        self._texts: list[str] = []
        self._events: SseReader | None = None
        self._body = bytearray()

    @property
    def text(self) -> str:
        """The generated text."""
        return "".join(self._texts)

    @property
    def success(self) -> bool:
        return self.done and self.error_kind is None

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
        if self._events is not None:
            for event in self._events.feed(data):
                self._event(event, now_ns)
        elif self.status == 200 or len(self._body) < _ERROR_BODY:
            self._body += data

    def end(self, now_ns: int) -> None:
        """The message is complete."""
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

    def _has_usage(self) -> bool:
        return self.prompt_tokens is not None and self.completion_tokens is not None

    def _event(self, event: Event, now_ns: int) -> None:
        if self.done:
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
        if self._choice(chunk.get("choices")):
            self.token_ns.append(now_ns)

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
        self._choice(answer.get("choices"))

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

    def _choice(self, choices: Any) -> bool:
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return False
        choice = choices[0]
        chat = choice.get("delta") if "delta" in choice else choice.get("message")
        reason, text = choice.get("finish_reason"), choice.get("text")
        if isinstance(chat, dict):
            text = chat.get("content")
        if isinstance(reason, str):
            self.finish_reason = reason
        if isinstance(text, str):
            self._texts.append(text)
        if "delta" in choice and reason is None:
            return isinstance(chat, dict) and any(value for name, value in chat.items() if name != "role")
        return True

    def _usage(self, usage: Any) -> None:
        if not isinstance(usage, dict):
            return
        self.prompt_tokens = _whole(usage.get("prompt_tokens"))
        self.completion_tokens = _whole(usage.get("completion_tokens"))
        details = usage.get("prompt_tokens_details")
        details = details if isinstance(details, dict) else {}
        by_kind = details.get("multimodal_tokens")
        self.cached_tokens = _whole(details.get("cached_tokens"))
        self.image_tokens = _whole(by_kind.get("image")) if isinstance(by_kind, dict) else None


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


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _text(body: bytes) -> str:
    # Not shorter: it is cut when its secrets have been masked.
    return body[:_ERROR_BODY].decode("utf-8", "replace")
