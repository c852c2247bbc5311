"""The loop: look at all runs, analyse those that are over, and keep Grafana and the metrics up to date."""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from analyzer.analyze import analyze_measurement
from analyzer.watch.annotations import Annotation, annotations_of
from analyzer.watch.availability import Backoff, GrafanaUnavailableError
from analyzer.watch.exposition import metrics_text, service_gauges
from analyzer.watch.results import RunResult, run_result
from analyzer.watch.runs import FoundMeasurement, RunEvents, find_measurements
from analyzer.watch.targets import remove_old_targets
from analyzer.watch.verdict import verdict_of
from analyzer.watch.web import report_path
from contract.documents import read_document
from contract.errors import HitLabError
from contract.kinds import is_bench
from contract.manifest import Manifest, read_measured_manifest

if TYPE_CHECKING:
    from analyzer.watch.grafana import Annotator  # its library is an extra

LOGGER = logging.getLogger("hitlab.watch")

PASS_SECONDS = 1.0
KEPT_RESULTS = 50
"""How many of the newest measurements are exposed: each has some dozens of series."""
ANALYSIS_GRACE_SECONDS = 3.0
"""`hitlab run` analyses by itself; only what nobody has analysed by then is analysed here."""
LAST_SCRAPES_SECONDS = 30.0
"""How long after its run an engine stays a target of Prometheus."""
RECHECK_SECONDS = 60.0
"""A post whose answer was lost may still arrive; so much later doubles are looked for."""

Signature = tuple[tuple[int, int] | None, ...]


@dataclass
class _Followed:
    """What the service keeps of one measurement. Nothing of it has to survive a restart."""

    found: FoundMeasurement
    events: RunEvents
    signature: Signature | None = None
    result: RunResult | None = None
    verdict: str | None = None
    wanted: tuple[Annotation, ...] = ()
    confirmed: tuple[Annotation, ...] | None = None
    recheck_at: float | None = None
    failure: str | None = None
    problem: str | None = None


