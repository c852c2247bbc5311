"""Latency and throughput of one measurement (reference 7.4 and 7.5).

E2EL: last byte minus start. TTFT: first chunk that carries a choice minus start. TPOT: (E2EL - TTFT) / (output tokens -
1), for answers of at least two tokens. ITL: gaps between chunks; a chunk may carry several tokens. Answers that arrived
in one read have neither. The average of a rate is tokens over time, not the mean of the answers' rates. Requests that
failed in the end are left out. Percentiles interpolate linearly between the closest ranks, at (n - 1) * p.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from analyzer.request_table import Floats, RequestTable, record_batches
from contract.measurement import LoadRecord
from contract.planned import UNKNOWN, Integers
from contract.run_directory import MeasurementDirectory

LABELS = {
    "Concurrency": "Concurrency (mean)",
    "Max Concurrency": "Concurrency (asked)",
    "Peak Concurrency": "Concurrency (peak)",
}
"""How tables for readers name those of `common_metrics` whose names leave it open what they are."""

Unit = Literal["ms", "tokens", "token/s"]
METRICS: dict[str, Unit] = {
    "E2EL": "ms",
    "TTFT": "ms",
    "TPOT": "ms",
    "ITL": "ms",
    "InputTokens": "tokens",
    "OutputTokens": "tokens",
    "OutputTokenThroughput": "token/s",
    "PrefillTokenThroughput": "token/s",
}
"""Row -> unit, in the order in which AISBench writes them."""
NEEDS_STREAM = ("TTFT", "TPOT", "ITL", "PrefillTokenThroughput")
NOT_STREAMED = "the answers were not streamed (stream: false), so their tokens have no times of their own"
QUANTILES = {"median": 0.5, "p75": 0.75, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True)
class Summary:
    """A distribution in the metric's unit."""

    average: float
    minimum: float
    maximum: float
    median: float
    p75: float
    p90: float
    p99: float
    count: int


@dataclass(frozen=True)
class Performance:
    """Attributes:
    summaries: row -> distribution; None with its reason in `unavailable`.
    duration_seconds: from the first start to the last end; None when nothing was answered.
    mean_in_flight: time of all answered requests over the duration.
    chunks: chunks of all answers; None when they were not streamed.
    untimed: streamed answers of several tokens whose tokens have no times of their own.
    """

    summaries: dict[str, Summary | None]
    unavailable: dict[str, str]
    duration_seconds: float | None
    mean_in_flight: float | None
    total_requests: int
    success_requests: int
    input_tokens: int
    output_tokens: int
    chunks: int | None
    untimed: int


def measure_performance(
    requests: RequestTable,
    directory: MeasurementDirectory,
    *,
    streamed: bool,
    wall_seconds: float | None = None,
) -> Performance:
    """Summaries over the answered requests.

    Args:
        streamed: whether the requests asked for a stream.
        wall_seconds: how long the load took, failures included; without it the time between the first start and the
            last answer.
    """
    attempts = requests.attempts
    chosen = requests.last[requests.answered]
    e2el, ttft = attempts.e2el_s[chosen], attempts.ttft_s[chosen]
    prompt = attempts.prompt_tokens[chosen]
    input_tokens = np.where(prompt == UNKNOWN, requests.plan.input_tokens[requests.answered], prompt)
    output = attempts.completion_tokens[chosen]
    several = chosen[output > 1] if streamed else chosen[:0]
    pieces = list(token_gaps(directory, several))
    timed = np.concatenate([at for at, _ in pieces]) if pieces else several
    columns: dict[str, npt.NDArray[np.floating] | Integers] = {
        "E2EL": e2el * 1e3,
        "TTFT": ttft * 1e3,
        "TPOT": (attempts.e2el_s - attempts.ttft_s)[timed] / (attempts.completion_tokens[timed] - 1) * 1e3,
        "ITL": np.concatenate([gaps for _, gaps in pieces]) if pieces else np.empty(0),
        "InputTokens": input_tokens,
        "OutputTokens": output[output != UNKNOWN],
    }
    rates = {"OutputTokenThroughput": (output, e2el), "PrefillTokenThroughput": (input_tokens, ttft)}
    summaries = {name: summarize(column) for name, column in columns.items()}
    summaries |= {name: _summarize_rate(tokens, seconds) for name, (tokens, seconds) in rates.items()}
    if not streamed:
        summaries |= dict.fromkeys(NEEDS_STREAM)
    reason = why_untimed(several.size, int(attempts.chunks[several].sum()))
    duration = wall_seconds if wall_seconds is not None else _span(requests, chosen)
    return Performance(
        summaries=summaries,
        unavailable={
            name: _why_not(name, streamed=streamed, answered=bool(chosen.size), untimed=reason)
            for name, summary in summaries.items()
            if summary is None
        },
        duration_seconds=duration if chosen.size else None,
        mean_in_flight=float(np.nansum(e2el)) / duration if chosen.size and duration else None,
        total_requests=requests.count,
        success_requests=int(chosen.size),
        input_tokens=int(input_tokens.sum()),
        output_tokens=int(output[output != UNKNOWN].sum()),
        chunks=int(attempts.chunks[chosen].sum()) if streamed else None,
        untimed=int(several.size - timed.size),
    )


