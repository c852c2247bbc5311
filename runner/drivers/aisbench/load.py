"""The formal load, sent by AISBench and recorded as the native driver records it."""

import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from contract.documents import writing
from contract.errors import DriverError
from contract.files import expanded
from contract.foreign_text import presentable, visible
from contract.manifest import Manifest
from contract.measurement import AisbenchRecord, Finding, LoadRecord
from contract.progress import Progress
from contract.records import RequestRecord
from contract.redaction import Redactor
from contract.run_directory import MeasurementDirectory
from contract.scenario import Scenario
from prompts.tokenizer import Tokenizer
from runner.drivers.aisbench.attempts import AttemptReader
from runner.drivers.aisbench.environment import aisbench_python
from runner.drivers.aisbench.job import aisbench_job
from runner.drivers.aisbench.process import POLL_SECONDS, AisbenchProcess, without_colours
from runner.drivers.aisbench.results import Results, collect, new_results_folder
from runner.drivers.aisbench.shape import load_shape
from runner.drivers.outcome import LoadOutcome
from runner.engines.engine import Engine

DEATH_SECONDS = 2.0
FLUSH_SECONDS = 0.5
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt)\b")


@dataclass
class _Rows:
    """Requests by how their latest attempt ended."""

    attempts: int = 0
    last: dict[int, str | None] = field(default_factory=dict)

    def add(self, record: RequestRecord) -> None:
        self.attempts += 1
        self.last[record.position] = record.error_kind

    def count(self, kind: str | None) -> int:
        return sum(error == kind for error in self.last.values())


class AisbenchLoad:
    """An AISBench that is being started. `wait_until_ready` before anything is sent, then `run`, once."""

    def __init__(
        self,
        process: AisbenchProcess,
        scenario: Scenario,
        manifest: Manifest,
        directory: MeasurementDirectory,
        records: Path,
        redact: Redactor,
    ) -> None:
        self._process = process
        self._scenario = scenario
        self._rows_planned = manifest.request_count
        self._lanes = manifest.mode == "text" and manifest.document["prefix_cache"]["mode"] == "cold"
        self._directory = directory
        self._records = records
        self._redact = redact
        self._ready: dict[str, Any] = {}

    @property
    def concurrency(self) -> int:
        """What AISBench was told, by the scenario or by its own template, once it is ready."""
        return int(self._ready["batch_size"])

    def wait_until_ready(self, stop: threading.Event) -> None:
        """Return once AISBench has all it needs, or `stop` is set. Raises DriverError: it lacks something."""
        self._ready = self._process.ready(stop) or {}

    def run(
        self,
        on_record: Callable[[RequestRecord], None],
        flush: Callable[[], None],
        stop: threading.Event,
        progress: Progress,
    ) -> LoadOutcome:
        """Send everything. `on_record` gets every attempt as it ends; `flush` is called twice a second.

        Setting `stop` ends AISBench at once; what was in flight is recorded as aborted.
        """
        ready, process = self._ready, self._process
        folder = new_results_folder(Path(ready["work_dir"]), datetime.now())
        reader, rows = AttemptReader(self._records, self._redact), _Rows()

        def take(records: Iterator[RequestRecord]) -> None:
            for record in records:
                rows.add(record)
                on_record(record)

        failure: str | None = None
        flushed = time.monotonic()
        dead_since: float | None = None
        process.go(folder)
        while process.exit_code() is None and not stop.is_set() and failure is None:
            stop.wait(POLL_SECONDS)
            take(reader.read())
            progress("Run requests", len(rows.last), self._rows_planned)
            if time.monotonic() - flushed > FLUSH_SECONDS:
                flush()
                flushed = time.monotonic()
            # Another process of the same load would wait for ever for the turns of one that died.
            dead_since = (dead_since or time.monotonic()) if reader.dead() else None
            if dead_since is not None and time.monotonic() - dead_since > DEATH_SECONDS:
                failure = "one of its processes died"
        code = process.exit_code()
        process.end()
        ended_ns = time.perf_counter_ns()
        take(reader.read())
        if stop.is_set():
            take(reader.unfinished("aborted", "stopped while in flight", ended_ns))
        else:
            take(reader.unfinished("reset", "AISBench ended before the answer", ended_ns))
        flush()
        progress("Run requests", len(rows.last), self._rows_planned)

        last_words = self._keep_log(folder) or process.last_words()
        results, missing = self._results(folder, stop)
        if failure is None and not stop.is_set():
            failure = _failure(reader, code, missing, len(rows.last), self._rows_planned, last_words)
        return LoadOutcome(
            load=self._load_record(reader, rows),
            aisbench=self._record(folder, code, results),
            findings=_disagreement(results, rows),
            failure=None if failure is None else self._driver_error(failure, rows),
        )

    def _keep_log(self, folder: Path) -> str | None:
        """AISBench's LocalRunner, where a template asks for it, lets a process send that writes a log of its own.

        Returns the exception that it ended with; AISBench goes on without a word about it.
        """
        log = folder / "logs" / "infer" / self._ready["model_abbr"] / f"{self._ready['dataset_abbr']}.out"
        if not log.is_file():
            return None
        text = without_colours(log.read_text(encoding="utf-8", errors="replace"))
        text = visible(self._redact(text))
        with writing(self._directory.aisbench_log), self._directory.aisbench_log.open("a") as kept:
            kept.write(f"\n=== the process that sent the requests ===\n{text}")
        exceptions = [line for line in text.splitlines() if _EXCEPTION.match(line)]
        return presentable(exceptions[-1]) if exceptions else None

    def _results(self, folder: Path, stop: threading.Event) -> tuple[Results | None, str | None]:
        if stop.is_set():
            return None, None
        names = {name: self._ready[name] for name in ("model_abbr", "dataset_abbr")}
        try:
            return collect(folder, **names, into=self._directory.aisbench), None
        except DriverError as error:
            return None, str(error)

    def _load_record(self, reader: AttemptReader, rows: _Rows) -> LoadRecord:
        ready = self._ready
        shape = load_shape(reader.spans, slots=ready["batch_size"], rows=self._rows_planned)
        finished = rows.count(None)
        return LoadRecord(
            driver="aisbench",
            concurrency=ready["batch_size"],
            stream=ready["stream"],
            retries=ready["attempts"] - 1,
            timeout_seconds=self._scenario.request_timeout_seconds,
            started=len(rows.last),
            finished=finished,
            failed=len(rows.last) - finished,
            aborted=rows.count("aborted"),
            retried=rows.attempts - len(rows.last),
            wall_seconds=shape.wall_seconds,
            mean_in_flight=shape.mean_in_flight,
            max_in_flight=shape.max_in_flight,
            # With a request rate slots are empty for that reason as well, and the two cannot be told apart.
            lane_wait_seconds=None if ready["request_rate"] else shape.empty_seconds if self._lanes else 0.0,
            mean_while_waiting=shape.mean_while_waiting,
        )

    def _record(self, folder: Path, code: int | None, results: Results | None) -> AisbenchRecord:
        return AisbenchRecord(
            version=self._ready["aisbench_version"],
            results=str(folder),
            csv=None if results is None else str(results.csv.relative_to(self._directory.root)),
            summary=None if results is None else str(results.summary.relative_to(self._directory.root)),
            config=str(self._directory.aisbench_config.relative_to(self._directory.root)),
            log=str(self._directory.aisbench_log.relative_to(self._directory.root)),
            exit_code=code,
            total_requests=None if results is None else results.total,
            failed_requests=None if results is None else results.failed,
        )

    def _driver_error(self, reason: str, rows: _Rows) -> DriverError:
        return DriverError(
            f"AISBench did not get through: {reason}; {len(rows.last)} of {self._rows_planned} requests were sent, "
            f"{rows.count(None)} answered; they are kept in {self._directory.root}, its log is "
            f"{self._directory.aisbench_log}"
        )


