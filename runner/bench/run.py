"""A bench from its first scrape to its last record, kept in a run directory like every other measurement."""

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from contract.bench import (
    ANSWERS,
    EXPECTED,
    WARM_REQUESTS,
    BenchPhase,
    BenchRecord,
    CacheEvidence,
    LookupCounts,
    Stage,
)
from contract.command_log import command_log
from contract.documents import whole_file, write_document
from contract.errors import HitLabError, Interruption, ServiceError
from contract.manifest import Manifest, seal
from contract.measurement import Finding
from contract.progress import Progress, silent
from contract.records import REQUEST_SCHEMA, RequestRecord, to_batch
from contract.redaction import Redactor
from contract.run_directory import MeasurementDirectory, create_run_directory
from contract.streams import KV_SAMPLE_SCHEMA, TableStream, stream_to_parquet
from runner.bench.documents import bench_manifest, first_measurement, load_record, phase_record
from runner.bench.evidence import cache_evidence, prediction
from runner.bench.expectation import Expected, SentRequest, expectations, modelled_cache
from runner.bench.findings import contamination, differing_lengths, missed_rate, missing_reuse
from runner.bench.lmcache import Lookups
from runner.bench.prepare import PreparedBench
from runner.bench.rows import CsvRows
from runner.bench.stage import SentStage
from runner.bench.tally import Tally
from runner.bench.tokens import EngineTokens
from runner.control import ControlClient, Scrape
from runner.drivers.native.arrivals import arrival_times
from runner.drivers.native.load import LoadProgress, run_load
from runner.kv_sampling import KvSampler
from runner.lock import engine_lock
from runner.measurement_record import MeasurementRecord
from runner.prometheus_target import published
from runner.reset import reset_problem
from runner.settle import Settled, quiet_scrape, settled_scrape
from runner.workloads.plan import FixedRate, InFlight, Phase, Request

LOGGER = logging.getLogger("hitlab.runner")
STOPPED = "stopped by the user"
SAMPLE_SECONDS = 1.0
EXPECTED_SCHEMA = pa.schema(
    [
        pa.field("request_id", pa.string(), nullable=False),
        pa.field("stage", pa.string(), nullable=False),
        pa.field("prompt_tokens", pa.int64(), nullable=False),
        pa.field("least_cached_tokens", pa.int64()),
        pa.field("most_cached_tokens", pa.int64()),
    ]
)


@dataclass(frozen=True)
class BenchRun:
    """Where a bench left its records, and how it ended."""

    manifest: Manifest
    measurement: MeasurementDirectory
    status: Literal["complete", "partial", "interrupted"]


class StoppedBench(Interruption):
    """The user stopped the bench; `run` is what was measured."""

    def __init__(self, run: BenchRun) -> None:
        self.run = run
        super().__init__(f"interrupted; what was measured is kept in {run.measurement.root}")


def run_bench(
    prepared: PreparedBench,
    *,
    api_key: str,
    redact: Redactor,
    csv: Path | None,
    tally: Tally,
    stop: threading.Event,
    progress: Progress = silent,
) -> BenchRun:
    """Send the phases and keep what came of them.

    Args:
        csv: where a row is written for each measured request as it ends.
        tally: kept up to date for a display.

    Raises:
        StoppedBench: `stop` was set, or KeyboardInterrupt came.
        ServiceError, ArtifactError: recorded in measurement.json before it goes on.
    """
    name = f"bench-{prepared.settings.workload.name}"
    output_dir = prepared.settings.general.output_dir.absolute()
    engine = prepared.engine.client.engine
    with engine_lock(engine, output_dir, name):
        directory = create_run_directory(output_dir / name, name)
        with command_log(directory.log("bench"), redact):
            manifest = Manifest(directory, seal(redact.document(bench_manifest(prepared, directory.run_id))))
            write_document(directory.manifest, manifest.document)
            measurement = directory.new_measurement()
            record = MeasurementRecord(
                measurement, first_measurement(prepared, manifest, measurement), redact
            )
            rows = None if csv is None else CsvRows(csv)
            bench = _Bench(prepared, measurement, record, rows, tally, stop, progress, api_key)
            try:
                with published(engine, directory, measurement) as unseen:
                    record.mention(unseen)
                    bench.run()
            except (_Stopped, KeyboardInterrupt) as error:
                bench.close_records()
                record.end_early("interrupted", STOPPED)
                raise StoppedBench(BenchRun(manifest, measurement, "interrupted")) from error
            except HitLabError as error:
                bench.close_records()
                if stop.is_set():
                    record.end_early("interrupted", STOPPED)
                    raise StoppedBench(BenchRun(manifest, measurement, "interrupted")) from error
                record.end_early("failed", str(error))
                raise
            except BaseException as error:
                record.end_early("failed", f"{type(error).__name__}: {error}")
                raise
            finally:
                if rows is not None:
                    rows.close()
            status: Literal["complete", "partial"] = "partial" if bench.failed else "complete"
            record.finish(status)
            return BenchRun(manifest, measurement, status)


