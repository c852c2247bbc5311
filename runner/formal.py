"""The formal phase: the prepared requests, sent and recorded."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from contract.files import open_file
from contract.manifest import Manifest
from contract.measurement import LoadRecord
from contract.multimodal import image_dataset
from contract.progress import Progress
from contract.records import REQUEST_SCHEMA, RequestRecord, to_batch
from contract.run_directory import MeasurementDirectory
from contract.scenario import Scenario
from contract.scenario.model import AisbenchModel
from contract.streams import KV_SAMPLE_SCHEMA, TableStream, stream_to_parquet
from runner.control import ControlClient
from runner.drivers.aisbench.load import AisbenchLoad
from runner.drivers.native.lanes import OutgoingRequest
from runner.drivers.native.load import LoadProgress, run_load
from runner.drivers.outcome import LoadOutcome
from runner.kv_sampling import KvSampler
from runner.multimodal.bodies import outgoing_image_requests
from runner.request_bodies import outgoing_requests

FLUSH_RECORDS = 1000


@dataclass
class _Recorder:
    """Writes records in batches, and adds up what settling needs."""

    stream: TableStream
    prompt_tokens: int = 0
    unknown: int = 0

    def __post_init__(self) -> None:
        self._waiting: list[RequestRecord] = []

    def __call__(self, record: RequestRecord) -> None:
        self._waiting.append(record)
        if record.prompt_tokens is None:
            self.unknown += 1
        else:
            self.prompt_tokens += record.prompt_tokens
        if len(self._waiting) >= FLUSH_RECORDS:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            self.stream.append(to_batch(self._waiting))
            self._waiting.clear()


@dataclass(frozen=True)
class FormalPhase:
    """`expected_queries`: prompt tokens of all answers; None when an attempt left them unknown."""

    outcome: LoadOutcome
    expected_queries: int | None
    kv_polling_failures: int


def run_formal_phase(
    client: ControlClient,
    scenario: Scenario,
    manifest: Manifest,
    directory: MeasurementDirectory,
    *,
    api_key: str,
    stop: threading.Event,
    progress: Progress,
    aisbench: AisbenchLoad | None = None,
) -> FormalPhase:
    """Send all requests: with `aisbench`, which is ready, or with the native driver.

    Records and KV samples are Parquet when this returns. When it raises they stay streams, which `analyze` reads too.
    """
    with (
        TableStream(directory.requests_stream, REQUEST_SCHEMA) as requests,
        TableStream(directory.kv_samples_stream, KV_SAMPLE_SCHEMA) as samples,
        KvSampler(client, samples, scenario.service.poll_interval_seconds) as sampler,
    ):
        recorder = _Recorder(requests)
        # Twice a second it is flushed: no more than that is lost when this process is killed.
        try:
            if aisbench is None:
                load = _native_load(client, scenario, manifest, recorder, api_key, stop, progress)
                outcome = LoadOutcome(load)
            else:
                outcome = aisbench.run(recorder, recorder.flush, stop, progress)
        finally:
            recorder.flush()
    stream_to_parquet(directory.requests_stream, directory.requests, REQUEST_SCHEMA)
    stream_to_parquet(directory.kv_samples_stream, directory.kv_samples, KV_SAMPLE_SCHEMA)
    return FormalPhase(
        outcome=outcome,
        expected_queries=None if recorder.unknown else recorder.prompt_tokens,
        kv_polling_failures=sampler.failures,
    )


def _requests(
    manifest: Manifest, files: ExitStack, served: str, model: AisbenchModel
) -> Iterator[OutgoingRequest]:
    """The prepared requests; the file that they are read from stays open as long as `files`."""
    options: dict[str, Any] = {
        "model": served,
        "stream": model.stream,
        "generation_kwargs": model.generation_kwargs,
    }
    if manifest.mode == "mm":
        dataset = image_dataset(manifest)
        return outgoing_image_requests(files.enter_context(open_file(dataset.requests)), dataset, **options)
    return outgoing_requests(files.enter_context(open_file(manifest.directory.full)), **options)


def _native_load(
    client: ControlClient,
    scenario: Scenario,
    manifest: Manifest,
    recorder: _Recorder,
    api_key: str,
    stop: threading.Event,
    progress: Progress,
) -> LoadRecord:
    model = scenario.aisbench.model

    def on_progress(state: LoadProgress) -> None:
        recorder.flush()
        progress("Run requests", state.finished + state.failed, manifest.request_count)

    with ExitStack() as files:
        summary = run_load(
            _requests(manifest, files, client.engine.model, model),
            url=client.engine.inference_url,
            concurrency=scenario.concurrency,
            on_record=recorder,
            stop=stop,
            api_key=api_key or None,
            trust=client.engine.trust,
            timeout_seconds=scenario.request_timeout_seconds,
            retries=scenario.retries,
            on_progress=on_progress,
        )
    return LoadRecord(
        driver="native",
        concurrency=scenario.concurrency,
        stream=model.stream,
        retries=scenario.retries,
        timeout_seconds=scenario.request_timeout_seconds,
        started=summary.started,
        finished=summary.finished,
        failed=summary.failed,
        aborted=summary.aborted,
        retried=summary.retried,
        wall_seconds=summary.wall_seconds,
        mean_in_flight=summary.mean_in_flight,
        max_in_flight=summary.max_in_flight,
        lane_wait_seconds=summary.lane_wait_seconds,
        mean_while_waiting=summary.mean_while_waiting,
    )
