import asyncio
import json
import random
import shutil
import signal
import ssl
import subprocess
import threading
import time
from collections import defaultdict

import pytest

from contract.errors import DriverError
from runner.drivers.native import OutgoingRequest, run_load, send_load


def outgoing(count, lane=lambda _: None, rank=lambda _: None, lazy=False):
    counts = defaultdict(int)
    for i in range(count):
        sequence = counts[lane(i)] if lane(i) is not None else None
        counts[lane(i)] += 1
        body = json.dumps({"n": i, "lane": lane(i)}).encode()
        yield OutgoingRequest(
            i, f"r{i}", f"g{i % 2}", (lambda b=body: b) if lazy else body, lane(i), rank(i), sequence
        )


@pytest.fixture
def load(run, server_kit):
    """Run requests against a scripted server: (records, summary, server)."""

    async def set_once(stop, server, condition):
        while not condition(server):  # noqa: ASYNC110 - the server has no event for every condition
            await asyncio.sleep(0.02)
        stop.set()

    def go(requests, script=None, *, concurrency=4, stop_once=None, url=None, record=None, **options):
        async def main():
            server = server_kit.ScriptedServer()
            if script is not None:
                server.script = script if callable(script) else lambda n: script.get(n, server_kit.GOOD)
            records, stop = [], asyncio.Event()
            async with server:
                watch = asyncio.create_task(set_once(stop, server, stop_once or (lambda _: False)))
                summary = await send_load(
                    requests,
                    url=url or server.url,
                    concurrency=concurrency,
                    on_record=record or records.append,
                    stop=stop,
                    **options,
                )
                watch.cancel()
            return records, summary, server

        return run(main())

    return go


# The good case


def test_records_of_good_answers(load):
    before, wall = time.perf_counter_ns(), time.time()
    records, summary, server = load(outgoing(50, rank=lambda i: i % 2), api_key="key", headers={"X-Run": "7"})
    after = time.perf_counter_ns()
    assert sorted(r.position for r in records) == list(range(50))
    for r in records:
        assert (r.error_kind, r.error_text, r.http_status, r.attempt) == (None, None, 200, 1)
        assert (r.prompt_tokens, r.completion_tokens, r.cached_tokens, r.finish_reason) == (
            10,
            3,
            4,
            "length",
        )
        assert (r.request_id, r.group, r.dp_rank) == (f"r{r.position}", f"g{r.position % 2}", r.position % 2)
        assert r.chunks == 3
        assert len(r.itl_s) == 2
        assert before < r.started_ns < after
        assert 0 < r.ttft_s <= r.e2el_s < (after - before) / 1e9
        assert wall <= r.wall_start <= time.time()
        decoding = (r.e2el_s - r.ttft_s) / 2
        assert r.tpot_s == (pytest.approx(decoding) if any(r.itl_s) else None)
    assert (summary.started, summary.finished, summary.failed, summary.attempts) == (50, 50, 0, 50)
    assert (summary.max_in_flight, summary.waited_for_lane, summary.stopped) == (4, 0, False)
    assert server.connections == 4
    assert server.max_in_flight <= 4
    for got in server.received:
        assert got.headers["authorization"] == "Bearer key"
        assert got.headers["x-run"] == "7"
        assert got.headers["x-data-parallel-rank"] == str(got.body["n"] % 2)
        assert got.headers["host"] == f"127.0.0.1:{server.port}"


def test_no_rank_no_header_and_no_key_no_authorization(load):
    _, _, server = load(outgoing(1))
    assert "x-data-parallel-rank" not in server.received[0].headers
    assert "authorization" not in server.received[0].headers


def test_times_are_those_of_the_server(load, server_kit):
    k = server_kit
    wrote = []
    end = k.event(k.usage(completion=4)) + k.event(b"[DONE]")
    parts = (
        k.head() + k.chunk(k.event(k.choice())),
        k.chunk(k.event(k.choice())),
        k.chunk(end),
        k.chunk(b""),
    )

    async def slow(got, writer):
        wrote.append(time.perf_counter())
        for pause, part in zip((0.05, 0.1, 0.15, 0.2), parts, strict=True):
            await asyncio.sleep(pause)
            wrote.append(time.perf_counter())
            writer.write(part)

    [record], summary, _ = load(outgoing(1), {1: slow})
    arrived, first, second, done, last = wrote
    assert record.ttft_s == pytest.approx(first - arrived, abs=0.25)
    assert record.itl_s == pytest.approx([second - first], abs=0.25)
    # [DONE] ends it, not the connection's last chunk.
    assert record.e2el_s == pytest.approx(done - arrived, abs=0.25)
    assert record.tpot_s == pytest.approx((record.e2el_s - record.ttft_s) / 3)
    assert summary.wall_seconds == pytest.approx(last - arrived, abs=0.25)
    assert summary.mean_in_flight == pytest.approx(1, abs=0.1)


