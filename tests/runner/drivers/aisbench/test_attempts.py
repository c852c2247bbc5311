"""What the plugin writes is what the runner reads, also when the process dies in the middle."""

import fcntl
import json
import os
from pathlib import Path

import pytest
from hitlab_aisbench.answer import Answer
from hitlab_aisbench.attempts import Attempts, Row, masked

from contract.errors import DriverError
from contract.records import to_batch
from contract.redaction import Redactor
from runner.drivers.aisbench.attempts import AttemptReader
from tests.secret_spellings import spellings, traces

ROW = Row(position=3, request_id="request-00000003", group="group-1", dp_rank=1, lane_sequence=2)


def answered() -> Answer:
    answer = Answer()
    answer.begin(200, "text/event-stream", "")
    answer.body(b'data: {"choices": [{"text": "a"}]}\n\n', 2_000_000_000)
    answer.body(b'data: {"choices": [{"text": "b", "finish_reason": "stop"}]}\n\n', 2_500_000_000)
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    answer.body(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n", 2_600_000_000)
    answer.body(b"data: [DONE]\n\n", 3_000_000_000)
    return answer


def test_an_attempt_becomes_a_record(tmp_path: Path) -> None:
    reader = AttemptReader(tmp_path, Redactor("s3cret-key"))
    with Attempts(tmp_path) as attempts:
        attempts.begin(ROW, 1)
        assert list(reader.read()) == []
        attempts.end(ROW, 1, 1_000_000_000, 12.5, answered())
        (record,) = reader.read()
        assert not reader.dead()
    assert list(reader.read()) == []
    assert record.position == 3
    assert (record.group, record.dp_rank, record.lane_sequence) == ("group-1", 1, 2)
    assert (record.ttft_s, record.e2el_s, record.itl_s, record.chunks) == (1.0, 2.0, (0.5,), 2)
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (7, 2, 4)
    assert (record.error_kind, record.finish_reason, record.wall_start) == (None, "stop", 12.5)
    assert to_batch([record]).num_rows == 1
    assert len(reader.spans) == 1
    assert reader.errors == []
    assert list(reader.unfinished("aborted", "stopped", 9)) == []


def test_a_failure_is_one_line_without_the_key(tmp_path: Path) -> None:
    answer = Answer()
    answer.fail("http", "HTTP 401: Bearer s3cret-key\nis wrong " + "x" * 500)
    attempts = Attempts(tmp_path, secret="s3cret-key").__enter__()
    attempts.begin(ROW, 1)
    attempts.end(ROW, 1, 1, 1.0, answer)
    attempts.__exit__(RuntimeError, RuntimeError("the end, s3cret-key"), None)
    reader = AttemptReader(tmp_path, Redactor("s3cret-key"))
    (record,) = reader.read()
    assert record.error_text is not None
    assert record.error_text.startswith("HTTP 401: Bearer *** is wrong xxx")
    assert len(record.error_text) == 300
    assert reader.errors == ["the end, ***"]
    assert b"s3cret-key" not in next(tmp_path.iterdir()).read_bytes()


def test_a_process_that_dies_leaves_unfinished_attempts(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        attempts = Attempts(tmp_path).__enter__()
        attempts.begin(ROW, 1)
        attempts.end(ROW, 1, 1, 1.0, answered())
        attempts.begin(ROW._replace(position=4), 1)
        os._exit(9)  # no last line
    os.waitpid(pid, 0)
    reader = AttemptReader(tmp_path, Redactor("s3cret-key"))
    assert len(list(reader.read())) == 1
    assert reader.dead()
    (record,) = reader.unfinished("reset", "it died", 10)
    assert (record.position, record.error_kind, record.error_text) == (4, "reset", "it died")
    assert (record.ttft_s, record.chunks, record.prompt_tokens) == (None, 0, None)
    assert to_batch([record]).num_rows == 1


def test_a_line_that_is_still_being_written_is_read_later(tmp_path: Path) -> None:
    with Attempts(tmp_path) as attempts:
        attempts.begin(ROW, 1)
        attempts.end(ROW, 1, 1, 1.0, answered())
    whole = next(tmp_path.iterdir()).read_bytes()
    other = tmp_path / "other"
    other.mkdir()
    file = other / "attempts.1.jsonl"
    reader, found = AttemptReader(other), []
    with file.open("wb", buffering=0) as growing:
        fcntl.flock(growing, fcntl.LOCK_EX)
        for byte in whole:
            growing.write(bytes([byte]))
            found += reader.read()
    assert len(found) == 1


@pytest.mark.parametrize(
    "line", [b"{}\n", b"no\n", b"[1]\n", b'{"event": "end"}\n', b'{"event":"end","position":1,"attempt":1}\n']
)
def test_what_the_plugin_does_not_write_is_refused(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "attempts.1.jsonl").write_bytes(line)
    with pytest.raises(DriverError, match="not what HitLab's AISBench plugin writes"):
        list(AttemptReader(tmp_path, Redactor("s3cret-key")).read())


KEY = 'sk-canary-51c2+/"x'
HOSTILE = "\x1b]0;owned\x07\u202eevil\x9b31m"


@pytest.mark.parametrize("name", spellings(KEY))
def test_no_spelling_of_a_key_and_no_escape_of_a_terminal_comes_through(tmp_path: Path, name: str) -> None:
    said = f"no such key: {spellings(KEY)[name]} {HOSTILE}"
    answer = Answer()
    answer.fail("http", said)
    answer.finish_reason = said
    with Attempts(tmp_path, secret=KEY) as attempts:
        attempts.begin(ROW, 1)
        attempts.end(ROW, 1, 1, 1.0, answer)
    (record,) = AttemptReader(tmp_path, Redactor(KEY)).read()
    for text in (record.error_text, record.finish_reason):
        assert text is not None
        assert text.isprintable()
        assert "***" in text
        assert not [trace for trace in traces(KEY) if trace in text.encode()]


def test_what_aisbench_keeps_for_itself_has_no_key() -> None:
    for name in ("plain", "repr", "json", "url", "base64"):
        assert "***" in masked(f"key {spellings(KEY)[name]}", KEY)
        assert KEY not in masked(f"key {spellings(KEY)[name]}", KEY)
    assert masked("the word is a", "a") == "the word is a"
    assert masked("Bearer a", "a") == "Bearer ***"
    assert masked("no key", "") == "no key"
