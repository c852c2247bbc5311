"""A bench from its first scrape to its last record, kept in a run directory like every other measurement."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from contract.bench import (
    EXPECTED,
    BenchPhase,
    BenchRecord,
    CacheEvidence,
    LookupCounts,
    Stage,
)
from contract.command_log import command_log
from contract.documents import write_document
from contract.errors import HitLabError, Interruption, NotThisEngineError, ServiceError
from contract.manifest import Manifest, seal
from contract.measurement import Finding
from contract.progress import Progress, silent
from contract.redaction import Redactor
from contract.run_directory import MeasurementDirectory, create_run_directory
from contract.streams import TableStream
from runner.bench.documents import bench_manifest, first_measurement, redacted_manifest
from runner.bench.evidence import cache_evidence, prediction
from runner.bench.findings import (
    contamination,
    differing_lengths,
    missed_rate,
    missing_reuse,
    not_measurable,
)
from runner.bench.hindsight import expect, write_expected
from runner.bench.lmcache import Lookups
from runner.bench.prepare import PreparedBench
from runner.bench.rows import CsvRows
from runner.bench.sending import Sender
from runner.bench.stage import SentStage
from runner.bench.tally import Tally
from runner.control import ControlClient, Scrape
from runner.lock import engine_lock
from runner.measurement_record import MeasurementRecord
from runner.page_identity import foreign_page
from runner.prometheus_target import published
from runner.reset import reset_problem
from runner.settle import Settled, quiet_scrape, settled_scrape
from runner.undisturbed import last_words, undisturbed
from runner.workloads.plan import Phase

LOGGER = logging.getLogger("hitlab.runner")


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
    with engine_lock(engine, output_dir, name), _rows(csv) as rows:
        directory = create_run_directory(output_dir / name, name)
        with command_log(directory.log("bench"), redact):
            manifest = Manifest(
                directory, seal(redacted_manifest(bench_manifest(prepared, directory.run_id), redact))
            )
            write_document(directory.manifest, manifest.document)
            measurement = directory.new_measurement()
            bench: _Bench | None = None
            try:
                with undisturbed():  # from its first file on, an end is written into it
                    first = first_measurement(prepared, manifest, measurement)
                    record = MeasurementRecord(measurement, first, redact)
                    bench = _Bench(prepared, measurement, record, rows, tally, stop, progress, api_key)
                with published(engine, directory, measurement) as unseen:
                    record.mention(unseen)
                    bench.run()
            except (_Stopped, KeyboardInterrupt) as error:
                if bench is None:
                    raise
                with last_words():
                    bench.end_early()
                    record.interrupt()
                raise StoppedBench(BenchRun(manifest, measurement, "interrupted")) from error
            except HitLabError as error:
                if bench is None:
                    raise
                if stop.is_set():
                    with last_words():
                        bench.end_early()
                        record.interrupt()
                    raise StoppedBench(BenchRun(manifest, measurement, "interrupted")) from error
                bench.end_early()
                record.fail(error)
                raise
            except BaseException as error:
                if bench is not None:
                    record.fail(error)
                raise
            status: Literal["complete", "partial"] = "partial" if bench.failed else "complete"
            record.finish(status)
            return BenchRun(manifest, measurement, status)


@contextmanager
def _rows(path: Path | None) -> Iterator[CsvRows | None]:
    if path is None:
        yield None
        return
    rows = CsvRows(path)
    try:
        yield rows
    finally:
        rows.close()


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
        self._stop = stop
        self._progress = progress
        self._sender = Sender(prepared, directory, rows, tally, stop, progress, api_key)
        self._client: ControlClient = prepared.engine.client
        self._warm = SentStage("warmup")
        self._measured = SentStage("formal")
        self._phases: list[BenchPhase] = []
        self._no_metrics = prepared.engine.no_metrics
        self.failed = 0

    # ---- phases ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        prepared, record = self._prepared, self._record
        with record.phase("precheck"):
            if prepared.engine.check is not None:
                record.update(preflight=[prepared.engine.check])
            for finding in prepared.engine.findings:
                record.find(finding)
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
            with record.phase("warmup"), self._sender.warm_records() as stream:
                for phase in warm_phases:
                    self._send(phase, self._warm, stream)
            before = self._warm_evidence(before, begun)
            begun = self._lookups()
        with record.phase("baseline"):
            if before is not None:
                record.keep_scrape(self._directory.baseline, before)
        with record.phase("formal"), self._sender.measured_records() as stream:
            self._send(prepared.plan.measured, self._measured, stream)
        record.update(kv_polling_failures=self._sender.kv_failures)
        after = self._settle(before, self._measured)
        with record.phase("after"):
            if after is not None:
                record.keep_scrape(self._directory.after, after)
            found = self._lookups()
            self._sender.keep_answers()
        self._go_on()
        self._judge(before, after, begun, found)

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise _Stopped

    def _step(self, done: int, total: int) -> None:
        self._go_on()
        self._progress("Compare with the block model", done, total)

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
        try:
            settled = quiet_scrape(self._client, self._stop)
        except NotThisEngineError as error:
            self._no_metrics = str(error)
            for finding in foreign_page(error):
                self._record.find(finding)
            return None
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
                settled: Settled = settled_scrape(self._client, before, self._waited_for(stage), self._stop)
            except ServiceError as error:
                message = f"no metrics after the load, so its counters are not known: {error}"
                missing = Finding(code="AFTER_SCRAPE_MISSING", message=message)
                for finding in foreign_page(error) or (missing,):
                    self._record.find(finding)
                self._no_metrics = str(error)
                return None
            self._record.find(settled.finding)
            if stage is self._measured:
                self._record.update(settled=settled.settled)
        return settled.scrape

    def _waited_for(self, stage: SentStage) -> int | None:
        """Counters that are known to stand still are not waited for."""
        return stage.expected_queries if self._prepared.engine.not_counting is None else None

    def _lookups(self) -> Lookups | None:
        if self._prepared.lmcache is None:
            return None
        try:
            return self._prepared.lmcache.lookups()
        except ServiceError as error:
            LOGGER.warning("LMCache's counters: %s", error)
            return None

    def _send(self, phase: Phase, stage: SentStage, stream: TableStream) -> None:
        self._go_on()
        first = len(stage.records)
        sent, load = self._sender.send(phase, stage, stream)
        self._phases.append(sent)
        self._update_bench()
        failed = [record for record in stage.records[first:] if record.error_kind not in (None, "aborted")]
        self.failed += sent.failed
        if phase.measured:
            self._record.update(load=load)
        elif failed:
            # Unlike a measured one this is no row of the result, so it is said at once.
            message = f"{len(failed)} of {len(phase.requests)} requests of the phase {phase.name!r} failed: "
            self._record.find(
                Finding(code="WARM_REQUESTS_FAILED", message=message + str(failed[0].error_text))
            )
        self._go_on()

    def end_early(self) -> None:
        """Keep what there is."""
        self._sender.close_records()
        if self._measured.records and self._stored_evidence("formal") is None:
            self._evidence(self._measured, None, None, None, None)

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
    ) -> CacheEvidence:
        evidence = cache_evidence(
            stage, before, after, self._no_metrics, not_counting=self._prepared.engine.not_counting
        )
        if self._prepared.lmcache is not None and begun is not None and found is not None:
            moved = found.since(begun)
            counts = {
                family: LookupCounts(requested_tokens=tokens, hit_tokens=moved.hit.get(family, 0))
                for family, tokens in moved.requested.items()
            }
            evidence = evidence.model_copy(update={"lmcache": counts})
        self._update_bench(evidence)
        return evidence

    def _judge(
        self, before: Scrape | None, after: Scrape | None, begun: Lookups | None, found: Lookups | None
    ) -> None:
        """Compare with the plan and the block model, and say what does not fit."""
        measured = self._evidence(self._measured, before, after, begun, found)
        stages = (self._warm, self._measured)
        expected, reason = expect(self._prepared, stages, self._step, self._no_metrics)
        write_expected(self._directory.root / EXPECTED, expected, stages)
        self._record.find(differing_lengths([*self._warm.answered, *self._measured.answered], expected))
        for stage, evidence in ((self._warm, self._stored_evidence("warmup")), (self._measured, measured)):
            if evidence is None:
                continue
            updated = evidence.model_copy(update=prediction(stage, expected, reason, evidence))
            self._update_bench(updated)
            self._record.find(contamination(updated))
            if stage is self._measured:
                self._find_in_measured(updated)
        for phase in self._phases:
            self._record.find(missed_rate(phase))

    def _find_in_measured(self, evidence: CacheEvidence) -> None:
        cache = self._prepared.engine.cache
        caching = None if cache is None else cache.enable_prefix_caching
        if self._no_metrics is None:  # else a finding has said it
            self._record.find(not_measurable(evidence, caching=caching))
        if self._prepared.reuse_expected and not self._prepared.skipped:
            self._record.find(missing_reuse(evidence, caching=caching))

    def _stored_evidence(self, stage: Stage) -> CacheEvidence | None:
        bench: BenchRecord = getattr(self._record.state, "bench", BenchRecord())
        return next((entry for entry in bench.cache if entry.stage == stage), None)
