import json

import pytest

from runner.drivers.native.answer import Answer, error_message
from tests.shared_data import SHARED_DATA


def stream(*values, done=True, end=True, step=10):
    answer = Answer()
    answer.begin(200, b"text/event-stream; charset=utf-8", b"")
    now = 0
    for value in values:
        now += step
        answer.body(
            b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n", now
        )
    if done:
        answer.body(b"data: [DONE]\n\n", now + step)
    if end:
        answer.end(now + 2 * step)
    return answer


def text(finish=None, **more):
    return {"choices": [{"text": "", "finish_reason": finish}], **more}


def chat(finish=None, **delta):
    return {"choices": [{"delta": delta, "finish_reason": finish}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2,
                                  "prompt_tokens_details": {"cached_tokens": 3}}}  # fmt: skip


def test_a_completion_stream():
    answer = stream(text(), text("length"), USAGE)
    assert (answer.error_kind, answer.error_text) == (None, None)
    # Empty text is a token too (half a character); the usage chunk is not. [DONE] ends it, not the connection.
    assert answer.token_ns == [10, 20]
    assert answer.done_ns == 40
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (5, 2, 3)
    assert answer.finish_reason == "length"


def test_chat_roles_are_no_tokens():
    answer = stream(chat(role="assistant", content=""), chat(content="a"), chat(reasoning_content="b"),
                    chat(tool_calls=[{}]), chat("stop"), USAGE)  # fmt: skip
    assert answer.token_ns == [20, 30, 40, 50]


def test_usage_in_every_chunk_keeps_the_last():
    usage = [{"usage": {"prompt_tokens": 5, "completion_tokens": n}} for n in (1, 2)]
    answer = stream(text(**usage[0]), text("stop", **usage[1]))
    assert (answer.completion_tokens, answer.cached_tokens, answer.error_kind) == (2, None, None)


@pytest.mark.parametrize(
    ("values", "done", "kind", "words"),
    [
        ([text()], True, "no_usage", "include_usage"),
        ([text(), USAGE], False, "stream_error", "early, after 1 chunks"),
        ([], False, "stream_error", "early, after 0"),
        ([text(), b"{broken", USAGE], True, "json", "{broken"),
        ([text(), b"[1]"], True, "json", "not an object"),
        (
            [text(), {"error": {"message": "out of blocks", "code": 500}}],
            True,
            "stream_error",
            "out of blocks",
        ),
        ([text(), {"usage": {"prompt_tokens": "5", "completion_tokens": True}}], True, "no_usage", "usage"),
    ],
)
def test_faulty_streams(values, done, kind, words):
    answer = stream(*values, done=done)
    assert answer.error_kind == kind
    assert words in answer.error_text


def test_a_stream_without_end_mark_but_with_everything_else_is_whole():
    answer = stream(text("stop"), USAGE, done=False)
    assert answer.error_kind is None
    assert answer.done_ns == 40


def whole(body, status=200, kind=b"application/json"):
    answer = Answer()
    answer.begin(status, kind, b"")
    answer.body(body[:3], 1)
    answer.body(body[3:], 2)
    answer.end(3)
    return answer


def test_an_answer_that_does_not_stream():
    body = {"choices": [{"text": "a b", "finish_reason": "stop"}], "usage": USAGE["usage"]}
    answer = whole(json.dumps(body).encode())
    assert answer.error_kind is None
    assert (answer.prompt_tokens, answer.cached_tokens, answer.finish_reason) == (5, 3, "stop")
    assert (answer.token_ns, answer.done_ns) == ([], 3)


@pytest.mark.parametrize(
    ("body", "status", "kind", "words"),
    [
        (b"<html>", 200, "json", "<html>"),
        (b"", 200, "json", "not JSON"),
        (b"[]   ", 200, "json", "not an object"),
        (b'{"choices":[]}', 200, "no_usage", "usage"),
        (b'{"error":{"message":"no"}}', 200, "http", "no"),
        (b'{"error":{"message":"too long"}}', 400, "http", "HTTP 400: too long"),
        (b"data: [DONE]\n\n", 503, "http", "HTTP 503"),
    ],
)
def test_faulty_answers(body, status, kind, words):
    answer = whole(body, status)
    assert answer.error_kind == kind
    assert words in answer.error_text


def test_compressed_answers_are_refused():
    answer = Answer()
    answer.begin(200, b"text/event-stream", b"gzip")
    answer.body(b"\x1f\x8b", 1)
    answer.end(2)
    assert answer.error_kind == "http"
    assert "gzip" in answer.error_text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"message":"a"}}', "a"),
        (b'{"error":"b"}', "b"),
        (b'{"object":"error","message":"c"}', "c"),
        (b'{"detail":"Not Found"}', "Not Found"),
        (b'{"detail":[1]}', '{"detail":[1]}'),
        (b"plain \xff", "plain \ufffd"),
    ],
)
def test_error_messages(body, message):
    assert error_message(body) == message


REAL = SHARED_DATA / "vllm-0.32.0-cpu-dp2" / "stream_sample.txt"


@pytest.mark.skipif(not REAL.exists(), reason="no recorded streams beside the checkout")
@pytest.mark.parametrize("size", [1, 7, 100, 10**6])
def test_a_stream_of_a_real_vllm(size):
    data = REAL.read_bytes()
    answer = Answer()
    answer.begin(200, b"text/event-stream; charset=utf-8", b"")
    for start in range(0, len(data), size):
        answer.body(data[start : start + size], start)
    answer.end(len(data))
    assert (answer.error_kind, answer.finish_reason, len(answer.token_ns)) == (None, "length", 8)
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (320, 8, 0)


@pytest.mark.parametrize(
    ("chunks", "text"),
    [
        ([{"text": "a"}, {"text": "b"}], "ab"),
        (
            [
                {"delta": {"role": "assistant", "content": ""}},
                {"delta": {"reasoning_content": "hmm"}},
                {"delta": {"content": "yes"}},
                {"delta": {}},
            ],
            "yes",
        ),
        ([{"delta": {"content": None}}, {"text": 7}], ""),
    ],
)
def test_text_is_kept_when_it_is_asked_for(chunks, text):
    for keep in (True, False):
        answer = Answer(keep_text=keep)
        answer.begin(200, b"text/event-stream", b"")
        for choice in chunks:
            answer.body(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n", 1)
        assert answer.text == (text if keep else "")


def test_text_of_an_answer_that_does_not_stream():
    answer = Answer(keep_text=True)
    answer.begin(200, b"application/json", b"")
    answer.body(json.dumps({"choices": [{"message": {"content": "whole"}}]}).encode(), 1)
    answer.end(2)
    assert answer.text == "whole"
