"""What the charts show, as columns: made from the request records and the samples of a measurement."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from analyzer.html_report.thinning import Flags, Floats, Integers
from analyzer.kv_usage import KvSamples
from analyzer.performance import token_gaps
from analyzer.request_table import RequestTable, record_batches
from contract.planned import UNKNOWN
from contract.run_directory import MeasurementDirectory

ERRORS_SHOWN = 20
Latency = Literal["TTFT", "TPOT", "ITL", "E2EL"]
LATENCIES: tuple[Latency, ...] = ("TTFT", "TPOT", "ITL", "E2EL")


@dataclass(frozen=True)
class Cumulative:
    """Hit rates over the first n requests in final order, n = 1 to count.

    `actual` is of the requests that were answered; it is NaN before the first of them and from `unknown_from` on, the
    first answer that does not say what was cached. `ahead` is by how many tokens actual hits exceed planned ones.
    """

    theory: Floats
    actual: Floats
    ahead: Integers
    unknown_from: int | None


def cumulative(requests: RequestTable) -> Cumulative:
    plan = requests.plan
    unsaid = requests.answered & ((requests.cached_tokens == UNKNOWN) | (requests.prompt_tokens == UNKNOWN))
    unknown_from = int(unsaid.argmax()) if unsaid.any() else None
    known = requests.answered & ~unsaid
    hits = np.cumsum(np.where(known, requests.cached_tokens, 0))
    queries = np.cumsum(np.where(known, requests.prompt_tokens, 0))
    actual = np.full(requests.count, np.nan)
    np.divide(hits, queries, out=actual, where=queries > 0)
    if unknown_from is not None:
        actual[unknown_from:] = np.nan
    planned = np.cumsum(plan.theoretical_hit_tokens)
    return Cumulative(planned / np.cumsum(plan.input_tokens), actual, hits - planned, unknown_from)


@dataclass(frozen=True)
class FirstTokens:
    """Of the requests whose TTFT and cached share are known. `left_out`: how many requests lack one of them."""

    share: Floats
    ttft_s: Floats
    left_out: int


def first_tokens(requests: RequestTable) -> FirstTokens:
    ttft = np.full(requests.count, np.nan)
    ttft[requests.answered] = requests.attempts.ttft_s[requests.last[requests.answered]]
    known = (requests.cached_tokens != UNKNOWN) & (requests.prompt_tokens > 0) & np.isfinite(ttft)
    return FirstTokens(
        requests.cached_tokens[known] / requests.prompt_tokens[known],
        ttft[known],
        requests.count - int(known.sum()),
    )


def latencies(requests: RequestTable, directory: MeasurementDirectory, name: Latency) -> Iterator[Floats]:
    """The values behind a row of `analyzer.performance`, in ms and in pieces; those that are not known are left out."""
    attempts = requests.attempts
    chosen = requests.last[requests.answered]
    if name in ("TPOT", "ITL"):
        for timed, gaps in token_gaps(directory, chosen[attempts.completion_tokens[chosen] > 1]):
            if name == "ITL":
                yield gaps.astype(np.float64)
            else:
                after_first = attempts.e2el_s[timed] - attempts.ttft_s[timed]
                yield after_first / (attempts.completion_tokens[timed] - 1) * 1e3
        return
    values = attempts.ttft_s[chosen] if name == "TTFT" else attempts.e2el_s[chosen]
    yield values[np.isfinite(values)] * 1e3


@dataclass(frozen=True)
class FailedAttempt:
    position: int
    attempt: int
    kind: str
    http_status: int | None
    text: str | None


def failed_attempts(directory: MeasurementDirectory) -> list[FailedAttempt]:
    """The first `ERRORS_SHOWN` attempts that failed, in the order in which they did."""
    found: list[FailedAttempt] = []
    columns = ["position", "attempt", "error_kind", "http_status", "error_text"]
    for batch in record_batches(directory, columns):
        failed = batch.filter(batch.column("error_kind").is_valid())
        rows = failed.slice(0, ERRORS_SHOWN - len(found)).select(columns).to_pylist()
        found += [FailedAttempt(*row.values()) for row in rows]
        if len(found) == ERRORS_SHOWN:
            break
    return found


@dataclass(frozen=True)
class EngineSamples:
    """One row per sample and rank, in order of time. `elapsed_seconds` counts from the beginning of the load; NaN in the
    others: the engine did not say."""

    elapsed_seconds: Floats
    rank: Integers
    kv_cache_usage: Floats
    running: Floats
    waiting: Floats

    @property
    def ranks(self) -> list[int]:
        return [int(rank) for rank in np.unique(self.rank)]

    def of_rank(self, rank: int) -> Flags:
        flags: Flags = self.rank == rank
        return flags


def engine_samples(samples: KvSamples) -> EngineSamples:
    """What was sampled while the load ran; without rows when nothing was."""
    table = samples.table

    def numbers(name: str) -> Floats:
        values: Floats = table[name].cast(pa.float64()).to_numpy()
        return values

    return EngineSamples(
        elapsed_seconds=numbers("elapsed_seconds"),
        rank=table["dp_rank"].to_numpy().astype(np.int64),
        kv_cache_usage=numbers("kv_cache_usage"),
        running=numbers("requests_running"),
        waiting=numbers("requests_waiting"),
    )
