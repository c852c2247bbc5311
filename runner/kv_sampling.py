"""Sampling KV-cache usage and queue lengths while the load runs."""

import logging
import threading
import time
from types import TracebackType

import pyarrow as pa

from contract.errors import ArtifactError, ServiceError
from contract.streams import KV_SAMPLE_SCHEMA, TableStream
from enginemetrics.snapshot import EngineSnapshot
from runner.control import ControlClient

LOGGER = logging.getLogger("hitlab.runner")
LAST_SCRAPE_SECONDS = 0.5


class KvSampler:
    """Samples every `interval_seconds` in a thread of its own, from entering the block to leaving it; 0 = never.

    A failed sample is counted and left out. The block ends without waiting for the next interval, and not for a scrape
    that hangs either: its thread is left behind, and what it still gets is dropped.
    """

    def __init__(self, client: ControlClient, stream: TableStream, interval_seconds: float) -> None:
        self._client = client
        self._stream = stream
        self._interval = interval_seconds
        self._done = threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="kv-sampling", daemon=True)
        self.failures = 0

    def __enter__(self) -> "KvSampler":
        if self._interval > 0:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._writing:
            self._done.set()
        if self._interval > 0:
            self._thread.join(LAST_SCRAPE_SECONDS)

    def _run(self) -> None:
        begun = time.monotonic()
        while not self._done.wait(self._interval):
            try:
                snapshot = self._client.scrape().snapshot
                sample = _sample(time.monotonic() - begun, snapshot)
                with self._writing:
                    if self._done.is_set():
                        return
                    self._stream.append(sample)
            except (ServiceError, ArtifactError) as error:
                self.failures += 1
                LOGGER.warning("KV sample left out: %s", error)


def _sample(elapsed_seconds: float, snapshot: EngineSnapshot) -> pa.RecordBatch:
    """One row per rank."""
    return pa.RecordBatch.from_pylist(
        [
            {
                "elapsed_seconds": elapsed_seconds,
                "dp_rank": rank.rank,
                "kv_cache_usage": rank.kv_cache_usage,
                "requests_running": rank.requests_running,
                "requests_waiting": rank.requests_waiting,
            }
            for rank in snapshot.ranks
        ],
        schema=KV_SAMPLE_SCHEMA,
    )
