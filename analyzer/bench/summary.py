"""The summary of a bench from what it left in its run directory: `analysis.json` and `bench_summary.json`.

Times are of requests that were answered. TTFT: first chunk with a choice minus start. ITL: gaps between chunks. TPOT:
(E2EL - TTFT) / (output tokens - 1), and decode speed is its inverse. Answers of one token have none of these, nor have
answers whose tokens arrived at once (`contract.records.why_no_decode`). The mean decode speed is the tokens of all
answers over their time. Percentiles interpolate linearly at (n - 1) * p; those of decode speed count from the fastest,
so that P99 is what 99 % of answers reach: the slow tail.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from analyzer.bench.scoring import best_f1, parse_answer
from analyzer.parts import require_parts
from analyzer.request_table import record_batches
from contract.bench import ANSWERS, EXPECTED, BenchMeasurement
from contract.errors import ExitCode
from contract.files import read_file
from contract.manifest import Manifest
from contract.measurement_file import read_measurement_file
from contract.records import REQUEST_SCHEMA, NoDecode, why_no_decode
from contract.run_directory import MeasurementDirectory
from contract.streams import read_parquet

PERCENTILES = (50, 90, 99)
Row = dict[str, Any]


def read_bench(directory: MeasurementDirectory) -> BenchMeasurement:
    """The measurement. Raises ArtifactError when it cannot be read."""
    return read_measurement_file(directory.measurement, BenchMeasurement)


def read_requests(directory: MeasurementDirectory) -> list[Row]:
    """The measured requests in their order."""
    if not directory.requests.is_file() and not directory.requests_stream.is_file():
        return []
    table = pa.Table.from_batches(record_batches(directory, REQUEST_SCHEMA.names), schema=REQUEST_SCHEMA)
    rows: list[Row] = table.to_pylist()
    return sorted(rows, key=lambda row: row["position"])


def distribution(values: Sequence[float], *, slow_is_low: bool = False) -> Row | None:
    """mean, min, p50, p90, p99, max and n; None without values."""
    if not values:
        return None
    column = np.asarray(values, dtype=np.float64)
    shares = [100 - p if slow_is_low else p for p in PERCENTILES]
    return {
        "mean": float(column.mean()),
        "min": float(column.min()),
        **{
            f"p{p}": float(np.percentile(column, share)) for p, share in zip(PERCENTILES, shares, strict=True)
        },
        "max": float(column.max()),
        "n": int(column.size),
    }


def summarize_bench(manifest: Manifest, directory: MeasurementDirectory) -> Row:
    """The whole summary. Equal input gives an equal document."""
    measurement, document = read_bench(directory), manifest.document
    if measurement.status != "running":
        require_parts(directory, measurement)
    rows = read_requests(directory)
    answered = [row for row in rows if row["error_kind"] is None]
    seconds = _seconds(measurement, rows)
    found = distributions(answered)
    warnings = [finding.model_dump(mode="json", exclude_none=True) for finding in measurement.findings]
    aborted = sum(row["error_kind"] == "aborted" for row in rows)
    failed = len(rows) - len(answered)
    if failed - aborted:
        warnings.append(
            {"code": "REQUESTS_FAILED", "message": f"{failed - aborted} of {len(rows)} requests failed"}
        )
    without = Counter(reason for row in answered if (reason := no_decode(row)))
    if untimed := _untimed(without, len(answered)):
        warnings.append({"code": "TOKENS_UNTIMED", "message": untimed})
    status = measurement.status
    if status == "running":
        status = "interrupted"  # its process is gone
    return {
        "schema_version": "1.0",
        "kind": document["kind"],
        "run_id": document["run_id"],
        "stamp": directory.stamp,
        "run_directory": str(manifest.directory.root),
        "status": status,
        "started_at": measurement.started_at,
        "finished_at": measurement.finished_at,
        "error": measurement.error,
        "config": _config(document),
        "parameters": document["settings"],
        "facts": {name: document["facts"][name] for name in document.get("fact_order", document["facts"])},
        "results": _results(rows, answered, seconds, found),
        "without_decode": dict(without),
        "distributions": found,
        "load": _load(measurement),
        "errors": dict(sorted(Counter(row["error_kind"] for row in rows if row["error_kind"]).items())),
        "phases": [phase.model_dump(mode="json") for phase in measurement.bench.phases],
        "skipped_phases": document["skipped_phases"],
        "cache": [evidence.model_dump(mode="json") for evidence in measurement.bench.cache],
        **_quality(document, directory, rows),
        "fingerprint": document["fingerprint"],
        "fingerprint_parts": document["fingerprint_parts"],
        "engine": measurement.engine.model_dump(mode="json") if measurement.engine else None,
        "size_source": document["size_source"],
        "tokenizer": document["tokenizer"],
        "versions": document["versions"],
        "host": document["host"],
        "warnings": warnings,
        "validation": {"status": "PASS_WITH_WARNING" if warnings else "PASS"},
        "requests": _per_request(rows, directory),
    }


def _untimed(without: Mapping[NoDecode, int], answered: int) -> str | None:
    """What to say when no answer of several tokens has times for them; single ones are only counted."""
    at_once, silent = without.get("one read", 0), without.get("no chunk", 0)
    if not at_once + silent or sum(without.values()) < answered:
        return None
    parts = [
        f"{count} of {answered} answers {what}"
        for count, what in ((at_once, "arrived in one read"), (silent, "carry token counts and no text"))
        if count
    ]
    return f"{' and '.join(parts)}, so ITL and decode speed cannot be measured"


def exit_code(summary: Row) -> ExitCode:
    """0: every request was answered, those of the warm phases included, and a ledger tells what hit where one should."""
    if summary["status"] == "interrupted":
        return ExitCode.INTERRUPTED
    if summary["status"] == "failed":
        return ExitCode.SERVICE
    failed = summary["results"]["failed_requests"] or any(phase["failed"] for phase in summary["phases"])
    if failed:
        return ExitCode.REQUESTS_FAILED
    return ExitCode.INCONCLUSIVE if no_ledger(summary) is not None else ExitCode.DONE


NO_COUNTERS = {"METRICS_NOT_THIS_ENGINE", "NOT_MEASURABLE"}


def no_ledger(summary: Row) -> str | None:
    """Why nothing tells what the measured phase hit, neither counters, which had to be given up, nor answers."""
    measured = next((entry for entry in summary["cache"] if entry["stage"] == "formal"), None)
    given_up = NO_COUNTERS & {warning["code"] for warning in summary["warnings"]}
    if measured is None or not given_up or not measured["prompt_tokens"]:
        return None
    if measured["hit_tokens"] is not None or measured["cached_tokens"] is not None:
        return None
    why = measured["unavailable"]
    return f"no ledger shows what was found in the cache: {why['hit_tokens']}; {why['cached_tokens']}"


def failed_message(summary: Row) -> str:
    """Which requests failed, by phase; the kinds of error are those of the measured phase."""
    failed = [(phase["name"], phase["failed"]) for phase in summary["phases"] if phase["failed"]]
    by_phase = ", ".join(f"{count} in {name}" for name, count in failed)
    kinds = ", ".join(
        f"{count} x {kind}{' (--timeout)' if kind == 'timeout' else ''}"
        for kind, count in summary["errors"].items()
    )
    return f"{sum(count for _, count in failed)} requests failed ({by_phase}){kinds and ': '}{kinds}"


def _config(document: Row) -> Row:
    """The guide's keys."""
    settings, invocation = document["settings"], document["invocation"]
    return {
        "engine_url": document["engine_url"],
        "model": settings["model"],
        "workload": document["workload"],
        "kv_cache_volume_gb": settings["kv_cache_volume"],
        "tokens_per_gb_kvcache": settings["tokens_per_gb_kvcache"],
        "seed": settings["seed"],
        "output_dir": invocation["output_dir"],
        "export_csv": invocation["export_csv"],
        "export_json": invocation["export_json"],
        "quiet": invocation["quiet"],
        "ignore_eos": settings["ignore_eos"],
        "warmup_policy": "skip" if settings["no_warmup"] else "run",
    }