def summarize(values: npt.NDArray[np.floating] | Integers) -> Summary | None:
    """The distribution of the finite values; None when there are none."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return None
    low, share = _ranks(finite.size)
    high = np.minimum(low + 1, finite.size - 1)
    finite.partition(np.unique(np.concatenate([low, high])))
    below, above = finite[low].astype(np.float64), finite[high].astype(np.float64)
    quantiles = dict(zip(QUANTILES, (below + (above - below) * share).tolist(), strict=True))
    return Summary(
        average=float(finite.mean(dtype=np.float64)),
        minimum=float(finite.min()),
        maximum=float(finite.max()),
        count=int(finite.size),
        **quantiles,
    )


def _ranks(count: int) -> tuple[Integers, Floats]:
    """Of each quantile the closest rank below, and how far on it lies towards the next."""
    places = np.array([(count - 1) * share for share in QUANTILES.values()])
    low = np.floor(places).astype(np.int64)
    return low, places - low


def _summarize_rate(tokens: Integers, seconds: Floats) -> Summary | None:
    """Tokens per second of each answer; on average all their tokens over all their time."""
    known = (tokens != UNKNOWN) & (seconds > 0)
    tokens, seconds = tokens[known], seconds[known]
    found = summarize(tokens / seconds)
    return None if found is None else replace(found, average=float(tokens.sum() / seconds.sum()))


def token_gaps(
    directory: MeasurementDirectory, wanted: Integers
) -> Iterator[tuple[Integers, npt.NDArray[np.float32]]]:
    """In pieces: those of `wanted` whose tokens arrived one after another (attempts), and the gaps between their chunks.

    Gaps are ms in single precision as recorded: by far the longest column. An attempt whose gaps are all 0 arrived in one
    read (`contract.records.why_no_decode`).
    """
    wanted = np.sort(wanted)
    start = 0
    for batch in record_batches(directory, ["itl_s"]):
        inside = wanted[np.searchsorted(wanted, start) : np.searchsorted(wanted, start + batch.num_rows)]
        column = batch.column(0).take(pa.array(inside - start))
        lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
        gaps = column.flatten().to_numpy()
        owner = np.repeat(np.arange(inside.size), lengths)
        apart = np.bincount(owner[gaps > 0], minlength=inside.size) > 0
        yield inside[apart], gaps[apart[owner]] * np.float32(1e3)
        start += batch.num_rows


def _span(requests: RequestTable, chosen: Integers) -> float | None:
    if not chosen.size:
        return None
    started = requests.attempts.started_ns
    ends = started[chosen] / 1e9 + np.nan_to_num(requests.attempts.e2el_s[chosen])
    return float(ends.max() - started.min() / 1e9)


def why_untimed(several: int, chunks: int) -> str:
    """Why no answer has TPOT and ITL: of `several` answers of more than one token, which have `chunks` in all."""
    if not several:
        return "no answer has more than one token"
    if not chunks:
        return "the answers carry token counts and no text, so their tokens have no times"
    return "each answer arrived in one read (does a proxy collect them?), so its tokens have no times of their own"


def untimed_note(count: int) -> str:
    return (
        f"{count:,} answers of several tokens arrived in one read, or without text: they have neither TPOT nor ITL, and "
        "N counts the others."
    )


def _why_not(name: str, *, streamed: bool, answered: bool, untimed: str) -> str:
    if not answered:
        return "no request was answered"
    if name in NEEDS_STREAM and not streamed:
        return NOT_STREAMED
    reasons: dict[str, str] = {
        "TPOT": untimed,
        "ITL": untimed,
        "OutputTokens": "no answer says how many tokens it has (usage.completion_tokens)",
    }
    return reasons.get(name, "no answer has a time for it")


def as_rows(summaries: dict[str, Summary | None]) -> list[tuple[str, Sequence[str]]]:
    """Known metrics as AISBench writes them: name, then Stage, Average ... N as texts."""
    return [
        (
            name,
            (
                "total",
                *(
                    _text(value, METRICS[name])
                    for value in (
                        summary.average,
                        summary.minimum,
                        summary.maximum,
                        summary.median,
                        summary.p75,
                        summary.p90,
                        summary.p99,
                    )
                ),
                str(summary.count),
            ),
        )
        for name, summary in summaries.items()
        if summary is not None
    ]


def _text(value: float, unit: Unit) -> str:
    rounded = round(value, 4)
    return str(rounded) if unit == "tokens" else f"{rounded} {unit}"


def common_metrics(
    performance: Performance, load: LoadRecord | None
) -> dict[str, dict[str, int | str | None]]:
    """The metrics of the whole load in AISBench's form, key -> {"total": value}; None where nothing was answered.

    Concurrency is the mean number of requests in flight, Max Concurrency what was asked for, as in AISBench's own table;
    Peak Concurrency, which AISBench does not have, the most that were in flight at once.
    """
    seconds = performance.duration_seconds

    def per_second(amount: int, unit: str) -> str | None:
        return f"{round(amount / seconds, 4)} {unit}" if seconds else None

    mean = performance.mean_in_flight
    values: dict[str, int | str | None] = {
        "Benchmark Duration": None if seconds is None else f"{round(seconds * 1e3, 4)} ms",
        "Total Requests": performance.total_requests,
        "Failed Requests": performance.total_requests - performance.success_requests,
        "Success Requests": performance.success_requests,
        "Concurrency": None if mean is None else str(round(mean, 4)),
        "Max Concurrency": load.concurrency if load else None,
        "Peak Concurrency": load.max_in_flight if load else None,
        "Request Throughput": per_second(performance.success_requests, "req/s"),
        "Total Input Tokens": performance.input_tokens,
        "Total Generated Tokens": performance.output_tokens,
        "Input Token Throughput": per_second(performance.input_tokens, "token/s"),
        "Output Token Throughput": per_second(performance.output_tokens, "token/s"),
        "Total Token Throughput": per_second(performance.input_tokens + performance.output_tokens, "token/s"),
    }
    return {name: {"total": value} for name, value in values.items()}