def test_order_of_start_and_concurrency(load, server_kit):
    rng = random.Random(1)
    delays = [rng.uniform(0, 0.01) for _ in range(61)]
    records, summary, server = load(outgoing(60), lambda n: server_kit.after(delays[n]), concurrency=7)
    starts = [r.position for r in sorted(records, key=lambda r: r.started_ns)]
    # Connecting takes its own time, so only the first seven may overtake one another.
    assert starts[7:] == list(range(7, 60))
    assert server.max_in_flight == summary.max_in_flight == 7
    assert 5 < summary.mean_in_flight <= 7


def test_split_at_every_byte(load, server_kit):
    async def drip(got, writer):
        for i in range(len(server_kit.GOOD)):
            writer.write(server_kit.GOOD[i : i + 1])
            await asyncio.sleep(0)

    records, *_ = load(outgoing(3), lambda _: drip, concurrency=1)
    assert [(r.error_kind, r.chunks, r.prompt_tokens) for r in records] == [(None, 3, 10)] * 3


def test_other_ways_to_frame_an_answer(load, server_kit):
    k = server_kit

    async def until_the_end(got, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + k.STREAM)
        return False

    script = {
        1: k.head(length=len(k.STREAM)) + k.STREAM,
        2: b"HTTP/1.1 100 Continue\r\n\r\n" + k.GOOD,
        3: until_the_end,
        4: k.head(extra="Connection: close\r\n") + k.chunk(k.STREAM.replace(b"\n", b"\r\n")) + k.chunk(b""),
        5: k.head(kind="TEXT/Event-Stream; charset=utf-8") + k.chunk(b": ping\n\n" + k.STREAM) + k.chunk(b""),
    }
    records, summary, server = load(outgoing(6), script, concurrency=1)
    assert [(r.error_kind, r.chunks) for r in records] == [(None, 3)] * 6
    assert server.connections == 3
    assert summary.reopened_connections == 0


def test_answers_that_do_not_stream(load, server_kit):
    body = json.dumps(server_kit.choice("a b", "stop") | {"usage": server_kit.usage()["usage"]}).encode()
    [record], *_ = load(outgoing(1), {1: server_kit.plain("200 OK", body)})
    assert (record.error_kind, record.ttft_s, record.itl_s, record.chunks) == (None, None, (), 0)
    assert (record.prompt_tokens, record.cached_tokens, record.finish_reason) == (10, 4, "stop")
    assert record.e2el_s > 0
    assert record.tpot_s is None


def test_a_large_body_and_a_large_answer(load, server_kit):
    k = server_kit
    parts = b"".join(k.event(k.choice("x" * 2000)) for _ in range(500))
    answer = k.head() + k.chunk(parts + k.event(k.usage()) + k.event(b"[DONE]")) + k.chunk(b"")
    request = OutgoingRequest(0, "r", "g", json.dumps({"prompt": "y" * 3_000_000}).encode())
    [record], _, server = load([request], {1: answer})
    assert (record.error_kind, record.chunks) == (None, 500)
    assert len(server.received[0].body["prompt"]) == 3_000_000


# Faults


