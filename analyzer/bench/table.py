"""The summary of a bench as text: the guide's sections and names, 56 columns wide, and what they leave out."""

from collections.abc import Iterable, Mapping
from typing import Any

from contract.records import NoDecode

WIDTH = 56
LABEL = 34
NOT_MEASURED = "not measured"

NO_DECODE: Mapping[NoDecode, str] = {
    "one token": "One token alone (no speed)",
    "one read": "Arrived in one read (no speed)",
    "no chunk": "Counts without text (no speed)",
}

Line = tuple[str, Any]


def summary_text(summary: Mapping[str, Any]) -> str:
    """Lines without escapes. The guide's fields come first, in its order."""
    results, config = summary["results"], summary["config"]
    state = "" if summary["status"] == "complete" else f", {summary['status']}"
    sections: list[tuple[str, list[Line]]] = [
        (
            "Configuration",
            [
                ("Engine URL", config["engine_url"]),
                ("Model", config["model"]),
                ("Workload", config["workload"]),
                ("Seed", config["seed"]),
                ("Warm phases", "skipped (--no-warmup)" if config["warmup_policy"] == "skip" else None),
                *summary["facts"].items(),
            ],
        ),
        (
            "Results",
            [
                ("Successful requests", results["successful_requests"]),
                ("Failed requests", results["failed_requests"]),
                ("Benchmark duration (s)", results["elapsed_time"]),
                ("Total input tokens", results["total_input_tokens"]),
                ("Total output tokens", results["total_output_tokens"]),
                ("Input throughput (tok/s)", results["input_throughput"]),
                ("Output throughput (tok/s)", results["output_throughput"]),
                *((f"Failed: {kind}", count) for kind, count in summary["errors"].items()),
            ],
        ),
        ("Time to First Token", _times("TTFT (ms)", results, "ttft_ms")),
        (
            "Decoding Speed",
            [
                ("Mean decode (tok/s)", _or_unmeasured(results["mean_decode_speed"])),
                ("P99 decode (tok/s)", _or_unmeasured(results["p99_decode_speed"])),
                *_decoded(summary),
            ],
        ),
        ("Inter-token Latency", _times("ITL (ms)", results, "itl_ms")),
        ("Request Latency", _times("latency (ms)", results, "request_latency_ms")),
        ("Load", list(_load(summary["load"]))),
    ]
    sections += [(_stage(evidence), list(_cache(evidence))) for evidence in summary["cache"]]
    if "quality" in summary:
        sections.append(("Answer Quality", _quality(summary["quality"])))
    lines = [_title(f"Engine Benchmark Result ({config['workload']}{state})", "=")]
    for name, fields in sections:
        shown = [_line(label, value) for label, value in fields if value is not None]
        if shown:
            lines += [_title(name, "-"), *shown]
    return "\n".join([*lines, "=" * WIDTH])


def _title(text: str, fill: str) -> str:
    return f" {text} ".center(WIDTH, fill)


def _line(label: str, value: Any) -> str:
    shown = f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{label + ':':<{LABEL}}{shown:>{WIDTH - LABEL}}"


def _times(what: str, results: Mapping[str, Any], name: str) -> list[Line]:
    """Nothing where nothing was answered, but for TTFT."""
    if results[f"mean_{name}"] is None:
        said = name == "ttft_ms" or results["successful_requests"]
        return [(f"Mean {what}", NOT_MEASURED)] if said else []
    return [(f"Mean {what}", results[f"mean_{name}"])] + [
        (f"P{p} {what}", results[f"p{p}_{name}"]) for p in (50, 90, 99)
    ]


def _or_unmeasured(value: float | None) -> float | str:
    return NOT_MEASURED if value is None else value


def _decoded(summary: Mapping[str, Any]) -> Iterable[Line]:
    """Answers that decode speed and ITL are of, and why the others have none."""
    speeds, without = summary["distributions"]["decode_speed"], summary["without_decode"]
    if speeds is not None:
        yield "Answers with speed and ITL", speeds["n"]
    for reason, title in NO_DECODE.items():
        if without.get(reason):
            yield title, without[reason]


def _load(load: Mapping[str, Any] | None) -> Iterable[Line]:
    if load is None:
        return
    if load["requested_rate"] is not None:
        yield "Requested rate (req/s)", float(load["requested_rate"])
        yield "Reached rate (req/s)", load["reached_rate"]
        yield "Not sent in time", load["not_sent"]
        yield "Longest delay of a start (s)", load["max_lag_seconds"]
    else:
        yield "Requested concurrency", load["requested_concurrency"]
    yield "Reached concurrency (mean)", load["mean_concurrency"]
    yield "Reached concurrency (most)", load["max_concurrency"]


def _stage(evidence: Mapping[str, Any]) -> str:
    return "Cache, warm phases" if evidence["stage"] == "warmup" else "Cache, measured"


def _cache(evidence: Mapping[str, Any]) -> Iterable[Line]:
    prompt, why = evidence["prompt_tokens"], evidence["unavailable"]
    yield "Prompt tokens", prompt
    yield "Cached tokens (answers)", _share(evidence["cached_tokens"], prompt, why.get("cached_tokens"))
    yield (
        "Hit tokens (engine's counters)",
        _share(evidence["hit_tokens"], evidence["query_tokens"], why.get("hit_tokens")),
    )
    if evidence["external_query_tokens"]:
        yield (
            "Hit tokens (external cache)",
            _share(evidence["external_hit_tokens"], evidence["external_query_tokens"], None),
        )
    for family, counts in (evidence["lmcache"] or {}).items():
        if counts["requested_tokens"]:
            yield f"LMCache hits ({family})", _share(counts["hit_tokens"], counts["requested_tokens"], None)
    least, most = evidence["predicted_least"], evidence["predicted_most"]
    if least is None:
        yield "Expected (block model)", NOT_MEASURED if "predicted" in why else None
    else:
        yield "Expected (block model)", str(least) if least == most else f"{least} to {most}"
        if evidence["compared"]:
            yield "Requests as expected", f"{evidence['as_predicted']} of {evidence['compared']}"


def _share(part: int | None, whole: int | None, reason: str | None) -> str | None:
    if part is None:
        return NOT_MEASURED if reason else None
    return f"{part} ({part / whole:.2%})" if whole else str(part)


def _quality(quality: Mapping[str, Any]) -> list[Line]:
    found = quality["summary"]
    return [
        ("Samples measured", found["num_samples"]),
        ("Samples scored", found["num_parsed"]),
        ("Parse rate", found["parse_rate"]),
        ("Mean F1 (scored only)", NOT_MEASURED if found["f1_mean"] is None else found["f1_mean"]),
        ("Run fingerprint", quality["run_fingerprint"]),
    ]