class _Stopped(Exception):  # noqa: N818 - a way to end
    """The user asked for the end."""


class _Bench:
    """The state of one bench."""

    def __init__(
        self,
        prepared: PreparedBench,
        directory: MeasurementDirectory,
        record: MeasurementRecord,
        rows: CsvRows | None,
        tally: Tally,
        stop: threading.Event,
        progress: Progress,
        api_key: str,
    ) -> None:
        self._prepared = prepared
        self._directory = directory
        self._record = record
        self._rows = rows
        self._tally = tally
        self._stop = stop
        self._progress = progress
        self._api_key = api_key
        self._client: ControlClient = prepared.engine.client
        self._warm = SentStage("warmup")
        self._measured = SentStage("formal")
        self._position = 0
        self._phases: list[BenchPhase] = []
        self.failed = 0

    # ---- phases ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        prepared, record = self._prepared, self._record
        with record.phase("precheck"):
            for note in prepared.plan.notes:
                record.find(Finding(code="BENCH_NOTE", message=note))
            if prepared.skipped and prepared.plan.meaningless_without_warmup:
                record.find(Finding(code="NO_WARMUP", message=prepared.plan.meaningless_without_warmup))
            before = self._quiet()
        if prepared.settings.general.reset_cache:
            with record.phase("reset"):
                problem = reset_problem(self._client, self._stop)
                if problem is not None:
                    raise ServiceError(f"--reset-cache: {problem}")
        self._go_on()
        begun = self._lookups()
        warm_phases = [phase for phase in prepared.plan.phases if not phase.measured]
        if warm_phases:
            with record.phase("warmup"), self._stream(WARM_REQUESTS) as stream:
                for phase in warm_phases:
                    self._send(phase, self._warm, stream)
            before = self._warm_evidence(before, begun)
            begun = self._lookups()
        with record.phase("baseline"):
            if before is not None:
                record.keep_scrape(self._directory.baseline, before)
        with record.phase("formal"), self._stream("requests.parquet") as stream, self._sampling():
            self._send(prepared.plan.measured, self._measured, stream)
        after = self._settle(before, self._measured)
        with record.phase("after"):
            if after is not None:
                record.keep_scrape(self._directory.after, after)
            found = self._lookups()
            self._keep_answers()
        self._go_on()
        self._judge(before, after, begun, found)

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise _Stopped

    def _warm_evidence(self, before: Scrape | None, begun: Lookups | None) -> Scrape | None:
        """Settle after the warm phases, keep what the cache did, and check that the right cache is at work."""
        after = self._settle(before, self._warm)
        found = self._lookups()
        self._evidence(self._warm, before, after, begun, found)
        if self._prepared.plan.needs_blend and found is not None and begun is not None:
            moved = found.since(begun).moved
            if moved not in (None, "blend"):
                raise ServiceError(
                    f"{self._prepared.settings.workload.name}: LMCache looked the warm phase up as prefixes, so "
                    "CacheBlend is not on and only the first document of a request can be found; turn it on, or set "
                    "--ktp-docs-per-request 1"
                )
        return after

    def _quiet(self) -> Scrape | None:
        if self._prepared.engine.scrape is None:
            return None
        self._progress("Wait for an idle engine", 0, None)
        settled = quiet_scrape(self._client, self._stop)
        self._record.find(settled.finding)
        return settled.scrape

    def _settle(self, before: Scrape | None, stage: SentStage) -> Scrape | None:
        """The counters once they show what was answered; None when there are none."""
        if before is None:
            return None
        self._progress("Wait for the counters", 0, None)
        context = self._record.phase("settle") if stage is self._measured else nullcontext()
        with context:
            try:
                settled: Settled = settled_scrape(self._client, before, stage.expected_queries, self._stop)
            except ServiceError as error:
                message = f"no metrics after the load, so its counters are not known: {error}"
                self._record.find(Finding(code="AFTER_SCRAPE_MISSING", message=message))
                return None
            self._record.find(settled.finding)
            if stage is self._measured:
                self._record.update(settled=settled.settled)
        return settled.scrape

    def _lookups(self) -> Lookups | None:
        if self._prepared.lmcache is None:
            return None
        try:
            return self._prepared.lmcache.lookups()
        except ServiceError as error:
            LOGGER.warning("LMCache's counters: %s", error)
            return None

    # ---- sending ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _stream(self, name: str) -> Iterator[TableStream]:
        """Records as they come, in the end a Parquet file. When the block is left by an exception, `close_records`."""
        parquet = self._directory.root / name
        arrows = parquet.with_suffix(".arrows")
        with TableStream(arrows, REQUEST_SCHEMA) as stream:
            yield stream
        stream_to_parquet(arrows, parquet, REQUEST_SCHEMA)

    def close_records(self) -> None:
        """Make Parquet files of the streams that an early end has left."""
        for name in (WARM_REQUESTS, "requests.parquet"):
            arrows = (self._directory.root / name).with_suffix(".arrows")
            if arrows.is_file():
                stream_to_parquet(arrows, self._directory.root / name, REQUEST_SCHEMA)
        if self._directory.kv_samples_stream.is_file():
            stream_to_parquet(self._directory.kv_samples_stream, self._directory.kv_samples, KV_SAMPLE_SCHEMA)
        self._keep_answers()

    @contextmanager
    def _sampling(self) -> Iterator[None]:
        if self._prepared.engine.scrape is None:
            yield
            return
        with (
            TableStream(self._directory.kv_samples_stream, KV_SAMPLE_SCHEMA) as samples,
            KvSampler(self._client, samples, SAMPLE_SECONDS) as sampler,
        ):
            yield
        stream_to_parquet(self._directory.kv_samples_stream, self._directory.kv_samples, KV_SAMPLE_SCHEMA)
        self._record.update(kv_polling_failures=sampler.failures)

    def _send(self, phase: Phase, stage: SentStage, stream: TableStream) -> None:
        self._go_on()
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
            timeout_seconds=timeout,
            on_progress=on_progress,
            arrivals=None if rate is None else arrival_times(rate.per_second),
            start_within_seconds=None if rate is None else rate.seconds,
        )
        self._position += len(phase.requests)
        self._phases.append(phase_record(phase, stage, summary, stage.records[first:]))
        self._update_bench()
        failed = [record for record in stage.records[first:] if record.error_kind not in (None, "aborted")]
        if failed and not phase.measured:
            # Unlike a measured one this is no result, so it is said at once and does not count as failed.
            message = f"{len(failed)} of {len(phase.requests)} requests of the phase {phase.name!r} failed: "
            self._record.find(
                Finding(code="WARM_REQUESTS_FAILED", message=message + str(failed[0].error_text))
            )
        if phase.measured:
            self.failed = summary.failed
            self._record.update(load=load_record(summary, concurrency, timeout))
        if phase.pause_after_seconds and not self._stop.is_set():
            self._progress(f"Pause of {phase.pause_after_seconds:g} s", 0, None)
            self._stop.wait(phase.pause_after_seconds)
        self._go_on()

    def _keep_answers(self) -> None:
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

    # ---- what the cache did ----------------------------------------------------------------------------------------

    def _update_bench(self, *evidence: CacheEvidence) -> None:
        state = self._record.state
        bench: BenchRecord = getattr(state, "bench", BenchRecord())
        cache = {entry.stage: entry for entry in (*bench.cache, *evidence)}
        self._record.update(bench=BenchRecord(phases=self._phases, cache=list(cache.values())))

    def _evidence(
        self,
        stage: SentStage,
        before: Scrape | None,
        after: Scrape | None,
        begun: Lookups | None,
        found: Lookups | None,
        **predicted: Any,
    ) -> CacheEvidence:
        evidence = cache_evidence(stage, before, after, self._prepared.engine.no_metrics)
        if self._prepared.lmcache is not None and begun is not None and found is not None:
            moved = found.since(begun)
            counts = {
                family: LookupCounts(requested_tokens=tokens, hit_tokens=moved.hit.get(family, 0))
                for family, tokens in moved.requested.items()
            }
            evidence = evidence.model_copy(update={"lmcache": counts})
        evidence = evidence.model_copy(update=predicted)
        self._update_bench(evidence)
        return evidence

    def _judge(
        self, before: Scrape | None, after: Scrape | None, begun: Lookups | None, found: Lookups | None
    ) -> None:
        """Compare with the plan and the block model, and say what does not fit."""
        measured = self._evidence(self._measured, before, after, begun, found)
        expected, reason = self._expect()
        self._record.find(differing_lengths([*self._warm.answered, *self._measured.answered], expected))
        stages = [(self._warm, self._stored_evidence("warmup")), (self._measured, measured)]
        for stage, evidence in stages:
            if evidence is None:
                continue
            updated = evidence.model_copy(update=prediction(stage, expected, reason, evidence))
            self._update_bench(updated)
            self._record.find(contamination(updated))
            if stage is self._measured and self._prepared.reuse_expected and not self._prepared.skipped:
                self._record.find(missing_reuse(updated))
        for phase in self._phases:
            self._record.find(missed_rate(phase))

    def _stored_evidence(self, stage: Stage) -> CacheEvidence | None:
        bench: BenchRecord = getattr(self._record.state, "bench", BenchRecord())
        return next((entry for entry in bench.cache if entry.stage == stage), None)

    def _expect(self) -> tuple[dict[str, Expected], str | None]:
        """What the model expects of every answered request, and why it expects nothing."""
        tokens = self._prepared.tokens
        if tokens is None:
            return {}, "the engine has no /tokenize, so the tokens of whole prompts are not known here"
        cache = modelled_cache(self._prepared.engine.ranks, self._prepared.engine.cache)
        stages = (self._warm, self._measured)
        total = sum(len(stage.answered) for stage in stages)
        sent = self._sent(tokens, stages, total)
        try:
            if isinstance(cache, str):
                return {one.request_id: Expected(len(one.prompt), None, None) for one in sent}, cache
            expected = dict(expectations(sent, cache))
        except ServiceError as error:
            return {}, f"the engine does not tokenize any more ({error})"
        failed = sum(len(stage.records) - len(stage.answered) for stage in stages)
        caveat = f"{failed} requests failed; what they left in the cache is not known" if failed else None
        rows = [
            {
                "request_id": record.request_id,
                "stage": stage.name,
                "prompt_tokens": expected[record.request_id].prompt_tokens,
                "least_cached_tokens": expected[record.request_id].least,
                "most_cached_tokens": expected[record.request_id].most,
            }
            for stage in stages
            for record in stage.answered
        ]
        with whole_file(self._directory.root / EXPECTED) as file:
            pq.write_table(pa.Table.from_pylist(rows, schema=EXPECTED_SCHEMA), file)
        return expected, caveat

    def _sent(self, tokens: EngineTokens, stages: Iterable[SentStage], total: int) -> Iterator[SentRequest]:
        """Answered requests in the order of their starts, with the tokens that the engine made of them."""
        script, kwargs = self._prepared.script, self._prepared.plan.template_kwargs
        by_id = {request.request_id: request for stage in stages for request in stage.requests}
        ordered = sorted(
            chain.from_iterable(s.answered for s in stages), key=lambda record: record.started_ns
        )
        following = _followers(ordered, by_id)
        ahead: dict[str, Any] = {}

        def prompt(request_id: str) -> Any:
            if request_id not in ahead:
                ahead[request_id] = tokens.conversation(script.sent(by_id[request_id]), kwargs)
            return ahead[request_id]

        for number, record in enumerate(ordered):
            self._go_on()
            self._progress("Compare with the block model", number, total)
            ids = prompt(record.request_id)
            follower = following.get(record.request_id)
            yield SentRequest(
                record.request_id,
                ids,
                record.completion_tokens or 1,
                None if follower is None else prompt(follower),
            )
            del ahead[record.request_id]


def _followers(ordered: list[RequestRecord], by_id: dict[str, Request]) -> dict[str, str]:
    """Request id -> the next request of its session, which quotes its answer; only of those that are remembered."""
    following: dict[str, str] = {}
    last: dict[str, str] = {}
    for record in ordered:
        request = by_id[record.request_id]
        if request.session is None:
            continue
        if request.session in last:
            following[last[request.session]] = record.request_id
        if request.remember:
            last[request.session] = record.request_id
    return following
