"""Sampling KV-cache usage and queue lengths while the load runs."""

import logging
import threading
import time
from types import TracebackType

import pyarrow as pa

from contract.errors import ServiceError
from contract.streams import KV_SAMPLE_SCHEMA, TableStream
from runner.control import ControlClient

LOGGER = logging.getLogger("hitlab.runner")


class KvSampler:
    """Samples every `interval_seconds` in a thread of its own, from entering the block to leaving it; 0 = never.

    A failed sample is counted and left out. The thread ends with the block, without waiting for the next interval.
    """

    def __init__(self, client: ControlClient, stream: TableStream, interval_seconds: float) -> None:
        self._client = client
        self._stream = stream
        self._interval = interval_seconds
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kv-sampling", daemon=True)
        self.failures = 0

    def __enter__(self) -> "KvSampler":
        if self._interval > 0:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._interval > 0:
            self._thread.join()

    def _run(self) -> None:
        begun = time.monotonic()
        while not self._done.wait(self._interval):
            try:
                snapshot = self._client.scrape().snapshot
            except ServiceError as error:
                self.failures += 1
                LOGGER.warning("KV sample left out: %s", error)
                continue
            elapsed = time.monotonic() - begun
            self._stream.append(
                pa.RecordBatch.from_pylist(
                    [
                        {
                            "elapsed_seconds": elapsed,
                            "dp_rank": rank.rank,
                            "kv_cache_usage": rank.kv_cache_usage,
                            "requests_running": rank.requests_running,
                            "requests_waiting": rank.requests_waiting,
                        }
                        for rank in snapshot.ranks
                    ],
                    schema=KV_SAMPLE_SCHEMA,
                )
            )