def _failure(
    reader: AttemptReader, code: int | None, missing: str | None, sent: int, planned: int, last_words: str
) -> str | None:
    """Why AISBench cannot be said to have done its work; the earliest reason."""
    if reader.errors:
        return reader.errors[0]
    if code != 0:
        return f"it ended with exit code {code} ({last_words})"
    if sent < planned:
        return "it ended before the last request"
    return missing


def _disagreement(results: Results | None, rows: _Rows) -> tuple[Finding, ...]:
    """AISBench and the records count the same requests."""
    failed = len(rows.last) - rows.count(None)
    if results is None or (results.failed == failed and results.total == len(rows.last)):
        return ()
    counted, recorded = f"{results.failed} failed of {results.total}", f"{failed} of {len(rows.last)}"
    message = f"AISBench counts {counted} requests, the records {recorded}"
    return (Finding(code="AISBENCH_COUNTS_DIFFER", message=message),)


@contextmanager
def aisbench_load(
    scenario: Scenario,
    scenario_folder: Path,
    manifest: Manifest,
    tokenizer: Tokenizer,
    engine: Engine,
    directory: MeasurementDirectory,
    *,
    api_key: str,
    redact: Redactor,
    say: Callable[[str], None],
) -> Iterator[AisbenchLoad]:
    """AISBench, being started. Leaving the block ends it and removes what it leaves lying about.

    Raises DriverError: AISBench is not installed, or would send another key.
    """
    if not api_key.isascii():
        raise DriverError(
            "AISBench's HTTP client sends a key with other characters than ASCII differently; use --driver native"
        )
    python = aisbench_python()
    with writing(directory.aisbench):
        directory.aisbench.mkdir()
    with tempfile.TemporaryDirectory(prefix="hitlab-aisbench-") as name:
        scratch = Path(name)
        records = scratch / "records"
        records.mkdir()
        job = aisbench_job(
            scenario,
            scenario_folder,
            manifest,
            engine,
            tokenizer=tokenizer_folder(tokenizer, directory.aisbench / "tokenizer"),
            config=directory.aisbench_config,
            scratch=scratch,
        )
        with AisbenchProcess(
            python,
            job,
            scratch=scratch,
            records=records,
            log=directory.aisbench_log,
            api_key=api_key,
            redact=redact,
            say=say,
        ) as process:
            yield AisbenchLoad(process, scenario, manifest, directory, records, redact)


def tokenizer_folder(tokenizer: Tokenizer, otherwise: Path) -> Path:
    """A folder that AISBench's transformers can read: the scenario's own, else one written to `otherwise`.

    AISBench loads a tokenizer whether it needs one or not, and takes neither hub ids nor single files.
    """
    own = expanded(tokenizer.path)
    if own.is_dir():
        return own.resolve()
    with writing(otherwise):
        try:
            tokenizer.save(otherwise)
        except OSError:
            shutil.rmtree(otherwise, ignore_errors=True)
            raise
    return otherwise
