"""measurement.json and events.jsonl of a measurement while it grows."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from contract.command_log import log_lines
from contract.documents import whole_file
from contract.errors import ArtifactError, ExitCode, HitLabError
from contract.events import EventLog, utc_now
from contract.measurement import Finding, Measurement, Phase, PhaseRecord
from contract.measurement_file import write_measurement
from contract.parts import part_hashes
from contract.redaction import Redactor
from contract.run_directory import MeasurementDirectory
from runner.control import Scrape
from runner.run_log import counter_lines
from runner.undisturbed import undisturbed

LOGGER = logging.getLogger("hitlab.runner")
STOPPED = "stopped by the user"


class MeasurementRecord:
    """The measurement while it grows: every step is on disk before the next one begins."""

    def __init__(self, directory: MeasurementDirectory, first: Measurement, redact: Redactor) -> None:
        self._directory = directory
        self._redact = redact
        self.state = first.model_copy(update={"parts": {}})
        self.events = EventLog(directory.events, redact)
        self.events.write("run_started", run_id=first.run_id, stamp=first.stamp)
        self.update()

    def update(self, **fields: Any) -> None:
        self.state = self.state.model_copy(update=fields)
        write_measurement(self._directory.measurement, self._redact.own(self.state))

    def seal_parts(self) -> None:
        """Tie the parts that are there, and will not change any more, to this measurement."""
        self.update(parts=part_hashes(self._directory, self.state.parts or {}))

    def keep_scrape(self, path: Path, scrape: Scrape) -> None:
        with whole_file(path) as file:
            file.write(self._redact.exposition(scrape.text).encode())
        self.seal_parts()
        log_lines(LOGGER, counter_lines(path.stem, scrape.snapshot))

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        begun = PhaseRecord(name=name, started_at=utc_now())
        earlier = self.state.phases
        self.update(phases=[*earlier, begun])
        self.events.write("phase_started", phase=name)
        LOGGER.info("phase %s begins", name)
        started = time.monotonic()
        yield
        ended = begun.model_copy(update={"finished_at": utc_now()})
        self.update(phases=[*earlier, ended])
        self.events.write("phase_finished", phase=name)
        LOGGER.info("phase %s: %.3f s", name, time.monotonic() - started)

    def find(self, finding: Finding | None) -> None:
        if finding is not None:
            self.update(findings=[*self.state.findings, finding])
            self.mention(finding)

    def mention(self, finding: Finding | None) -> None:
        """A warning about watching the run. It is no finding: the verdict has nothing to do with it."""
        if finding is not None:
            self.events.write("warning", **finding.model_dump(mode="json"))
            LOGGER.warning("%s: %s", finding.code, finding.message)

    def finish(self, status: str, error: str | None = None, **fields: Any) -> None:
        with undisturbed():
            try:
                fields["parts"] = part_hashes(self._directory, self.state.parts or {})
                self.update(status=status, error=error, finished_at=utc_now(), **fields)
                self.events.write("run_finished", status=status, error=error)
                LOGGER.info("measurement %s%s", status, f": {error}" if error else "")
            finally:
                self.events.close()

    def interrupt(self, **fields: Any) -> None:
        self._end_early("interrupted", STOPPED, **fields)

    def fail(self, error: BaseException, **fields: Any) -> None:
        """What a run did not survive: a HitLabError in its own words, anything else is a fault of ours."""
        known = isinstance(error, HitLabError)
        self._end_early(
            "failed",
            str(error) if known else f"{type(error).__name__}: {error}",
            error_code=error.exit_code if isinstance(error, HitLabError) else ExitCode.FAULT,
            **fields,
        )

    def _end_early(self, status: str, error: str, **fields: Any) -> None:
        """As `finish`, but for a run that ends by an exception: that one counts, whatever the disk says to this.

        A run that had just finished has, whatever came then.
        """
        if self.state.finished_at is not None:
            return
        try:
            self.finish(status, error, **fields)
        except ArtifactError as second:
            LOGGER.warning("%s", second)
