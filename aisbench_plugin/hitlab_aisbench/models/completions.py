"""The completions endpoint as an AISBench model: the whole URL, ranks, and every attempt measured as HitLab does."""

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from ais_bench.benchmark.models import VLLMCustomAPI
from ais_bench.benchmark.models.output import Output

from hitlab_aisbench import API_KEY_VARIABLE
from hitlab_aisbench.answer import Answer
from hitlab_aisbench.attempts import Attempts, Row, masked
from hitlab_aisbench.usage import most_output_tokens

RANK_HEADER = "X-data-parallel-rank"
_STALE_WITHIN_NS = 1_000_000_000
_REST_OF_ANSWER_SECONDS = 1.0
_FIRST_BACKOFF_SECONDS = 0.1
_LONGEST_BACKOFF_SECONDS = 2.0
_WORTH_A_RETRY = frozenset({"connect", "reset", "timeout", "stream_error"})
_WORTH_A_RETRY_STATUS = frozenset({408, 429})


class Exchange:
    """One attempt on the wire: its answer, when its first byte was written, and whether on a kept connection."""

    def __init__(self, most_output_tokens: int | None) -> None:
        self._most_output_tokens = most_output_tokens
        self.renew()

    def renew(self) -> None:
        """Begin anew; what has been noted so far was not the server's answer."""
        self.answer = Answer(self._most_output_tokens)
        self.received_ns = 0
        self.connected(kept=False)

    def connected(self, *, kept: bool) -> None:
        """There is a connection; the request is written next."""
        self.sent_ns, self.sent_wall, self._kept = time.perf_counter_ns(), time.time(), kept

    @property
    def since_ns(self) -> int:
        """The last token, else the request."""
        return self.answer.token_ns[-1] if self.answer.token_ns else self.sent_ns

    def late(self, seconds: float) -> str:
        """Why its answer is given up."""
        answer, since = self.answer, "the last token" if self.answer.token_ns else "the request"
        if self.received_ns <= self.since_ns:
            return f"nothing came for {seconds:g} s after {since}"
        what = "token" if answer.streams or answer.status is None else "complete answer"
        return f"no {what} came for {seconds:g} s after {since}, though other bytes did"

    @property
    def stale(self) -> bool:
        """Whether the server had closed the connection before it read the request.

        A server may close an idle connection at the moment a request is written to it. This is assumed only when the
        connection had been kept, nothing of an answer came, and the close arrived within a second.
        """
        quick = time.perf_counter_ns() - self.sent_ns < _STALE_WITHIN_NS
        return self._kept and self.answer.status is None and quick


