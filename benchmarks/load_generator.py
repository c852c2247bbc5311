"""What the native load generator costs: requests per second on one core, and the latency it adds.

    .venv-dev/bin/python -m benchmarks.load_generator [--requests 8000] [--chunks 16] [--concurrency 1 8 64 256]

A server of the same make (asyncio protocol, httptools, uvloop) runs on core 1 and answers every request with one ready
SSE stream; the client runs on core 0. "bare" is a protocol that writes ready bytes and counts the answer's, without
HTTP, JSON, lanes or records: what asyncio and the sockets cost by themselves. "one read" sends the whole stream in one
write, otherwise each chunk is a write of its own.

The latency table asks for streams whose first chunk comes after 50 ms and the others 10 ms apart, and shows by how much
the reported TTFT and ITL exceed that.
"""

import argparse
import asyncio
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection as Pipe

import httptools
import uvloop

from contract.records import RequestRecord
from runner.drivers.native import LoadSummary, OutgoingRequest, run_load

BODY = b'{"model":"tiny","stream":true,"prompt":"' + b"x" * 2000 + b'"}'
TOKEN = (
    b'data: {"id":"cmpl-afad553f01d57158","object":"text_completion","created":1795969503,"model":"tiny","choices":'
    b'[{"index":0,"text":"ob","logprobs":null,"finish_reason":null,"stop_reason":null}]}\n\n'
)
END = (
    b'data: {"id":"cmpl-afad553f01d57158","object":"text_completion","choices":[],"usage":{"prompt_tokens":320,'
    b'"total_tokens":336,"completion_tokens":16,"prompt_tokens_details":{"cached_tokens":0}}}\n\ndata: [DONE]\n\n'
)
FIRST_SECONDS, GAP_SECONDS = 0.05, 0.01


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = chunk(END) + chunk(b"")


def parts(chunks: int) -> list[bytes]:
    return [HEAD + chunk(TOKEN), *[chunk(TOKEN)] * (chunks - 1), LAST]


class Server(asyncio.Protocol):
    """Answers at once (`mode` "one read" or "many reads") or in real time ("timed")."""

    def __init__(self, mode: str, chunks: int) -> None:
        self.mode, self.parts = mode, parts(chunks)
        self.whole = b"".join(self.parts)
        self.parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        if self.mode == "one read":
            self.transport.write(self.whole)  # type: ignore[attr-defined]
        elif self.mode == "many reads":
            self.send(0, 0.0)
        else:
            asyncio.get_running_loop().call_later(FIRST_SECONDS, self.send, 0, GAP_SECONDS)

    def send(self, index: int, pause: float) -> None:
        self.transport.write(self.parts[index])  # type: ignore[attr-defined]
        if index + 1 == len(self.parts):
            return
        loop = asyncio.get_running_loop()
        if pause:
            loop.call_later(pause, self.send, index + 1, pause)
        else:
            loop.call_soon(self.send, index + 1, pause)


def serve(pipe: Pipe, mode: str, chunks: int) -> None:
    pin(1)

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: Server(mode, chunks), "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()

    uvloop.run(main())


def pin(core: int) -> None:
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > core:
        os.sched_setaffinity(0, {core})


class Bare(asyncio.Protocol):
    """Writes ready bytes, counts the answer's bytes, starts again."""

    def __init__(
        self, request: bytes, expected: int, left: Iterator[int], done: asyncio.Future[None]
    ) -> None:
        self.request, self.expected, self.left, self.done = request, expected, left, done
        self.received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.next()

    def next(self) -> None:
        if next(self.left, None) is None:
            if not self.done.done():
                self.done.set_result(None)
            return
        self.received = 0
        self.transport.write(self.request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        if self.received == self.expected:
            self.next()


def bare_rate(port: int, requests: int, concurrency: int, chunks: int) -> float:
    request = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY

    async def main() -> float:
        loop, left = asyncio.get_running_loop(), iter(range(requests))
        ends = [loop.create_future() for _ in range(concurrency)]
        expected = sum(map(len, parts(chunks)))
        began = time.perf_counter()
        for end in ends:
            await loop.create_connection(
                lambda end=end: Bare(request, expected, left, end), "127.0.0.1", port
            )
        await asyncio.gather(*ends)
        return requests / (time.perf_counter() - began)

    return uvloop.run(main())


def native(port: int, requests: int, concurrency: int) -> tuple[LoadSummary, list[RequestRecord]]:
    records: list[RequestRecord] = []
    summary = run_load(
        (OutgoingRequest(i, str(i), "g", BODY) for i in range(requests)),
        url=f"http://127.0.0.1:{port}/v1/completions",
        concurrency=concurrency,
        on_record=records.append,
        timeout_seconds=60,
    )
    assert summary.failed == 0, records[0]
    return summary, records


def quantiles(values: list[float]) -> str:
    cuts = statistics.quantiles(values, n=100)
    return f"p50 {1e3 * cuts[49]:7.3f}   p99 {1e3 * cuts[98]:7.3f} ms"


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--requests", type=int, default=8000)
    arguments.add_argument("--chunks", type=int, default=16)
    arguments.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 64, 256])
    options = arguments.parse_args()
    pin(0)
    spawn = multiprocessing.get_context("spawn")
    for mode in ("one read", "many reads", "timed"):
        here, there = spawn.Pipe()
        server = spawn.Process(target=serve, args=(there, mode, options.chunks), daemon=True)
        server.start()
        port = here.recv()
        print(f"\n{mode}, {options.chunks} chunks a stream")
        for concurrency in options.concurrency:
            if mode == "timed":
                _, records = native(port, min(options.requests, concurrency * 20), concurrency)
                first = quantiles([record.ttft_s - FIRST_SECONDS for record in records if record.ttft_s])
                gaps = quantiles([gap - GAP_SECONDS for record in records for gap in record.itl_s])
                print(f"  c {concurrency:4d}   TTFT + {first}   ITL + {gaps}")
                continue
            bare = bare_rate(port, options.requests, concurrency, options.chunks)
            summary, records = native(port, options.requests, concurrency)
            rate = options.requests / summary.wall_seconds
            print(
                f"  c {concurrency:4d}   native {rate:7.0f}/s   bare {bare:7.0f}/s   ratio {rate / bare:.2f}   "
                f"in flight {summary.mean_in_flight:6.1f}   TTFT {quantiles([r.ttft_s or 0.0 for r in records])}"
            )
        server.terminate()
        server.join()


if __name__ == "__main__":
    main()
