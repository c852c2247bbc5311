"""What stands on the page: an analysis and its measurement, put into words and tables. No HTML here."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from analyzer.html_report.text import grouped, milliseconds, percent, seconds
from analyzer.performance import LABELS, METRICS, Performance, common_metrics, untimed_note
from contract.manifest import Manifest
from contract.measurement import Measurement
from contract.run_directory import MeasurementDirectory
from contract.warnings import WARNING_TEXTS, WarningText, warning_message

Level = Literal["good", "warn", "bad"]

ROWS_SHOWN = 200
"""Rows of a table of groups or ranks; the rest is in analysis.json."""


@dataclass(frozen=True)
class Cell:
    """A value, or, where it is not known, why. `good` None: nothing to judge."""

    text: str | None
    reason: str | None = None
    good: bool | None = None


@dataclass(frozen=True)
class Table:
    """`head` names the columns; the first cell of each row is its name. `note` says what is left out."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str | None = None
    numbers: bool = True


@dataclass(frozen=True)
class Verdict:
    level: Level
    headline: str
    details: Sequence[str]


@dataclass(frozen=True)
class ShownWarning:
    code: str
    message: str
    text: WarningText | None


def known(value: Any, show: Callable[[Any], str], reason: str | None = None) -> Cell:
    return Cell(None, reason) if value is None else Cell(show(value))


def result_table(rows: Sequence[tuple[str, str]], reason: str | None) -> Table:
    """The rows that every command shows; `reason`: why one is not known."""
    return Table(
        "Hit rates of all input tokens",
        ("metric", "value"),
        [[Cell(name), Cell(None, reason) if value == "N/A" else Cell(value)] for name, value in rows],
    )


def shown_warnings(analysis: Mapping[str, Any]) -> list[ShownWarning]:
    """Those of the run, then those of the plan's trajectory."""
    found = [*analysis["warnings"], *analysis["trajectory"]["issues"]]
    return [
        ShownWarning(item["code"], warning_message(item), WARNING_TEXTS.get(item["code"])) for item in found
    ]


# --- tables ----------------------------------------------------------------------------------------------------------


def group_table(analysis: Mapping[str, Any], manifest: Mapping[str, Any]) -> Table:
    """Per group: what was planned, and what the answers said."""
    client = analysis["actual"]["client"]
    theory = analysis["theory"]["groups"]
    names = sorted(theory, key=lambda name: int(name.removeprefix("group-")))
    rows = []
    for name in names[:ROWS_SHOWN]:
        planned = theory[name]
        row = [
            Cell(name),
            known(
                manifest["groups"].get(name, {}).get("canonical_prefix_tokens"),
                grouped,
                "the manifest does not say",
            ),
            Cell(grouped(planned["input_tokens"])),
            Cell(grouped(planned["hit_tokens"])),
            known(planned["hit_rate"], percent),
        ]
        if client is None:
            rows.append(
                [*row, *[Cell(None, analysis["actual"].get("client_reason"))], Cell(None, ""), Cell(None, "")]
            )
            continue
        said = client["groups"].get(name)
        reason = said["reason"] if said else "no request of this group is in the records"
        cached = said["cached_tokens"] if said else None
        answered = f"{grouped(said['answered'])} of {grouped(said['requests'])}" if said else None
        rows.append(
            [
                *row,
                Cell(answered, reason),
                Cell(None, reason)
                if cached is None
                else Cell(grouped(cached), good=cached == planned["hit_tokens"]),
                known(said["hit_rate"] if said else None, percent, ""),
            ]
        )
    return Table(
        "Groups: planned, and as the answers report it",
        (
            "group",
            "shared prefix, tokens",
            "input tokens",
            "hit tokens, theory",
            "hit rate, theory",
            "answered",
            "hit tokens, answers",
            "hit rate, answers",
        ),
        rows,
        _rest(len(names), "groups"),
    )


