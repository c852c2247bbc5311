"""The two scrapes of a measurement: their texts, what they say, and the difference between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.errors import ArtifactError, UnusablePageError
from contract.files import read_text
from contract.measurement import Finding
from contract.run_directory import MeasurementDirectory
from contract.scrapes import split_scrapes
from enginemetrics.difference import EngineDifference, certain, subtract
from enginemetrics.difference import Finding as Doubt
from enginemetrics.snapshot import EngineSnapshot, read_snapshot


@dataclass(frozen=True)
class Scrape:
    """A stored scrape and what it says. `snapshot` None: nothing that can be used, for the reason `unusable`."""

    text: str
    snapshot: EngineSnapshot | None
    unusable: str | None = None


@dataclass(frozen=True)
class ScrapePair:
    """Before and after the load. None: the run ended before it was taken; `reason` says so.

    difference: without the numbers that a finding says cannot be known; None with a `reason`.
    """

    before: Scrape | None
    after: Scrape | None
    difference: EngineDifference | None
    reason: str | None = None

    @property
    def before_snapshot(self) -> EngineSnapshot | None:
        return None if self.before is None else self.before.snapshot

    @property
    def after_snapshot(self) -> EngineSnapshot | None:
        return None if self.after is None else self.after.snapshot

    @property
    def findings(self) -> tuple[Doubt, ...]:
        """What stands against these scrapes."""
        if self.difference is not None:
            return self.difference.findings
        unusable = (scrape.unusable for scrape in (self.before, self.after) if scrape is not None)
        return tuple(Doubt("SCRAPE_UNUSABLE", reason) for reason in unusable if reason is not None)


NO_AFTER = {"AFTER_SCRAPE_MISSING", "METRICS_NOT_THIS_ENGINE"}
"""Findings of a run that say why it has no scrape from after the load."""


def stored_pair(
    directory: MeasurementDirectory, service: Mapping[str, Any], findings: Sequence[Finding] = ()
) -> ScrapePair:
    """The scrapes of a measurement, as far as it came. `findings`: of the run, which may say why one is missing."""
    before, after = (
        load_scrape(path, service) if path.is_file() else None
        for path in (directory.baseline, directory.after)
    )
    if before is None or after is None:
        when = "before" if before is None else "after"
        told = next((finding.message for finding in findings if finding.code in NO_AFTER), None)
        reason = f"there is no scrape from {when} the load; {told or 'the run ended early'}"
        return ScrapePair(before, after, None, reason)
    return pair(before, after)


def pair(before: Scrape, after: Scrape) -> ScrapePair:
    if before.snapshot is None or after.snapshot is None:
        return ScrapePair(before, after, None, before.unusable or after.unusable)
    return ScrapePair(before, after, certain(subtract(before.snapshot, after.snapshot)))


def load_scrape(path: Path, service: Mapping[str, Any]) -> Scrape:
    """A scrape in a file, read with the `service` section it was taken with.

    Raises ArtifactError when the file cannot be read, ServiceError when it does not show what the section says. A page
    that breaks the rules of its format, or contradicts itself, is a scrape without numbers.
    """
    try:
        text = read_text(path)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ArtifactError(f"{path}: not UTF-8 text; save the metrics page as it is") from error
    pages = split_scrapes(text)
    try:
        snapshot = read_snapshot(
            pages,
            model=service["model"],
            dp_size=service["dp_size"],
            engine_label_map=service["engine_label_map"],
            sources=[str(path)] * len(pages),
        )
    except UnusablePageError as error:
        return Scrape(text, None, str(error))
    return Scrape(text, snapshot)


def metric_names(snapshot: EngineSnapshot) -> dict[str, str | None]:
    names = snapshot.metric_names
    return {"queries": names.queries, "hits": names.hits, "kv": names.kv_cache_usage}


def metrics_part(scrape: Scrape | None) -> dict[str, Any] | None:
    """A scrape as `runtime.metrics_*` shows it, raw text included (reference 4.5)."""
    if scrape is None:
        return None
    return {
        "metric_names": None if scrape.snapshot is None else metric_names(scrape.snapshot),
        "by_dp": {
            str(rank.rank): {
                "queries": rank.queries,
                "hits": rank.hits,
                "kv_cache_usage": rank.kv_cache_usage,
            }
            for rank in (scrape.snapshot.ranks if scrape.snapshot else ())
        },
        "raw_prometheus": scrape.text,
    }