class Watch:
    """Follows every run under a folder of artifacts.

    Args:
        annotator: None: there is no Grafana.
        public_url: where browsers find the reports; None: no links.
    """

    def __init__(self, artifacts: Path, annotator: "Annotator | None", public_url: str | None) -> None:
        self._artifacts = artifacts
        self._annotator = annotator
        self._public_url = public_url
        self._followed: dict[FoundMeasurement, _Followed] = {}
        self._manifests: dict[Path, tuple[Signature, Manifest]] = {}
        self._backoff = Backoff()
        self._grafana_up: bool | None = None
        self._last_pass = time.time()
        self.trouble: str | None = None
        """Why annotations are not all in Grafana, as of the last pass."""

    def follow(self, stop: threading.Event) -> None:
        """Pass after pass until `stop` is set."""
        while not stop.is_set():
            self.one_pass()
            stop.wait(PASS_SECONDS)

    def one_pass(self, *, patient: bool = True) -> None:
        """Look at everything once.

        Args:
            patient: leave `hitlab run` some time for its own analysis.
        """
        found = find_measurements(self._artifacts)
        self._followed = {
            item: self._followed.get(item) or _Followed(item, RunEvents(item.measurement.events))
            for item in found
        }
        now = time.time()
        newest = set(found[:KEPT_RESULTS])
        for item, followed in self._followed.items():
            try:
                self._look_at(followed, now, exposed=item in newest, patient=patient)
            except HitLabError as error:
                self._tell(followed, str(error))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                # A document of another version, or an edited one: the other runs must not suffer.
                self._tell(followed, f"cannot be read: {type(error).__name__}: {error}")
        self._annotate()
        self._sweep(now)
        self._last_pass = time.time()

    def metrics(self) -> bytes:
        """The text for Prometheus. May be called from another thread."""
        followed = list(self._followed.values())
        results = [item.result for item in followed if item.result is not None]
        behind = sum(item.wanted != item.confirmed for item in followed)
        return metrics_text(
            results,
            service_gauges(
                measurements=len(followed),
                annotations_behind=None if self._annotator is None else behind,
                grafana_up=self._grafana_up,
                analyses_failed=sum(item.failure is not None for item in followed),
                last_pass_time_seconds=self._last_pass,
            ),
        )

    def reports(self) -> Sequence[tuple[str | None, str]]:
        """Path and title of every report (where there is none, of the analysis), newest first.

        A measurement that failed or was interrupted is there without them, too; its path is None. May be called from
        another thread.
        """
        found: list[tuple[str | None, str]] = []
        for item, followed in list(self._followed.items()):
            files = (item.measurement.report, item.measurement.analysis)
            best = next((path for path in files if path.is_file()), None)
            if best is None and followed.verdict is None:
                continue
            title = f"{item.run.run_id}, measurement {item.measurement.stamp}"
            if followed.verdict is not None:
                title += f": {followed.verdict}"
            found.append((None if best is None else report_path(self._artifacts, best), title))
        return found

    def _look_at(self, followed: _Followed, now: float, *, exposed: bool, patient: bool) -> None:
        found, events = followed.found, followed.events
        events.read(now)
        self._analyse(followed, now, patient=patient)
        signature = _signature(
            found.measurement.measurement,
            found.measurement.baseline,
            found.measurement.analysis,
            found.measurement.report,
        )
        state = (
            *signature,
            (len(events.events), int(events.ended)),
            (int(exposed), int(followed.failure is not None)),
        )
        if state == followed.signature:
            return
        followed.signature = state  # first: what cannot be read is not read again until it changes
        self._conclude(followed)
        manifest = self._manifest(found)
        # A bench has no target and no theory, which is what the metrics of runs are about.
        followed.result = run_result(found, manifest) if exposed and not is_bench(manifest.document) else None

    def _analyse(self, followed: _Followed, now: float, *, patient: bool) -> None:
        """Analyse a run that is over and that nobody else has analysed; once, whether that works or not."""
        directory, events = followed.found.measurement, followed.events
        if not events.ended or followed.failure is not None or directory.analysis.is_file():
            return
        if patient and now - (events.last_time or 0.0) < ANALYSIS_GRACE_SECONDS:
            return
        try:
            analysis = analyze_measurement(self._manifest(followed.found), directory.stamp)
            LOGGER.info("analysed %s: %s", directory.root, analysis.document["validation"]["status"])
        except HitLabError as error:
            followed.failure = str(error)
            self._tell(followed, f"no analysis: {error}")

    def _tell(self, followed: _Followed, problem: str) -> None:
        """Each problem of a measurement once."""
        if followed.problem != problem:
            followed.problem = problem
            LOGGER.warning("%s: %s", followed.found.measurement.root, problem)

    def _manifest(self, found: FoundMeasurement) -> Manifest:
        path = found.run.manifest
        signature = _signature(path)
        known = self._manifests.get(path)
        if known is None or known[0] != signature:
            known = (signature, read_measured_manifest(path))
            self._manifests[path] = known
        return known[1]

    def _conclude(self, followed: _Followed) -> None:
        """How the measurement is called, and what is to be seen of it in Grafana."""
        directory, events = followed.found.measurement, followed.events
        analysed = events.ended and directory.analysis.is_file()
        analysis = read_document(directory.analysis, "analysis") if analysed else None
        url = None
        if self._public_url is not None and directory.report.is_file():
            url = urljoin(self._public_url, report_path(self._artifacts, directory.report))
        status = "failed" if followed.failure is not None else None
        for event in events.events:
            status = event["status"] if event["event"] == "run_finished" else status
        followed.verdict = verdict_of(analysis["status"] if analysis else status, analysis)
        followed.wanted = annotations_of(
            *followed.found.identity,
            events.events,
            analysis,
            ended=events.ended,
            failure=followed.failure,
            report_url=url,
        )

    def _annotate(self) -> None:
        """Newest runs first: somebody is watching those."""
        if self._annotator is None or not self._backoff.ready(time.monotonic()):
            return
        for followed in list(self._followed.values()):
            now = time.monotonic()
            due = followed.recheck_at is not None and now >= followed.recheck_at
            if followed.wanted == (followed.confirmed or ()) and not due:
                followed.confirmed = followed.wanted
                continue
            try:
                self._annotator.reconcile(*followed.found.identity, followed.wanted)
            except GrafanaUnavailableError as error:
                if error.uncertain:
                    followed.recheck_at = now + RECHECK_SECONDS
                pause = self._backoff.failed(time.monotonic(), error.retry_after_seconds)
                if str(error) != self.trouble:
                    LOGGER.warning("%s; next try in %.0f s", error, pause)
                self.trouble, self._grafana_up = str(error), False
                return
            followed.confirmed = followed.wanted
            if due:
                followed.recheck_at = None
            if self._grafana_up is not True:
                LOGGER.info("Grafana takes annotations")
            self._grafana_up = True
            self._backoff.succeeded()
        self.trouble = None

    def _sweep(self, now: float) -> None:
        over = {
            item.found.identity
            for item in self._followed.values()
            if item.events.ended and now - (item.events.last_time or 0.0) > LAST_SCRAPES_SECONDS
        }
        remove_old_targets(self._artifacts, over, {item.identity for item in self._followed})


def _signature(*paths: Path) -> Signature:
    """Changes when one of the files does; None for one that is not there."""
    found: list[tuple[int, int] | None] = []
    for path in paths:
        try:
            status = path.stat()
            found.append((status.st_mtime_ns, status.st_ino))
        except OSError:
            found.append(None)
    return tuple(found)