def rank_table(analysis: Mapping[str, Any]) -> Table:
    """Per rank: the counters, theory where requests are routed, KV usage."""
    actual, theory = analysis["actual"], analysis["theory"]["dp"]
    ranks = sorted({*actual["by_dp"], *theory}, key=int)
    unit = actual["unit"] or "tokens"
    rows = []
    for rank in ranks[:ROWS_SHOWN]:
        counted = actual["by_dp"].get(rank)
        reason = analysis["ledgers"]["counters"]["by_dp"].get(rank, {}).get("reason") or actual["reason"]
        planned = theory.get(rank)
        unrouted = "the service chooses the ranks"
        values = counted or {}
        no_samples = values.get("kv_cache_usage_reason") or reason
        rows.append(
            [
                Cell(f"rank {rank}"),
                known(values.get("queries"), grouped, reason),
                known(values.get("hits"), grouped, reason),
                known(values.get("hit_rate"), percent, reason),
                known(planned and planned["hit_tokens"], grouped, unrouted),
                known(values.get("kv_cache_usage_avg"), percent, no_samples),
                known(values.get("kv_cache_usage_peak"), percent, no_samples),
            ]
        )
    return Table(
        "Ranks: as the counters report it",
        (
            "rank",
            f"queries, {unit}",
            f"hits, {unit}",
            "hit rate",
            "hit tokens, theory",
            "KV usage, mean",
            "KV usage, peak",
        ),
        rows,
        _rest(len(ranks), "ranks"),
    )


def _rest(count: int, what: str) -> str | None:
    if count <= ROWS_SHOWN:
        return None
    return f"The first {ROWS_SHOWN} of {grouped(count)} {what}; all are in analysis.json."


def latency_table(performance: Performance | None, no_requests: str | None) -> Table:
    """The rows of `hitlab report`, in its order."""
    rows = []
    for name, unit in METRICS.items():
        summary = performance.summaries[name] if performance else None
        if performance is None or summary is None:
            reason = performance.unavailable[name] if performance else no_requests
            rows.append([Cell(name), Cell(None, reason), *[Cell(None, "")] * 7])
            continue
        show = milliseconds if unit == "ms" else _number
        values = (
            summary.average,
            summary.minimum,
            summary.median,
            summary.p75,
            summary.p90,
            summary.p99,
            summary.maximum,
        )
        title = name if unit == "ms" else f"{name}, {unit}"
        rows.append([Cell(title), Cell(grouped(summary.count)), *(Cell(show(value)) for value in values)])
    return Table(
        "Requests that were answered",
        ("", "values", "mean", "least", "p50", "p75", "p90", "p99", "most"),
        rows,
        untimed_note(performance.untimed)
        if performance and performance.untimed and performance.summaries["TPOT"]
        else None,
    )


def _number(value: float) -> str:
    return f"{value:,.1f}"


def load_table(performance: Performance | None, measurement: Measurement | None) -> Table | None:
    """The load as a whole, as `hitlab report` has it."""
    if performance is None:
        return None
    load = measurement.load if measurement else None
    common = common_metrics(performance, load)
    return Table(
        "The load as a whole",
        ("metric", "value"),
        [
            [
                Cell(LABELS.get(name, name)),
                known(item["total"], _whole, "nothing was answered, or the run ended early"),
            ]
            for name, item in common.items()
        ],
    )


def _whole(value: int | str) -> str:
    return grouped(value) if isinstance(value, int) else value


def phase_table(measurement: Measurement | None) -> Table | None:
    if measurement is None or not measurement.phases:
        return None
    rows = []
    for phase in measurement.phases:
        lasted = None
        if phase.finished_at is not None:
            lasted = (moment(phase.finished_at) - moment(phase.started_at)).total_seconds()
        rows.append(
            [
                Cell(phase.name),
                Cell(phase.started_at),
                known(lasted, seconds, "the run ended in this phase"),
            ]
        )
    return Table("Phases of the run", ("phase", "began", "lasted"), rows)


def check_table(measurement: Measurement | None) -> Table | None:
    if measurement is None or not measurement.preflight:
        return None
    words = {"ok": True, "failed": False, "warning": False, "not_checked": None}
    return Table(
        "Checks before the load",
        ("check", "result", "detail"),
        [
            [
                Cell(check.name),
                Cell(check.status.replace("_", " "), good=words[check.status]),
                Cell(check.detail),
            ]
            for check in measurement.preflight
        ],
        numbers=False,
    )


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


# --- what it was, and how to do it again -----------------------------------------------------------------------------

Facts = list[tuple[str, Cell]]


def facts(
    analysis: Mapping[str, Any], manifest: Manifest, measurement: Measurement | None, stamp: str
) -> Facts:
    """What was measured with what: everything that another run must share to be comparable."""
    document = manifest.document
    own: Facts = [
        ("prefix cache", Cell(f"{document['prefix_cache']['mode']} mode, {len(document['groups'])} groups"))
    ]
    return [*common_facts(analysis, manifest, measurement, stamp), *own]