def faults(k):
    start = k.head() + k.chunk(k.event(k.choice()))
    return {
        "reset before the answer": (k.hang_up(), "reset", None),
        "reset in the head": (k.hang_up(b"HTTP/1.1 200 OK\r\n"), "reset", None),
        "reset in the stream": (k.hang_up(start, abort=True), "reset", 200),
        "end of file in the stream": (k.hang_up(start), "reset", 200),
        "shorter than its length": (k.hang_up(k.head(length=999) + k.STREAM[:50]), "reset", 200),
        "500": (k.plain("500 Oops", b'{"error":{"message":"engine is dead"}}'), "http", 500),
        "400": (k.plain("400 Bad Request", b'{"error":{"message":"too long"}}'), "http", 400),
        "404 page": (k.plain("404 Not Found", b"<h1>no</h1>", "text/html"), "http", 404),
        "no HTTP": (k.hang_up(b"SSH-2.0-OpenSSH\r\n"), "http", None),
        "bad chunk size": (k.hang_up(k.head() + b"zz\r\n"), "http", 200),
        "a chunk is no JSON": (k.head() + k.chunk(k.event(b"{oops")) + k.chunk(b""), "json", 200),
        "no JSON": (k.plain("200 OK", b"hello"), "json", 200),
        "no usage": (k.head() + k.chunk(k.event(k.choice()) + k.event(b"[DONE]")) + k.chunk(b""), "no_usage", 200),
        "error in the stream": (
            start + k.chunk(k.event({"error": {"message": "boom"}}) + k.event(b"[DONE]")) + k.chunk(b""),
            "stream_error",
            200,
        ),
        "the stream ends early": (start + k.chunk(b""), "stream_error", 200),
        "silence": (k.stall(), "timeout", None),
        "silence in the stream": (k.stall(start), "timeout", 200),
    }  # fmt: skip


@pytest.mark.parametrize("name", [
    "reset before the answer", "reset in the head", "reset in the stream", "end of file in the stream",
    "shorter than its length", "500", "400", "404 page", "no HTTP", "bad chunk size", "a chunk is no JSON", "no JSON",
    "no usage", "error in the stream", "the stream ends early", "silence", "silence in the stream",
])  # fmt: skip
def test_a_fault_is_a_record_and_the_rest_goes_on(load, server_kit, name):
    behaviour, kind, status = faults(server_kit)[name]
    records, summary, server = load(outgoing(5), {1: behaviour}, concurrency=1, timeout_seconds=0.3)
    first, *rest = records
    assert (first.position, first.error_kind, first.http_status) == (0, kind, status)
    assert first.error_text
    assert "\n" not in first.error_text
    assert [(r.position, r.error_kind) for r in rest] == [(i, None) for i in range(1, 5)]
    assert (summary.started, summary.finished, summary.failed, summary.aborted) == (5, 4, 1, 0)
    assert summary.reopened_connections == 0
    assert len(server.received) == 5
    if "in the stream" in name:
        assert first.ttft_s is not None
        assert first.chunks == 1


def test_what_went_before_a_fault_is_kept(load, server_kit):
    k = server_kit
    cut = k.head() + k.chunk(k.event(k.choice()) + k.event(k.choice())) + k.chunk(k.event(k.usage()))
    [record], *_ = load(outgoing(1), {1: k.hang_up(cut)})
    assert (record.error_kind, record.chunks, record.prompt_tokens, record.e2el_s) == ("reset", 2, 10, None)


def test_nothing_after_the_end_mark_matters(load, server_kit):
    k = server_kit
    records, *_ = load(outgoing(2), {1: k.hang_up(k.head() + k.chunk(k.STREAM), abort=True)}, concurrency=1)
    assert [r.error_kind for r in records] == [None, None]
    [record], *_ = load(outgoing(1), {1: k.stall(k.head() + k.chunk(k.STREAM))}, timeout_seconds=0.2)
    assert record.error_kind is None
    assert record.e2el_s < 0.15


def test_a_slow_but_steady_stream_is_no_timeout(load, server_kit):
    k = server_kit
    token = k.chunk(k.event(k.choice()))
    end = k.chunk(k.event(k.choice("b", "length")) + k.event(k.usage(completion=4)) + k.event(b"[DONE]"))

    async def steady(got, writer):
        whole, halves = [token] * 4, [token[:9], token[9:] + token] * 2
        for part in (k.head() + token, *whole, *halves, end + k.chunk(b"")):
            writer.write(part)
            await asyncio.sleep(0.3)

    # Any gap may be six times as long on a busy machine before it is a timeout.
    [record], *_ = load(outgoing(1), {1: steady}, timeout_seconds=2.0)
    assert (record.error_kind, record.chunks) == (None, 10)
    assert record.e2el_s > 2.1


def without_end(first, piece):
    """Something now and then, and never a token."""

    async def behave(got, writer):
        writer.write(first)
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)

    return behave