def _seconds(measurement: BenchMeasurement, rows: Sequence[Row]) -> float | None:
    """Of the measured phase: from its first start to its last end."""
    if measurement.load is not None:
        return measurement.load.wall_seconds
    ends = [row["started_ns"] / 1e9 + (row["e2el_s"] or 0.0) for row in rows]
    return max(ends) - min(row["started_ns"] / 1e9 for row in rows) if rows else None


def no_decode(row: Row) -> NoDecode | None:
    """Why a recorded answer has no decode time; None: it has."""
    return why_no_decode(row["ttft_s"], row["completion_tokens"], row["itl_s"])


def _tpot(row: Row) -> float | None:
    if no_decode(row) is not None or row["e2el_s"] is None or row["completion_tokens"] is None:
        return None
    return float((row["e2el_s"] - row["ttft_s"]) / (row["completion_tokens"] - 1))


def distributions(answered: Sequence[Row]) -> Row:
    """Name -> `distribution` of answered requests."""

    def times(values: Iterable[float | None]) -> list[float]:
        return [value * 1e3 for value in values if value is not None]

    tpot = [_tpot(row) for row in answered]
    several = [row for row in answered if no_decode(row) is None]
    return {
        "ttft_ms": distribution(times(row["ttft_s"] for row in answered)),
        "itl_ms": distribution(times(gap for row in several for gap in row["itl_s"])),
        "tpot_ms": distribution(times(tpot)),
        "request_latency_ms": distribution(times(row["e2el_s"] for row in answered)),
        "decode_speed": _decode_speed(several, [1 / value for value in tpot if value]),
        "input_tokens": distribution(
            [row["prompt_tokens"] for row in answered if row["prompt_tokens"] is not None]
        ),
        "output_tokens": distribution(
            [row["completion_tokens"] for row in answered if row["completion_tokens"] is not None]
        ),
    }


