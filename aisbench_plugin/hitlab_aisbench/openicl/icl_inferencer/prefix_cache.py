"""AISBench's inferencer with one thing of its own: which row starts when."""

import asyncio
import os
import queue
from collections.abc import Awaitable, Callable
from contextlib import suppress
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from ais_bench.benchmark.models.output import RequestOutput
from ais_bench.benchmark.openicl.icl_inferencer.icl_gen_inferencer import GenInferencer
from ais_bench.benchmark.utils.core.valid_global_consts import get_max_chunk_size

from hitlab_aisbench import API_KEY_VARIABLE, RECORDS_VARIABLE
from hitlab_aisbench.attempts import Attempts, Row
from hitlab_aisbench.models.completions import tracing
from hitlab_aisbench.turns import Turns, write_turns

UNREACHABLE_IN_A_ROW = 10
"""So many requests one after the other that cannot connect: the server is gone, and going on would only say so again."""

_LOOK_AGAIN_SECONDS = 0.002


class ServerGoneError(RuntimeError):
    """The load ended early: nobody answers any more."""


class PrefixCacheInferencer(GenInferencer):
    """Sends the rows in final order, one at a time per lane, with AISBench's slots, rates, counters and results.

    AISBench hands every process a share of the rows through a queue, and lets a started row wait for what it needs. Here
    a process takes a row when it has a free slot and the row may start (see `turns`), so a row that waits for its lane
    costs no concurrency, and lanes may be worked on by any process.
    """

    def get_data_list(self, retriever: Any) -> list[dict[str, Any]]:
        """The rows without their prompts, which are read again when they are sent: AISBench copies what is here into
        shared memory, of which a container has little.
        """
        data = super().get_data_list(retriever)
        rows, path = retriever.test_ds, retriever.dataset.full_path
        if [item.pop("prompt") for item in data] != rows["question"]:
            raise ValueError(
                "a prompt is not the question of its row: the prompt template has to be {question}"
            )
        names = ("request_id", "group", "dp_rank", "lane_sequence", "offset", "length")
        for position, (item, *values) in enumerate(zip(data, *(rows[name] for name in names), strict=True)):
            *identity, offset, length = values
            item["row"] = Row(position, *identity)
            item["place"] = (path, offset, length)
        lanes = [
            None if item["row"].dp_rank is None else (item["row"].group, item["row"].dp_rank) for item in data
        ]
        write_turns(_folder(), lanes)
        return data

    def inference_with_shm(
        self,
        dataset_shm_name: str,
        message_shm_name: str,
        indexes: dict[int, Any],
        token_bucket: Any,
        output_json_filepath: str | None = None,
    ) -> dict[str, int]:
        self._rows = shared_memory.SharedMemory(dataset_shm_name)
        self._places = indexes
        try:
            status: dict[str, int] = super().inference_with_shm(
                dataset_shm_name, message_shm_name, indexes, token_bucket, output_json_filepath
            )
        finally:
            self._rows.close()
        return status

    def _fill_janus_queue(self, *_: Any) -> None:
        """Nothing goes through AISBench's queue."""

    def _producer_thread_target(self, *_: Any) -> None:
        """Nothing goes through AISBench's queue."""

    async def _worker_loop(self, token_bucket: Any, _: Any) -> None:
        """Start rows while there are slots, until none is left. Called once in every process.

        Raises ServerGoneError when the server does not answer any more; what is in flight ends first.
        """
        turns = Turns(_folder(), self.global_lock)
        others = self.batch_size < self.model_cfg.get("batch_size", 1)
        self._unreachable, self._last_error = 0, ""
        changed = asyncio.Event()
        running: set[asyncio.Task[None]] = set()
        faults: list[BaseException] = []

        def over(task: asyncio.Task[None]) -> None:
            running.discard(task)
            fault = None if task.cancelled() else task.exception()
            if fault is not None:
                faults.append(fault)
            changed.set()

        with Attempts(_folder(), os.environ.get(API_KEY_VARIABLE, "")) as attempts:
            async with self._session() as session:
                try:
                    allowed = token_bucket is None
                    while self._unreachable < UNREACHABLE_IN_A_ROW and not faults:
                        changed.clear()
                        if not allowed:
                            allowed = await asyncio.to_thread(token_bucket.acquire, timeout=1)
                        row = turns.take() if allowed and len(running) < self.batch_size else None
                        if row is not None:
                            task = asyncio.create_task(self._send(row, turns, session, attempts))
                            running.add(task)
                            task.add_done_callback(over)
                            allowed = token_bucket is None
                        elif turns.all_taken:
                            break
                        elif allowed:
                            # A lane that another process moves on is seen only by looking.
                            look = others and len(running) < self.batch_size
                            await _wait(changed, _LOOK_AGAIN_SECONDS if look else None)
                    if running:
                        await asyncio.wait(running)
                except asyncio.CancelledError:
                    for task in running:
                        task.cancel()
                    await asyncio.gather(*running, return_exceptions=True)
                    raise
            if faults:
                raise faults[0]
            if self._unreachable >= UNREACHABLE_IN_A_ROW:
                raise ServerGoneError(
                    f"{self._unreachable} requests in a row could not connect to {self.model.url}: {self._last_error}"
                )

    def _session(self) -> aiohttp.ClientSession:
        """As AISBench's, but without proxies of the environment: HitLab's own calls to the engine use none either."""
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self.batch_size + 1, **self.model.tls()),
            timeout=aiohttp.ClientTimeout(total=None),
            max_line_size=get_max_chunk_size(),
            trace_configs=[tracing()],
            auto_decompress=False,
        )

    async def _send(self, row: int, turns: Turns, session: aiohttp.ClientSession, attempts: Attempts) -> None:
        try:
            data = self._read_and_unpickle(self._rows.buf, self._places[row])
            if data["row"].position != row:
                raise ValueError(
                    f"row {row} of the load is request {data['row'].request_id}: the order has changed"
                )
            await self._answered(data, session, attempts)
        finally:
            turns.end(row)

    async def _answered(
        self, data: dict[str, Any], session: aiohttp.ClientSession, attempts: Attempts
    ) -> None:
        """One request, counted and reported in AISBench's own way."""
        prompt = _prompt(*data["place"])
        output = RequestOutput(self.perf_mode)
        output.uuid = data["row"].request_id
        await _counted(self.status_counter.post)
        answer = await self.model.generate(
            prompt, data["max_out_len"], output, session, row=data["row"], attempts=attempts
        )
        if answer.success:
            self._unreachable = 0
            await _counted(self.status_counter.rev)
        else:
            self._unreachable = self._unreachable + 1 if answer.error_kind == "connect" else 0
            self._last_error = answer.error_text or ""
            await _counted(self.status_counter.failed)
        await _counted(self.status_counter.finish)
        await _counted(self.status_counter.case_finish)
        await self.output_handler.report_cache_info(
            data["index"], prompt, output, data["data_abbr"], data.get("gold")
        )


async def _counted(count: Callable[[], Awaitable[None]]) -> None:
    """AISBench's counters go through a queue of five times the slots, which is full for moments and then raises."""
    counted = False
    while not counted:
        with suppress(queue.Full):
            await count()
            counted = True
        if not counted:
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)


def _prompt(path: str, offset: int, length: int) -> str:
    with Path(path).open("rb") as file:
        file.seek(offset)
        prompt: str = orjson.loads(file.read(length))["question"]
    return prompt


async def _wait(event: asyncio.Event, seconds: float | None) -> None:
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


def _folder() -> Path:
    try:
        return Path(os.environ[RECORDS_VARIABLE])
    except KeyError:
        raise RuntimeError(f"{RECORDS_VARIABLE} is not set: this inferencer is started by HitLab") from None