NO_TOKENS = {
    "comments": lambda k: (
        k.head(),
        k.chunk(b": keep-alive\n\n"),
        "no token came for 1 s after the request",
    ),
    "pings": lambda k: (k.head(), k.chunk(k.event({"choices": []})), "no token came for 1 s"),
    "roles": lambda k: (
        k.head(),
        k.chunk(k.event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})),
        "no token came for 1 s",
    ),
    "nulls": lambda k: (
        k.head(),
        k.chunk(k.event({"choices": [{"delta": None}]})),
        "no token came for 1 s",
    ),
    "comments behind a token": lambda k: (
        k.head() + k.chunk(k.event(k.choice())),
        k.chunk(b": keep-alive\n\n"),
        "no token came for 1 s after the last token, though other bytes did",
    ),
    "half a line": lambda k: (k.head(), k.chunk(b"d"), "no token came for 1 s"),
    "100 Continue": lambda _: (b"", b"HTTP/1.1 100 Continue\r\n\r\n", "no token came for 1 s"),
    "a header": lambda _: (b"HTTP/1.1 200 OK\r\nX: ", b"y", "no token came for 1 s"),
    "a status line": lambda _: (b"HTTP/1.1 200 O", b"K", "no token came for 1 s"),
    "an answer": lambda k: (
        k.head(kind="application/json", length=10**6),
        b" ",
        "no complete answer came for 1 s after the request, though other bytes did",
    ),
    "a refusal": lambda k: (
        k.head("500 Oops", "text/plain", 60_000),
        b" ",
        "no complete answer came for 1 s",
    ),
    "nothing behind a token": lambda k: (
        k.head() + k.chunk(k.event(k.choice())),
        b"",
        "nothing came for 1 s after the last token",
    ),
    "nothing behind the headers": lambda k: (k.head(), b"", "nothing came for 1 s after the request"),
    "nothing": lambda _: (b"", b"", "nothing came for 1 s after the request"),
}


@pytest.mark.parametrize("name", NO_TOKENS)
def test_what_brings_no_token_is_late(load, server_kit, name):
    first, piece, text = NO_TOKENS[name](server_kit)
    [record], *_ = load(outgoing(1), {1: without_end(first, piece)}, timeout_seconds=1.0)
    assert record.error_kind == "timeout"
    assert text in record.error_text