def _decode_speed(several: Sequence[Row], speeds: Sequence[float]) -> Row | None:
    """Of single answers, but for the mean: all tokens after the first ones over all their time."""
    found = distribution(speeds, slow_is_low=True)
    if found is None:
        return None
    tokens = sum(row["completion_tokens"] - 1 for row in several)
    return found | {"mean": tokens / sum(row["e2el_s"] - row["ttft_s"] for row in several)}


def _results(rows: Sequence[Row], answered: Sequence[Row], seconds: float | None, distributions: Row) -> Row:
    """The guide's keys, and the same of ITL and TPOT. None: not measured."""
    inputs = sum(row["prompt_tokens"] or 0 for row in answered)
    outputs = sum(row["completion_tokens"] or 0 for row in answered)

    def of(name: str, key: str) -> float | None:
        found = distributions[name]
        return None if found is None else found[key]

    return {
        "total_requests": len(rows),
        "successful_requests": len(answered),
        "failed_requests": len(rows) - len(answered),
        "elapsed_time": seconds,
        "mean_ttft_ms": of("ttft_ms", "mean"),
        "mean_decode_speed": of("decode_speed", "mean"),
        "mean_request_latency_ms": of("request_latency_ms", "mean"),
        "input_throughput": inputs / seconds if seconds else None,
        "output_throughput": outputs / seconds if seconds else None,
        "request_throughput": len(answered) / seconds if seconds else None,
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        **{
            f"p{p}_{name}": of(name, f"p{p}")
            for name in ("ttft_ms", "decode_speed", "request_latency_ms", "itl_ms", "tpot_ms")
            for p in PERCENTILES
        },
        "mean_itl_ms": of("itl_ms", "mean"),
        "mean_tpot_ms": of("tpot_ms", "mean"),
    }


def _load(measurement: BenchMeasurement) -> Row | None:
    """Asked for and reached, of the measured phase."""
    found = next((phase for phase in measurement.bench.phases if phase.stage == "formal"), None)
    if found is None:
        return None
    return {
        "requested_rate": found.requested_rate,
        "reached_rate": found.reached_rate,
        "requested_concurrency": found.requested_concurrency,
        "mean_concurrency": found.mean_in_flight,
        "max_concurrency": found.max_in_flight,
        "planned_requests": found.planned,
        "not_sent": found.withdrawn,
        "mean_lag_seconds": found.mean_lag_seconds,
        "max_lag_seconds": found.max_lag_seconds,
        "retries": 0,
    }


