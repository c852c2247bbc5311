"""From what is known of a run to the annotations that show it on a dashboard. Pure: no Grafana here.

Every annotation carries the tags `hitlab`, `run:<run id>` and `measurement:<stamp>`, one for its kind (`phase`,
`warning`, `verdict`), and one that no other annotation of its measurement has, its key.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from analyzer.watch.runs import event_time
from analyzer.watch.verdict import verdict_of
from contract.foreign_text import presentable
from contract.kinds import is_bench
from contract.warnings import WARNING_TEXTS, warning_message

LONGEST_TEXT = 2000
PHASES = {
    "precheck": "checks before anything is sent in earnest",
    "reset": "empties the prefix cache",
    "warmup": "sends the shared prefixes",
    "baseline": "waits for rest, reads the counters",
    "formal": "the measured load",
    "settle": "waits until the counters show all tokens",
    "after": "reads the counters again",
}


@dataclass(frozen=True)
class Annotation:
    """Times in epoch milliseconds. `end_ms` None: a point. `text` is HTML; all that is not ours in it is escaped."""

    key: str
    time_ms: int
    end_ms: int | None
    text: str
    tags: tuple[str, ...]


def measurement_tags(run_id: str, stamp: str) -> tuple[str, ...]:
    """What all annotations of a measurement have, and those of no other."""
    return "hitlab", tag("run", run_id), tag("measurement", stamp)


def tag(name: str, value: str) -> str:
    """`name:value`, as Grafana keeps it: it takes blanks around either away."""
    return f"{name}:{' '.join(value.split())}"


def annotations_of(
    run_id: str,
    stamp: str,
    events: Sequence[Mapping[str, Any]],
    analysis: Mapping[str, Any] | None,
    *,
    ended: bool,
    failure: str | None = None,
    report_url: str | None = None,
) -> tuple[Annotation, ...]:
    """A region per phase (a point while it lasts), a point per warning, and one with the verdict.

    Args:
        events: of `events.jsonl`, in order.
        analysis: of the measurement, once it is there.
        ended: whether the run is over.
        failure: why there will be no analysis; without either the verdict is still to come.
        report_url: where a browser finds the report.
    """
    if not events:
        return ()
    common = measurement_tags(run_id, stamp)
    finished = next((event for event in reversed(events) if event["event"] == "run_finished"), None)
    end_ms = milliseconds(finished or events[-1]) if ended else None
    found = [*_phases(events, common, end_ms), *_warnings(events, analysis, common, end_ms)]
    if end_ms is not None and (analysis is not None or failure is not None):
        text = _verdict(finished, analysis, failure)
        if report_url is not None and analysis is not None:
            text += f' <a href="{escape(report_url)}" target="_blank">report</a>'
        found.append(Annotation("verdict", end_ms, None, text, (*common, "verdict")))
    return tuple(found)


def milliseconds(event: Mapping[str, Any]) -> int:
    return round(event_time(dict(event)) * 1000)


def _phases(
    events: Sequence[Mapping[str, Any]], common: tuple[str, ...], end_ms: int | None
) -> list[Annotation]:
    started = {event["phase"]: milliseconds(event) for event in events if event["event"] == "phase_started"}
    ended = {event["phase"]: milliseconds(event) for event in events if event["event"] == "phase_finished"}
    return [
        Annotation(
            tag("phase", name),
            start,
            ended.get(name, end_ms),
            f"<b>{_text(name)}</b>" + (f": {PHASES[name]}" if name in PHASES else ""),
            (*common, "phase", tag("phase", name)),
        )
        for name, start in started.items()
    ]


def _warnings(
    events: Sequence[Mapping[str, Any]],
    analysis: Mapping[str, Any] | None,
    common: tuple[str, ...],
    end_ms: int | None,
) -> list[Annotation]:
    """Those of the run at the moment they were found, those of the analysis at the end; none of them twice.

    The analysis repeats what the run warned of, so of each code it adds what is beyond the number that the run had.
    """
    found = [(event, milliseconds(event)) for event in events if event["event"] == "warning"]
    seen = Counter(str(event["code"]) for event, _ in found)
    if analysis is not None and end_ms is not None:
        for warning in analysis["warnings"]:
            code = str(warning["code"])
            if seen[code]:
                seen[code] -= 1
            else:
                found.append((warning, end_ms))
    count: Counter[str] = Counter()
    annotations = []
    for warning, time_ms in found:
        code = str(warning["code"])
        count[code] += 1
        key = tag("warning", code if count[code] == 1 else f"{code}#{count[code]}")
        known = WARNING_TEXTS.get(code)
        text = f"<b>{_text(code)}</b>: {_text(warning_message(warning))}"
        if known is not None:
            text += f"<br>{_text(known.meaning)}"
        annotations.append(Annotation(key, time_ms, None, text, (*common, "warning", key)))
    return annotations


def _text(foreign: str) -> str:
    return escape(presentable(foreign, LONGEST_TEXT))


def _verdict(
    finished: Mapping[str, Any] | None, analysis: Mapping[str, Any] | None, failure: str | None
) -> str:
    if analysis is None:
        status = str(finished["status"]) if finished else "cut short"
        reason = (finished or {}).get("error") or failure or ""
        called = verdict_of(status, None) or "failed"
        return f"<b>{called}</b>: no result: {_text(status)}: {_text(str(reason))}"
    status, called = str(analysis["status"]), str(verdict_of(analysis["status"], analysis))
    more = "" if status in ("complete", called) else f" ({_text(status)})"
    verdict = f"<b>{_text(called)}</b>{more}: "
    if is_bench(dict(analysis)):
        return verdict + _bench_result(analysis)
    rates = ", ".join(
        f"{name} {'not measured' if value is None else f'{value:.2%}'}"
        for name, value in (
            ("actual", analysis["actual"]["global_hit_rate"]),
            ("theory", analysis["theoretical_hit_rate"]),
            ("target", analysis["requested_target_hit_rate"]),
        )
    )
    return f"{verdict}hit rate {rates}."


def _bench_result(analysis: Mapping[str, Any]) -> str:
    results = analysis["results"]
    ttft = results["mean_ttft_ms"]
    return (
        f"{_text(str(analysis['config']['workload']))}: {results['successful_requests']} of "
        f"{results['total_requests']} requests answered"
        + ("." if ttft is None else f", mean TTFT {ttft:.1f} ms.")
    )