ENDLESS = {
    "tokens": lambda k: (k.head(), k.chunk(k.event(k.choice()) * 9), "bad_usage", "the stream does not end"),
    "a line": lambda k: (k.head(), k.chunk(b"d" * 2**20), "stream_error", "an event of more than 16 MiB"),
    "an event": lambda k: (
        k.head(),
        k.chunk((b"data: " + b"x" * 999 + b"\n") * 999),
        "stream_error",
        "an event of more than 16 MiB",
    ),
    "an answer": lambda k: (
        k.head(kind="application/json", length=2**40),
        b" " * 2**20,
        "http",
        "an answer of more than 64 MiB",
    ),
    "a refusal": lambda k: (k.head("500 Oops", "text/plain", 2**40), b"no" * 2**15, "http", "HTTP 500: no"),
    "headers": lambda _: (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 999, "http", "no answer had begun"),
    "100 Continue": lambda _: (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 99, "http", "no answer had begun"),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_never_ends_is_cut_without_a_limit_of_time(load, server_kit, name):
    first, piece, kind, text = ENDLESS[name](server_kit)
    requests = [request._replace(most_output_tokens=4) for request in outgoing(2)]
    records, *_ = load(requests, {1: without_end(first, piece)}, concurrency=1)
    assert [record.error_kind for record in records] == [kind, None]
    assert text in records[0].error_text


def test_a_stream_that_is_complete_waits_a_second_for_its_connection_whatever_the_limit(load, server_kit):
    k = server_kit
    comments = without_end(k.head() + k.chunk(k.STREAM), k.chunk(b": bye\n\n"))
    records, *_ = load(outgoing(2), {1: comments}, concurrency=1)
    assert [record.error_kind for record in records] == [None, None]


def test_more_tokens_than_were_allowed_are_a_failure_and_not_a_count(load, server_kit):
    k = server_kit
    told = k.head() + k.chunk(k.event(k.choice()) + k.event(k.usage(completion=10**6)) + k.event(b"[DONE]"))
    [record], *_ = load([next(outgoing(1))._replace(most_output_tokens=4)], {1: told + k.chunk(b"")})
    assert (record.error_kind, record.completion_tokens, record.prompt_tokens) == ("bad_usage", None, 10)
    assert record.error_text == "usage says 1000000 completion_tokens, 4 were allowed"


def test_a_client_that_was_held_up_does_not_blame_the_server(load, server_kit):
    async def prompt(got, writer):
        writer.write(server_kit.GOOD[:60])
        await asyncio.sleep(0.05)
        writer.write(server_kit.GOOD[60:])
        # The bytes are out; now the loop stands still for longer than the timeout.
        time.sleep(0.4)  # noqa: ASYNC251 - on purpose

    [record], *_ = load(outgoing(1), {1: prompt}, timeout_seconds=0.2)
    assert record.error_kind is None


def test_nobody_listens(load, server_kit):
    records, summary, _ = load(outgoing(6), url="http://127.0.0.1:1/v1/completions")
    assert [r.error_kind for r in records] == ["connect"] * 6
    assert "127.0.0.1:1" in records[0].error_text
    assert (summary.failed, records[0].e2el_s, records[0].http_status) == (6, None, None)


# Kept connections


def test_a_connection_the_server_closed_while_idle_is_reopened(load, server_kit):
    async def close_soon(got, writer):
        writer.write(server_kit.GOOD)
        await writer.drain()
        return False

    # The close races the next request, as a server's keep-alive timeout does; whichever wins, nothing is lost.
    records, summary, server = load(outgoing(20), lambda _: close_soon, concurrency=1)
    assert [r.error_kind for r in records] == [None] * 20
    assert (summary.attempts, summary.retried) == (20, 0)
    assert server.connections == 20


def test_a_kept_connection_closed_without_a_byte_is_not_a_retry(load, server_kit):
    records, summary, server = load(outgoing(3), {2: server_kit.hang_up()}, concurrency=1)
    assert [(r.position, r.attempt, r.error_kind) for r in records] == [(i, 1, None) for i in range(3)]
    assert (summary.reopened_connections, summary.retried, server.connections) == (1, 0, 2)


@pytest.mark.parametrize("first", [b"HTTP", None])
def test_but_a_byte_or_a_second_makes_it_a_failure(load, server_kit, first):
    async def late(got, writer):
        await asyncio.sleep(1.1)
        return False

    behaviour = server_kit.hang_up(first) if first else late
    records, summary, _ = load(outgoing(3), {2: behaviour}, concurrency=1)
    assert [r.error_kind for r in records] == [None, "reset", None]
    assert summary.reopened_connections == 0


def test_bytes_nobody_asked_for_close_the_connection(load, server_kit):
    records, *_ = load(outgoing(3), {1: server_kit.GOOD + server_kit.GOOD}, concurrency=1)
    assert [(r.error_kind, r.chunks) for r in records] == [(None, 3)] * 3


# Retries


def test_retries_are_recorded_one_by_one(load, server_kit):
    k = server_kit
    script = {1: k.plain("503 Busy", b"busy"), 2: k.hang_up(k.head()), 4: k.plain("400 Bad", b"bad")}
    records, summary, _ = load(outgoing(2), script, concurrency=1, retries=2)
    assert [(r.position, r.attempt, r.error_kind) for r in records] == [
        (0, 1, "http"), (0, 2, "reset"), (0, 3, None), (1, 1, "http")]  # fmt: skip
    assert (summary.finished, summary.failed, summary.attempts, summary.retried) == (1, 1, 4, 2)


def test_retries_end(load, server_kit):
    records, summary, _ = load(outgoing(1), lambda _: server_kit.plain("500 No", b""), retries=1)
    assert [r.attempt for r in records] == [1, 2]
    assert (summary.failed, summary.finished) == (1, 0)


# Lanes


@pytest.mark.parametrize("concurrency", [1, 3, 8])
@pytest.mark.parametrize("contiguous", [True, False])
def test_lanes_on_the_wire(load, server_kit, concurrency, contiguous):
    rng = random.Random(concurrency)
    delays = [rng.uniform(0, 0.004) for _ in range(100)]
    lane = (lambda i: i // 20) if contiguous else (lambda i: i % 5)
    requests = outgoing(100, lane=lane, lazy=True)
    script = lambda n: server_kit.hang_up() if n == 30 else server_kit.after(delays[n % 100])  # noqa: E731
    records, summary, server = load(requests, script, concurrency=concurrency)
    assert len(records) == 100
    assert server.max_in_lane == 1
    assert summary.max_in_flight == server.max_in_flight == min(concurrency, 5)
    by_lane = defaultdict(list)
    for r in sorted(records, key=lambda r: r.started_ns):
        by_lane[lane(r.position)].append((r.position, r.lane_sequence))
    for rows in by_lane.values():
        assert rows == [(position, number) for number, (position, _) in enumerate(sorted(rows))]


def test_a_request_that_waits_for_its_lane_holds_no_slot(load, server_kit):
    # Lane a is slow and has the first three requests; the others pass it with the second slot.
    lane = lambda i: "a" if i < 3 else None  # noqa: E731

    others, passed = [], asyncio.Event()

    async def behave(got, writer):
        if got.body["lane"]:
            await passed.wait()  # however slow the machine is
            await asyncio.sleep(0.1)
        else:
            others.append(got)
            if len(others) == 10:
                passed.set()
        writer.write(server_kit.GOOD)

    records, summary, _ = load(outgoing(13, lane=lane), lambda _: behave, concurrency=2)
    ends = [r.position for r in records]
    assert set(ends[:10]) == set(range(3, 13))
    assert summary.waited_for_lane == 2
    # With nothing else to do, the second slot waits for the lane.
    assert 0.1 < summary.lane_wait_seconds < summary.wall_seconds
    # One in flight while the lane's last waits; the time after its start is not counted.
    assert summary.mean_while_waiting is not None
    assert 1.0 < summary.mean_while_waiting < 2.0


def test_the_mean_while_others_wait_leaves_out_the_end(load, server_kit):
    async def behave(got, writer):
        await asyncio.sleep(0.4 if got.body["n"] == 7 else 0.02)
        writer.write(server_kit.GOOD)

    _, summary, _ = load(outgoing(8), lambda _: behave, concurrency=4)
    assert summary.mean_in_flight < 2.5, "the last one is alone most of the time"
    assert summary.mean_while_waiting > 3.2


def test_requests_that_all_start_at_once_wait_for_nothing(load, server_kit):
    _, summary, _ = load(outgoing(3), lambda _: server_kit.after(0.01), concurrency=8)
    assert summary.mean_while_waiting is None


def test_bodies_are_made_when_their_request_starts(load):
    made, alive = [], []

    def body(i):
        made.append(i)
        alive.append(len(made))
        return json.dumps({"n": i}).encode()

    requests = [
        OutgoingRequest(i, f"r{i}", "g", lambda i=i: body(i), lane=0, lane_sequence=i) for i in range(30)
    ]
    ended = []

    def record(r):
        ended.append(r)
        # At most the one running of this lane has a body.
        assert len(made) == len(ended)

    load(requests, record=record, concurrency=8)
    assert made == list(range(30))


def test_requests_are_read_as_slots_come_free(load):
    read = [0]

    def requests():
        for request in outgoing(200):
            read[0] += 1
            yield request

    ahead = []
    load(requests(), record=lambda _: ahead.append(read[0] - len(ahead) - 1), concurrency=5)
    assert max(ahead) <= 5
    assert read[0] == 200


# Secrets


def test_the_key_is_in_no_record(load, server_kit):
    async def echo(got, writer):
        said = json.dumps(
            {"error": {"message": f"bad {got.headers['authorization']}\n" + "x" * 500}}
        ).encode()
        writer.write(server_kit.plain("401 No", said))

    [record], *_ = load(outgoing(1), {1: echo}, api_key="canary-key")
    assert "canary" not in repr(record)
    assert "***" in record.error_text
    assert len(record.error_text) == 300
    [record], *_ = load(outgoing(1), {1: echo}, headers={"authorization": "Basic canary-key"})
    assert "canary" not in repr(record)


# Ends


def test_stop_drops_what_is_in_flight_within_a_second(load, server_kit):
    stopped_at = []

    def script(number):
        if number == 7:
            stopped_at.append(time.monotonic())
        return server_kit.GOOD if number <= 3 else server_kit.stall(server_kit.head())

    records, summary, server = load(
        outgoing(100), script, concurrency=4, stop_once=lambda s: len(s.received) == 7
    )
    assert time.monotonic() - stopped_at[0] < 1.0
    kinds = [r.error_kind for r in records]
    assert (kinds.count(None), kinds.count("aborted"), len(kinds)) == (3, 4, 7)
    assert (summary.started, summary.finished, summary.failed, summary.aborted) == (7, 3, 4, 4)
    assert summary.stopped
    assert len(server.received) == 7


def test_stop_ends_a_pause_between_attempts(load, server_kit):
    records, summary, _ = load(
        outgoing(5),
        lambda _: server_kit.plain("503 No", b""),
        concurrency=1,
        retries=50,
        stop_once=lambda s: len(s.received) == 3,
    )
    assert [(r.position, r.attempt) for r in records] == [(0, 1), (0, 2), (0, 3)]
    assert (summary.started, summary.failed) == (1, 1)


def test_stop_before_the_start(run, server_kit):
    async def main():
        stop = asyncio.Event()
        stop.set()
        records = []
        summary = await send_load(
            outgoing(5), url="http://127.0.0.1:1/", concurrency=2, on_record=records.append, stop=stop
        )
        return records, summary

    records, summary = run(main())
    assert (records, summary.started, summary.stopped) == ([], 0, True)


def test_nothing_to_send(load):
    records, summary, _ = load([])
    assert (records, summary.started, summary.mean_in_flight, summary.wall_seconds) == ([], 0, 0.0, 0.0)


class BrokenError(Exception):
    pass


def test_faults_of_the_caller_come_out_as_they_are(load, server_kit):
    def raise_it(*_):
        raise BrokenError

    def broken_rows():
        yield from outgoing(3)
        raise BrokenError

    slow = lambda _: server_kit.after(0.01)  # noqa: E731
    for requests, record in (
        (broken_rows(), None),
        (outgoing(9), raise_it),
        ([OutgoingRequest(0, "r", "g", raise_it)], None),
    ):
        with pytest.raises(BrokenError):
            load(requests, slow, record=record, concurrency=2)


def test_lanes_out_of_order_are_refused(load):
    rows = [OutgoingRequest(i, f"r{i}", "g", b"{}", "a", 0, 5 - i) for i in range(3)]
    with pytest.raises(DriverError, match="final order"):
        load(rows)


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"retries": -1},
        {"timeout_seconds": 0},
        {"url": "ftp://x/"},
        {"url": "http:///v1"},
        {"url": "http://x:99999/"},
        {"url": "http://user:canary@x/"},
        {"url": "http://x/a b"},
        {"headers": {"X-A": "canary\r\nX-B: 1"}},
        {"headers": {"X A": "1"}},
        {"headers": {"Content-Length": "1"}},
        {"api_key": "canary\n"},
    ],
)
def test_unusable_options_are_refused_before_anything_is_sent(load, options):
    with pytest.raises(DriverError) as caught:
        load(outgoing(1), **options)
    assert "canary" not in str(caught.value)
    assert "\n" not in str(caught.value)