class PrefixCacheCompletions(VLLMCustomAPI):
    """AISBench's model for vLLM completions, with three differences.

    `url` is the whole address of the endpoint. The bearer token comes from the environment. `timeout_seconds` is the
    longest time for a connect, and without a new token (of an answer that does not stream, without all of it); None: no
    limit. `retry` is AISBench's: the number of attempts. `tls`: files for an address with https, found by HitLab.
    """

    def __init__(
        self,
        url: str,
        timeout_seconds: float | None = None,
        tls: dict[str, str | None] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(url=url, **options)
        self.url = url
        self._tls_files = tls
        self.headers["Accept-Encoding"] = "identity"
        self.headers["User-Agent"] = "hitlab"
        self._key = os.environ.get(API_KEY_VARIABLE, "")
        if self._key:
            self.headers["Authorization"] = f"Bearer {self._key}"
        self._longest_seconds = timeout_seconds
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=timeout_seconds)

    def tls(self) -> dict[str, ssl.SSLContext]:
        """What a connector needs for an address with https; made where it is used, because AISBench forks."""
        return {} if self._tls_files is None else {"ssl": _tls_context(**self._tls_files)}

    async def generate(  # type: ignore[override]
        self,
        input_data: str,
        max_out_len: int,
        output: Output,
        session: aiohttp.ClientSession,
        *,
        row: Row,
        attempts: Attempts,
    ) -> Answer:
        """Send the request until an attempt succeeds, or none is left, or none would help. Fills `output`.

        Every attempt is recorded, also one that is cancelled. A lane stays busy between the attempts.
        """
        request = await self.get_request_body(input_data, max_out_len, output)
        body = orjson.dumps(request)
        headers = dict(self.headers)
        if row.dp_rank is not None:
            headers[RANK_HEADER] = str(row.dp_rank)
        attempt = 0
        while True:
            attempt += 1
            attempts.begin(row, attempt)
            exchange = Exchange(most_output_tokens(request))
            try:
                await self._attempt(session, headers, body, exchange)
            except asyncio.CancelledError:
                exchange.answer.fail("aborted", "stopped while in flight")
                raise
            finally:
                attempts.end(row, attempt, exchange.sent_ns, exchange.sent_wall, exchange.answer)
            answer = exchange.answer
            if answer.success or attempt >= self.retry or not _worth_a_retry(answer):
                break
            await asyncio.sleep(min(_FIRST_BACKOFF_SECONDS * 2 ** (attempt - 1), _LONGEST_BACKOFF_SECONDS))
        self._tell(output, answer, exchange.sent_ns)
        return answer

    async def _attempt(
        self, session: aiohttp.ClientSession, headers: dict[str, str], body: bytes, exchange: Exchange
    ) -> None:
        """One attempt. On a kept connection that the server had closed before it read anything it begins anew."""
        while True:
            try:
                await self._in_time(self._post(session, headers, body, exchange), exchange)
            except aiohttp.ServerTimeoutError as error:
                exchange.answer.fail("timeout", str(error) or "no connection within the time")
            except aiohttp.ClientConnectorError as error:
                exchange.answer.fail("connect", f"cannot connect: {error}")
            except (
                aiohttp.ServerDisconnectedError,
                aiohttp.ClientOSError,
                aiohttp.ClientPayloadError,
            ) as error:
                if exchange.stale:
                    exchange.renew()
                    continue
                text = f"the connection was closed before the answer was complete: {error}"
                exchange.answer.fail("reset", text)
            except aiohttp.ClientError as error:
                exchange.answer.fail("http", f"not an HTTP answer: {error}")
            return

    async def _in_time(self, post: Coroutine[Any, Any, None], exchange: Exchange) -> None:
        """Wait as long as tokens come. Comments, pings, role chunks and interim answers are none."""
        task = asyncio.ensure_future(post)
        try:
            while not task.done():
                left = None
                if self._longest_seconds is not None:
                    left = self._longest_seconds - (time.perf_counter_ns() - exchange.since_ns) / 1e9
                    if left <= 0:
                        exchange.answer.fail("timeout", exchange.late(self._longest_seconds))
                        return
                await asyncio.wait((task,), timeout=left)
            task.result()
        finally:
            if not task.done():
                task.cancel()
                # How it ends is of no interest any more.
                await asyncio.gather(task, return_exceptions=True)

    async def _post(
        self, session: aiohttp.ClientSession, headers: dict[str, str], body: bytes, exchange: Exchange
    ) -> None:
        answer = exchange.answer
        async with session.post(
            self.url,
            data=body,
            headers=headers,
            timeout=self._timeout,
            allow_redirects=False,
            trace_request_ctx=exchange,
        ) as response:
            received = response.headers
            answer.begin(
                response.status, received.get("Content-Type", ""), received.get("Content-Encoding", "")
            )
            stream = response.content.iter_any()
            async for data in stream:
                exchange.received_ns = time.perf_counter_ns()
                answer.body(data, exchange.received_ns)
                if answer.cut:
                    response.close()
                    return
                if answer.done:
                    await _drain(stream)
                    return
            answer.end(time.perf_counter_ns())

    def _tell(self, output: Output, answer: Answer, sent_ns: int) -> None:
        """The answer in AISBench's terms: its time points are the start and every event, or the whole answer."""
        output.success = answer.success
        error = "" if answer.success else f"{answer.error_kind}: {answer.error_text}"
        output.error_info, output.content = masked(error, self._key), masked(answer.text, self._key)
        output.input_tokens = answer.prompt_tokens or 0
        output.output_tokens = answer.completion_tokens or 0
        if answer.success:
            times = answer.event_ns or [answer.done_ns]
            output.time_points = [time_ns / 1e9 for time_ns in (sent_ns, *times) if time_ns is not None]


def _tls_context(authority: str | None, client_cert: str | None, client_key: str | None) -> ssl.SSLContext:
    if authority is None:
        context = ssl.create_default_context()
    elif Path(authority).is_dir():
        context = ssl.create_default_context(capath=authority)
    else:
        context = ssl.create_default_context(cafile=authority)
    if client_cert is not None:
        context.load_cert_chain(client_cert, client_key)
    return context


def tracing() -> aiohttp.TraceConfig:
    """The trace that `generate` needs of its session: a request starts once it has its connection."""

    async def created(_: Any, context: Any, __: Any) -> None:
        context.trace_request_ctx.connected(kept=False)

    async def kept(_: Any, context: Any, __: Any) -> None:
        context.trace_request_ctx.connected(kept=True)

    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(created)
    trace.on_connection_reuseconn.append(kept)
    return trace


async def _drain(stream: AsyncIterator[bytes]) -> None:
    """Read what follows the end mark, so that the connection can be used again; the answer itself is decided.

    A server that keeps the message open, or breaks it off here, costs nothing but the connection.
    """

    async def rest() -> None:
        async for _ in stream:
            pass

    with suppress(asyncio.TimeoutError, aiohttp.ClientError):
        await asyncio.wait_for(rest(), _REST_OF_ANSWER_SECONDS)


def _worth_a_retry(answer: Answer) -> bool:
    """Whether another attempt may end otherwise; a refused request (4xx) is refused again."""
    if answer.error_kind == "http":
        return answer.status is not None and (answer.status >= 500 or answer.status in _WORTH_A_RETRY_STATUS)
    return answer.error_kind in _WORTH_A_RETRY