def common_facts(
    analysis: Mapping[str, Any], manifest: Manifest, measurement: Measurement | None, stamp: str
) -> Facts:
    """What is told of every kind of data."""
    document, config = manifest.document, manifest.effective_config
    offline = "two saved scrapes were analysed; nothing was run"
    before_engine = "the run ended before the engine was looked at" if measurement else offline
    engine = measurement.engine if measurement else None
    load = measurement.load if measurement else None
    no_load = "the run ended before its load was through" if measurement else offline
    tokenizer = document["tokenizer"]
    found: Facts = [
        ("measurement", Cell(stamp)),
        ("began", Cell(measurement.started_at) if measurement else Cell(None, offline)),
        (
            "ended",
            known(measurement.finished_at, str, "the run did not write its end")
            if measurement
            else Cell(None, offline),
        ),
        ("engine", Cell(f"{engine.kind}, model {engine.model}") if engine else Cell(None, before_engine)),
        (
            "engine version",
            known(engine.version, str, "the engine does not report it")
            if engine
            else Cell(None, before_engine),
        ),
        (
            "block size",
            known(engine.block_size, grouped, "the engine does not report it")
            if engine
            else Cell(None, before_engine),
        ),
        ("KV blocks per rank", _blocks(analysis["prediction"].get("model", {}).get("blocks_per_rank"))),
        ("data-parallel ranks", Cell(grouped(config["service"]["dp_size"]))),
        (
            "load",
            Cell(
                f"{load.driver} driver, concurrency {load.concurrency}, {'streamed' if load.stream else 'not streamed'}, "
                f"{load.retries} retries"
            )
            if load
            else Cell(None, no_load),
        ),
        (
            "requests",
            Cell(
                f"{grouped(load.finished)} finished, {grouped(load.failed)} failed, {grouped(load.retried)} repeated, in "
                f"{seconds(load.wall_seconds)}; {load.mean_in_flight:.1f} in flight on average"
            )
            if load
            else Cell(None, no_load),
        ),
        ("random seed", Cell(str(config["run"]["random_seed"]))),
        ("tokenizer", Cell(f"{tokenizer['path']}, fingerprint {tokenizer['fingerprint_sha256'][:16]}")),
        ("HitLab", Cell(document["plugin_version"])),
        ("scenario", Cell(f"SHA-256 {document['scenario_sha256'][:16]}")),
        ("data", Cell(f"SHA-256 {document['data_sha256'][:16]}")),
        ("manifest", Cell(f"SHA-256 {manifest.sha256[:16]}")),
    ]
    return found


def _blocks(per_rank: Mapping[str, int] | None) -> Cell:
    """As the prediction reads the engine's labels: they mean one rank in some versions, and all in others."""
    if not per_rank:
        return Cell(None, "the engine does not report it in its metrics")
    different = sorted(set(per_rank.values()))
    return Cell(", ".join(map(grouped, different)))


@dataclass(frozen=True)
class Step:
    what: str
    command: str


def steps(manifest: Manifest, measurement: Measurement | None, directory: MeasurementDirectory) -> list[Step]:
    """The commands that do it again, ready for a shell."""
    document = manifest.document
    scenario, path = document["scenario_path"], str(manifest.directory.manifest)
    prepare = Step(
        "Prepare the same data anew (equal scenario, corpus, tokenizer and seed give equal data)",
        shlex.join(["hitlab", "prepare", "--scenario", scenario, "--mode", document["benchmark_mode"]]),
    )
    validate = Step(
        "Prove that the data is as it was written", shlex.join(["hitlab", "validate", "--manifest", path])
    )
    if measurement is None:
        again = Step(
            "Analyse the same two scrapes again",
            shlex.join(
                [
                    *("hitlab", "analyze", "--manifest", path),
                    *("--baseline", str(directory.baseline), "--after", str(directory.after)),
                ]
            ),
        )
        return [prepare, validate, again]
    options = [
        part
        for name, value in sorted(measurement.overrides.items())
        for part in (f"--{name.partition('.')[0]}", str(value))
    ]
    run = Step(
        "Measure again with this data",
        shlex.join(["hitlab", "run", "--scenario", scenario, "--manifest", path, *options]),
    )
    analyze = Step(
        "Analyse this measurement again, without an engine",
        shlex.join(["hitlab", "analyze", "--manifest", path, "--measurement", measurement.stamp]),
    )
    return [prepare, validate, run, analyze]