# TLS


@pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl is not installed: no certificate to test with"
)
def test_https_checks_the_certificate(run, server_kit, tmp_path, monkeypatch):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key,
         "-out", certificate, "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def main():
        records = []
        server = await server_kit.ScriptedServer().start(context)
        summary = await send_load(
            outgoing(10), url=server.url, concurrency=2, on_record=records.append, stop=asyncio.Event()
        )
        return records, summary, server.connections

    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    records, summary, _ = run(main())
    assert [r.error_kind for r in records] == ["connect"] * 10
    assert "certificate" in records[0].error_text.lower()
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    records, summary, connections = run(main())
    assert [(r.error_kind, r.chunks) for r in records] == [(None, 3)] * 10
    assert (summary.finished, connections) == (10, 2)


# The synchronous face


@pytest.fixture
def thread_server(server_kit):
    """A scripted server on a loop in another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = server_kit.ScriptedServer()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(5)
    yield server

    async def end():
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run_coroutine_threadsafe(end(), loop).result(5)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()


def test_run_load(thread_server):
    records, progress = [], []
    summary = run_load(outgoing(20), url=thread_server.url, concurrency=3, on_record=records.append,
                       on_progress=progress.append)  # fmt: skip
    assert (summary.finished, len(records)) == (20, 20)
    assert progress[0].finished == 0
    assert progress[-1] == (20, 20, 0, 0)


def once_received(server, count, act):
    """Call `act` from another thread once the server has that many requests."""

    def wait():
        while len(server.received) < count:
            time.sleep(0.01)
        act()

    threading.Thread(target=wait, daemon=True).start()


def test_run_load_stops_from_another_thread(thread_server, server_kit):
    thread_server.script = lambda _: server_kit.stall()
    stop, records, stopped_at = threading.Event(), [], []
    once_received(thread_server, 2, lambda: (stopped_at.append(time.monotonic()), stop.set()))
    summary = run_load(outgoing(9), url=thread_server.url, concurrency=2, on_record=records.append, stop=stop)
    assert time.monotonic() - stopped_at[0] < 1.0
    assert [r.error_kind for r in records] == ["aborted"] * 2
    assert summary.stopped


def test_ctrl_c_records_what_was_in_flight(thread_server, server_kit):
    thread_server.script = lambda _: server_kit.stall()
    records = []
    once_received(thread_server, 2, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        run_load(outgoing(9), url=thread_server.url, concurrency=2, on_record=records.append)
    assert [r.error_kind for r in records] == ["aborted"] * 2


# Open loop


def test_requests_start_when_they_arrive_whatever_the_others_do(load, server_kit):
    records, summary, server = load(
        outgoing(6),
        lambda _: server_kit.after(0.3),
        concurrency=100,
        arrivals=[0, 0.05, 0.1, 0.15, 0.2, 0.25],
    )
    starts = [record.started_ns / 1e9 for record in sorted(records, key=lambda record: record.position)]
    assert [start - starts[0] for start in starts] == pytest.approx([0, 0.05, 0.1, 0.15, 0.2, 0.25], abs=0.04)
    assert server.max_in_flight == 6
    assert summary.withdrawn == 0
    assert 0 <= summary.mean_lag_seconds <= summary.max_lag_seconds < 0.05


def test_a_busy_lane_delays_its_own_requests_only(load, server_kit):
    script = {1: server_kit.after(0.4)}
    records, summary, _ = load(
        outgoing(4, lane=lambda i: i % 2), script, concurrency=100, arrivals=[0, 0.02, 0.04, 0.06]
    )
    started = {record.position: record.started_ns / 1e9 for record in records}
    assert started[3] - started[0] < 0.2, "the free lane goes on"
    assert started[2] - started[0] > 0.39, "the busy one waits"
    assert summary.max_lag_seconds == pytest.approx(0.36, abs=0.06)


def test_what_has_not_started_in_time_is_withdrawn_and_what_runs_may_end(load, server_kit):
    records, summary, server = load(
        outgoing(20, lane=lambda _: 0),
        lambda _: server_kit.after(0.2),
        concurrency=100,
        arrivals=[i * 0.02 for i in range(20)],
        start_within_seconds=0.5,
    )
    assert len(records) == len(server.received) == 3
    assert all(record.error_kind is None for record in records)
    assert (summary.started, summary.withdrawn) == (3, 17)


def test_an_open_loop_ends_with_its_last_answer_and_not_with_its_time(load):
    begin = time.monotonic()
    _, summary, _ = load(outgoing(3), concurrency=9, arrivals=[0, 0.01, 0.02], start_within_seconds=30)
    assert summary.finished == 3
    assert time.monotonic() - begin < 5


def test_a_stop_ends_an_open_loop_between_two_arrivals(load):
    begin = time.monotonic()
    _, summary, _ = load(
        outgoing(2), concurrency=9, arrivals=[0, 30], stop_once=lambda server: len(server.received) == 1
    )
    assert summary.stopped
    assert summary.started == 1
    assert time.monotonic() - begin < 5


# The text of answers


def test_the_text_of_an_answer_is_there_before_the_lane_goes_on(load):
    said = []
    bodies = []

    def body(number):
        bodies.append(list(said))
        return json.dumps({"n": number}).encode()

    requests = [
        OutgoingRequest(i, f"r{i}", "g", lambda i=i: body(i), "lane", None, i, on_answer=said.append)
        for i in range(3)
    ]
    records, _, _ = load(iter(requests), concurrency=3)
    assert said == ["aab"] * 3
    assert bodies == [[], ["aab"], ["aab", "aab"]]
    assert all(record.error_kind is None for record in records)


def test_a_failed_answer_has_no_text(load, server_kit):
    said = []
    requests = [OutgoingRequest(0, "r0", "g", b"{}", on_answer=said.append)]
    load(iter(requests), lambda _: server_kit.plain("500 Oops", b"{}"))
    assert said == []