def _per_request(rows: Sequence[Row], directory: MeasurementDirectory) -> list[Row]:
    """What a comparison pairs, one entry for each measured request."""
    path = directory.root / EXPECTED
    batches = read_parquet(path) if path.is_file() else ()
    expected = {row["request_id"]: row for batch in batches for row in batch.to_pylist()}
    found = []
    for row in rows:
        tpot, plan = _tpot(row), expected.get(row["request_id"], {})
        found.append(
            {
                "request_id": row["request_id"],
                "group": row["group"],
                "error_kind": row["error_kind"],
                "ttft_ms": None if row["ttft_s"] is None else row["ttft_s"] * 1e3,
                "request_latency_ms": None if row["e2el_s"] is None else row["e2el_s"] * 1e3,
                "tpot_ms": None if tpot is None else tpot * 1e3,
                "decode_speed": 1 / tpot if tpot else None,
                "prompt_tokens": row["prompt_tokens"],
                "planned_prompt_tokens": plan.get("prompt_tokens"),
                "cached_tokens": row["cached_tokens"],
                "expected_cached_tokens": [plan.get("least_cached_tokens"), plan.get("most_cached_tokens")],
            }
        )
    return found


# ---- answers -------------------------------------------------------------------------------------------------------


def _quality(document: Row, directory: MeasurementDirectory, rows: Sequence[Row]) -> Row:
    path = directory.root / ANSWERS
    if not path.is_file():
        return {}
    by_id = {row["request_id"]: row for row in rows}
    entries = [orjson.loads(line) for line in read_file(path).splitlines() if line.strip()]
    samples = [sample for entry in entries if (sample := _scored(entry, by_id)) is not None]
    parsed = [sample for sample in samples if sample["parsed"]]
    return {
        "quality": {
            "run_fingerprint": document["fingerprint"],
            "summary": {
                "num_samples": len(samples),
                "num_parsed": len(parsed),
                "parse_rate": len(parsed) / len(samples) if samples else None,
                "f1_mean": sum(sample["f1"] for sample in parsed) / len(parsed) if parsed else None,
            },
            "per_sample": samples,
        }
    }


def _scored(entry: Row, by_id: dict[str, Row]) -> Row | None:
    """The sample's result; None when it was not sent. Unparsed and unanswered ones have no F1, which is not 0."""
    row = by_id.get(entry["request_id"])
    if row is None:
        return None
    text = entry["answer"] if row["error_kind"] is None else None
    answer = None if text is None else parse_answer(text)
    return {
        "sample_id": entry["sample_id"],
        "f1": None if answer is None else best_f1(answer, entry["answers"]),
        "parsed": answer is not None,
        "answer": answer
        or "",  # the guide's: "" for what was not parsed; `parsed` tells it from an empty answer
        "ttft": row["ttft_s"],
        "num_output_tokens": row["completion_tokens"],
        "error": row["error_kind"],
        "finish_reason": row["finish_reason"],
    }


def quality_document(summary: Row, output_path: str) -> Row:
    """The results file of rag-qa-quality."""
    parameters, quality = summary["parameters"], summary["quality"]
    return {
        "run_fingerprint": quality["run_fingerprint"],
        "fingerprint_parts": summary["fingerprint_parts"],
        "model": summary["config"]["model"],
        "warmup_policy": summary["config"]["warmup_policy"],
        "status": summary["status"],
        "config": {
            "dataset": parameters["rag_dataset"],
            "num_samples": parameters["rag_num_samples"],
            "max_output_length": parameters["rag_max_output_length"],
            "doc_align_tokens": parameters["rag_doc_align_tokens"],
            "template_kwargs": parameters["rag_template_kwargs"],
            "output_path": output_path,
        },
        "summary": quality["summary"],
        "per_sample": quality["per_sample"],
    }
