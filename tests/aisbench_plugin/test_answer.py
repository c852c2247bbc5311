"""The plugin cannot import the native driver; it has to read every answer the same way."""

import json
from typing import Any

import pytest
from hitlab_aisbench.answer import Answer
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.drivers.native.answer import Answer as NativeAnswer

FIELDS = (
    "status",
    "error_kind",
    "error_text",
    "token_ns",
    "done",
    "done_ns",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "finish_reason",
    "image_tokens",
    "text",
    "streams",
    "cut",
)
MOST_TOKENS = 3
USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
EVENTS = (
    b'data: {"choices": [{"text": "a", "finish_reason": null}]}\n\n',
    b': a comment\n\nid: 7\nevent: message\ndata: {"choices": [{"text": "", "finish_reason": "length"}]}\r\n\r\n',
    b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\n",
    b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 0}}\n\n',
    b'data: {"error": {"message": "out of memory"}}\n\n',
    b'event: error\ndata: {"detail": "no"}\n\n',
    b'data: {"choices":\ndata: [{"text": "b"}]}\r\r',
    b"data: [1]\n\n",
    b"data: {oops\n\n",
    b"data: [DONE]\n\n",
    b"\xef\xbb\xbfdata: [DONE]",
)
BODIES = (
    json.dumps({"choices": [{"text": "ab", "finish_reason": "stop"}], "usage": USAGE}).encode(),
    b'{"choices": []}',
    b'{"error": "no such model"}',
    b'{"error": {"message": "too long", "code": 400}}',
    b'"text"',
    b"<html>",
    b"",
)


def both(
    status: int, content_type: str, encoding: str, pieces: list[bytes], end: bool
) -> tuple[Answer, NativeAnswer]:
    ours = Answer(most_output_tokens=MOST_TOKENS)
    native = NativeAnswer(keep_text=True, most_output_tokens=MOST_TOKENS)
    ours.begin(status, content_type, encoding)
    native.begin(status, content_type.encode(), encoding.encode())
    for number, piece in enumerate(pieces):
        ours.body(piece, number)
        native.body(piece, number)
    if end:
        ours.end(len(pieces))
        native.end(len(pieces))
    return ours, native


def assert_equal(ours: Answer, native: NativeAnswer) -> None:
    assert {name: getattr(ours, name) for name in FIELDS} == {name: getattr(native, name) for name in FIELDS}


@st.composite
def cut(draw: Any, message: st.SearchStrategy[bytes]) -> list[bytes]:
    data = draw(message)
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=5)))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


@given(cut(st.lists(st.sampled_from(EVENTS), max_size=6).map(b"".join)), st.booleans())
def test_streams_are_read_as_the_native_driver_reads_them(pieces: list[bytes], end: bool) -> None:
    assert_equal(*both(200, "text/event-stream; charset=utf-8", "", pieces, end))


NUMBERS = st.sampled_from([0, 1, 3, 4, -1, 0.5, 2**31 - 1, 2**31, 2**63, 2**64, 10**300, True])
VALUES = st.none() | NUMBERS | st.sampled_from(["", "a", "stop", [], {}, [1], {"a": 1}])


def objects(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """An object with some of these fields, or something else in its place."""
    return VALUES | st.fixed_dictionaries({}, optional=fields)


CHAT = objects(role=VALUES, content=VALUES, reasoning=VALUES)
CHOICE = objects(index=VALUES, text=VALUES, delta=CHAT, message=CHAT, finish_reason=VALUES)
DETAILS = objects(cached_tokens=VALUES, multimodal_tokens=objects(image=VALUES))
USAGES = objects(prompt_tokens=VALUES, completion_tokens=VALUES, prompt_tokens_details=DETAILS)
CHUNK = objects(
    choices=VALUES | st.lists(CHOICE, max_size=2), usage=USAGES, error=VALUES | objects(message=VALUES)
)


def as_event(chunk: Any) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


@settings(max_examples=200, deadline=None)
@given(
    cut(
        st.lists(CHUNK.map(as_event) | st.sampled_from(EVENTS) | st.just(EVENTS[0] * 80), max_size=5).map(
            b"".join
        )
    ),
    st.booleans(),
)
def test_whatever_a_stream_holds_both_read_the_same(pieces: list[bytes], end: bool) -> None:
    assert_equal(*both(200, "text/event-stream", "", pieces, end))


@settings(max_examples=200, deadline=None)
@given(cut(CHUNK.map(lambda chunk: json.dumps(chunk).encode())), st.sampled_from([200, 200, 400]))
def test_whatever_a_body_holds_both_read_the_same(pieces: list[bytes], status: int) -> None:
    assert_equal(*both(status, "application/json", "", pieces, end=True))


@pytest.mark.parametrize("delta", [None, [], "a", 7, {}, {"role": "assistant"}, {"content": ""}])
def test_a_delta_that_brings_nothing_is_no_token(delta: Any) -> None:
    nothing = as_event({"choices": [{"delta": delta}]})
    ours, native = both(
        200, "text/event-stream", "", [nothing, as_event({"choices": [{"text": "a"}]})], end=False
    )
    assert ours.token_ns == native.token_ns == [1]


@pytest.mark.parametrize(
    ("status", "content_type", "piece"),
    [
        (200, "text/event-stream", b"d" * 2**20),
        (200, "application/json", b" " * 2**20),
        (500, "", b"no" * 2**15),
    ],
)
def test_both_cut_what_does_not_end(status: int, content_type: str, piece: bytes) -> None:
    ours, native = both(status, content_type, "", [piece] * 70, end=False)
    assert ours.cut
    assert_equal(ours, native)


def test_a_line_in_many_pieces_takes_time_in_proportion() -> None:
    # A quadratic reader needs minutes for this.
    half = [b"d" * 100] * 160_000
    assert_equal(*both(200, "text/event-stream", "", [*half, b"\n\n", EVENTS[0], EVENTS[9]], end=True))


@given(
    cut(st.sampled_from(BODIES)),
    st.sampled_from([200, 400, 404, 429, 500]),
    st.sampled_from(["application/json", "", "text/event-stream"]),
    st.sampled_from(["", "identity", "gzip"]),
)
def test_whole_bodies_as_well(pieces: list[bytes], status: int, content_type: str, encoding: str) -> None:
    assert_equal(*both(status, content_type, encoding, pieces, end=True))


def test_for_aisbench_the_usage_is_an_event_and_the_text_is_kept() -> None:
    answer, _ = both(200, "text/event-stream", "", [EVENTS[0], EVENTS[1], EVENTS[2], EVENTS[9]], end=True)
    assert answer.success
    assert answer.token_ns == [0, 1]
    assert answer.event_ns == [0, 1, 2]
    assert answer.text == "a"
