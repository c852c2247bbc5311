"""Sending the phases of a bench, and keeping every record as it comes."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import orjson

from contract.bench import ANSWERS, WARM_REQUESTS, BenchPhase
from contract.documents import whole_file
from contract.measurement import LoadRecord
from contract.progress import Progress
from contract.records import REQUEST_SCHEMA, RequestRecord, to_batch
from contract.run_directory import MeasurementDirectory
from contract.streams import KV_SAMPLE_SCHEMA, TableStream, stream_to_parquet
from runner.bench.documents import load_record, phase_record
from runner.bench.prepare import PreparedBench
from runner.bench.rows import CsvRows
from runner.bench.stage import SentStage
from runner.bench.tally import Tally
from runner.drivers.native.arrivals import arrival_times
from runner.drivers.native.load import LoadProgress, run_load
from runner.kv_sampling import KvSampler
from runner.workloads.plan import FixedRate, InFlight, Phase

LOGGER = logging.getLogger("hitlab.runner")
SAMPLE_SECONDS = 1.0
FORMAL_REQUESTS = "requests.parquet"


class Sender:
    """Sends phases one after another. `kv_failures` counts samples of the engine's gauges that could not be had."""

    def __init__(
        self,
        prepared: PreparedBench,
        directory: MeasurementDirectory,
        rows: CsvRows | None,
        tally: Tally,
        stop: threading.Event,
        progress: Progress,
        api_key: str,
    ) -> None:
        self._prepared = prepared
        self._directory = directory
        self._rows = rows
        self._tally = tally
        self._stop = stop
        self._progress = progress
        self._api_key = api_key
        self._client = prepared.engine.client
        self._position = 0
        self.kv_failures = 0

    def send(self, phase: Phase, stage: SentStage, stream: TableStream) -> tuple[BenchPhase, LoadRecord]:
        """Send the requests of a phase; returns how that went. A stop ends it early, without an exception."""
        LOGGER.info("%s: %d requests", phase.name, len(phase.requests))
        self._tally.begin(phase.name, len(phase.requests))
        first = len(stage.records)

        def on_record(record: RequestRecord) -> None:
            stage.records.append(record)
            stream.append(to_batch([record]))
            self._tally.add(record)
            if phase.measured and self._rows is not None:
                self._rows.append(record)

        def on_progress(state: LoadProgress) -> None:
            self._tally.in_flight = state.in_flight
            self._progress(phase.name, state.finished + state.failed, len(phase.requests))

        rate = phase.pace if isinstance(phase.pace, FixedRate) else None
        concurrency = phase.pace.limit if isinstance(phase.pace, InFlight) else max(1, len(phase.requests))
        stage.requests += phase.requests
        timeout = self._prepared.settings.general.timeout
        summary = run_load(
            self._prepared.script.outgoing(phase, self._position),
            url=self._client.engine.inference_url,
            concurrency=concurrency,
            on_record=on_record,
            stop=self._stop,
            api_key=self._api_key or None,
            trust=self._client.engine.trust,
            timeout_seconds=timeout,
            on_progress=on_progress,
            arrivals=None if rate is None else arrival_times(rate.per_second),
            start_within_seconds=None if rate is None else rate.seconds,
        )
        self._position += len(phase.requests)
        if phase.pause_after_seconds and not self._stop.is_set():
            self._progress(f"Pause of {phase.pause_after_seconds:g} s", 0, None)
            self._stop.wait(phase.pause_after_seconds)
        return (
            phase_record(phase, stage, summary, stage.records[first:]),
            load_record(summary, concurrency, timeout),
        )

    @contextmanager
    def warm_records(self) -> Iterator[TableStream]:
        """Where the records of the warm phases go."""
        with self._stream(WARM_REQUESTS) as stream:
            yield stream

    @contextmanager
    def measured_records(self) -> Iterator[TableStream]:
        """Where the records of the measured phase go; meanwhile the engine's gauges are sampled."""
        with self._stream(FORMAL_REQUESTS) as stream:
            if self._prepared.engine.scrape is None:
                yield stream
                return
            with (
                TableStream(self._directory.kv_samples_stream, KV_SAMPLE_SCHEMA) as samples,
                KvSampler(self._client, samples, SAMPLE_SECONDS) as sampler,
            ):
                yield stream
            stream_to_parquet(self._directory.kv_samples_stream, self._directory.kv_samples, KV_SAMPLE_SCHEMA)
            self.kv_failures = sampler.failures

    @contextmanager
    def _stream(self, name: str) -> Iterator[TableStream]:
        """Records as they come, in the end a Parquet file. When the block is left by an exception, `close_records`."""
        parquet = self._directory.root / name
        arrows = parquet.with_suffix(".arrows")
        with TableStream(arrows, REQUEST_SCHEMA) as stream:
            yield stream
        stream_to_parquet(arrows, parquet, REQUEST_SCHEMA)

    def close_records(self) -> None:
        """Make Parquet files of the streams that an early end has left, and keep the answers that are there."""
        for name in (WARM_REQUESTS, FORMAL_REQUESTS):
            arrows = (self._directory.root / name).with_suffix(".arrows")
            if arrows.is_file():
                stream_to_parquet(arrows, self._directory.root / name, REQUEST_SCHEMA)
        if self._directory.kv_samples_stream.is_file():
            stream_to_parquet(self._directory.kv_samples_stream, self._directory.kv_samples, KV_SAMPLE_SCHEMA)
        self.keep_answers()

    def keep_answers(self) -> None:
        """Write the answers that are scored, with what they are scored by."""
        samples, answers = self._prepared.plan.samples, self._prepared.script.answers
        if not samples:
            return
        with whole_file(self._directory.root / ANSWERS) as file:
            for request_id, sample in samples.items():
                entry = {
                    "request_id": request_id,
                    "sample_id": sample.sample_id,
                    "answers": list(sample.answers),
                    "answer": answers.get(request_id),
                }
                file.write(orjson.dumps(entry) + b"\n")
