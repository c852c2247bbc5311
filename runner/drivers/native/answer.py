"""What one answer of an OpenAI-compatible server says, and when. No I/O: fed with bytes and times."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from contract.records import ErrorKind
from runner.drivers.native.sse import Event, SseReader

_ERROR_BODY: Final = 1 << 16
_ENCODING_FAULT: Final = "the server answers with content-encoding {}, which was not asked for"


class Answer:
    """One answer, streamed or not (its content type decides).

    Times are the nanoseconds of the read that brought the bytes, taken before anything is parsed; several chunks in
    one read have gaps of 0. A chunk counts as a token chunk when it carries a choice, except a chat delta that
    only announces the role.
    """

    __slots__ = (
        "_body",
        "_events",
        "_text",
        "cached_tokens",
        "completion_tokens",
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

    def __init__(self, *, keep_text: bool = False) -> None:
        self.status: int | None = None
        self.error_kind: ErrorKind | None = None
        self.error_text: str | None = None
        self.token_ns: list[int] = []
        self.done = False
        """The answer is complete, whatever still happens to the connection."""
        self.done_ns: int | None = None
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.image_tokens: int | None = None
        self.finish_reason: str | None = None
        self._events: SseReader | None = None
        self._body = bytearray()
        self._text: list[str] | None = [] if keep_text else None

    @property
    def text(self) -> str:
        """What was answered, without reasoning that the server tells apart; "" unless it was asked to be kept."""
        return "".join(self._text or ())

    def begin(self, status: int, content_type: bytes, content_encoding: bytes) -> None:
        """Headers are there."""
        self.status = status
        if content_encoding not in (b"", b"identity"):
            self.fail("http", _ENCODING_FAULT.format(content_encoding.decode("latin-1")))
        elif status == 200 and content_type.partition(b";")[0].strip().lower() == b"text/event-stream":
            self._events = SseReader()

    def body(self, data: bytes, now_ns: int) -> None:
        """The next piece of the decoded body."""
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

    def fail(self, kind: ErrorKind, text: str) -> None:
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
            if not _only_role(choice):
                self.token_ns.append(now_ns)
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

    def _usage(self, usage: Any) -> None:
        if not isinstance(usage, dict):
            return
        self.prompt_tokens = _whole(usage.get("prompt_tokens"))
        self.completion_tokens = _whole(usage.get("completion_tokens"))
        details = usage.get("prompt_tokens_details")
        details = details if isinstance(details, dict) else {}
        self.cached_tokens = _whole(details.get("cached_tokens"))
        self.image_tokens = image_tokens(details)


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


def image_tokens(details: Mapping[str, Any]) -> int | None:
    """Of `usage.prompt_tokens_details`: the prompt tokens that stand for images, where the server tells."""
    by_kind = details.get("multimodal_tokens")
    return _whole(by_kind.get("image")) if isinstance(by_kind, dict) else None


def _only_role(choice: dict[str, Any]) -> bool:
    """A chat chunk that brings no token: a role, or nothing, and no end."""
    delta = choice.get("delta")
    if not isinstance(delta, dict) or choice.get("finish_reason") is not None:
        return False
    return not any(value for key, value in delta.items() if key != "role")


def _content(choice: dict[str, Any], chat: str) -> str:
    """The text of a choice: of a completion, or of the chat object of that name."""
    message = choice.get(chat)
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    return text if isinstance(text, str) else ""


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _text(body: bytes) -> str:
    # Not shorter: it is cut when its secrets have been masked.
    return body[:_ERROR_BODY].decode("utf-8", "replace")
