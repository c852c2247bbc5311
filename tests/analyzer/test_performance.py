"""Distributions and definitions against sums done by hand and numpy's own percentiles."""

import csv
import io
import random
import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.performance import common_metrics, measure_performance, summarize
from analyzer.report import csv_text
from contract.measurement import LoadRecord
from contract.run_directory import MeasurementDirectory
from tests.analyzer.synthetic import measured, record, row


def by_hand(values: list[float], share: float) -> float:
    """Linear interpolation at (n - 1) * p, on a sorted list."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40))
def test_distribution(values: list[float]) -> None:
    found = summarize(np.array(values))
    assert found is not None
    assert found.count == len(values)
    assert (found.minimum, found.maximum) == (min(values), max(values))
    assert found.average == pytest.approx(statistics.fmean(values))
    for name, share in (("median", 0.5), ("p75", 0.75), ("p90", 0.9), ("p99", 0.99)):
        assert getattr(found, name) == pytest.approx(by_hand(values, share))
        assert getattr(found, name) == pytest.approx(np.percentile(values, share * 100))


def test_unknown_values_are_left_out() -> None:
    found = summarize(np.array([1.0, np.nan, 3.0]))
    assert found is not None
    assert (found.count, found.average) == (2, 2.0)
    assert summarize(np.array([np.nan])) is None
    assert summarize(np.empty(0)) is None


@pytest.fixture
def mixed(tmp_path: Path) -> tuple:
    """40 requests: most fine, one failed, one repeated, one with a single token, one of several tokens per chunk."""
    draw = random.Random(5)
    rows = [row(at, "group-0", None, 0) for at in range(40)]
    records = []
    for at in range(40):
        tokens = draw.randrange(2, 9)
        gaps = tuple(draw.uniform(0.01, 0.2) for _ in range(tokens - 1))
        ttft = draw.uniform(0.05, 0.5)
        records.append(
            record(
                at, 32, ttft_s=ttft, e2el_s=ttft + sum(gaps) + 0.001, itl_s=gaps, chunks=tokens,
                completion_tokens=tokens, prompt_tokens=draw.randrange(50, 90), started_ns=at * 10**8,
            )
        )  # fmt: skip
    records[3] = record(3, None, "timeout", started_ns=3 * 10**8)
    records[7] = records[7]._replace(itl_s=(), chunks=1, completion_tokens=1)
    records[9] = records[9]._replace(itl_s=(0.125,), chunks=2, completion_tokens=6)
    repeated = record(11, None, "reset", started_ns=11 * 10**8)
    records[11] = records[11]._replace(attempt=2)
    draw.shuffle(records)
    return measured(tmp_path, rows, [repeated, *records]), records, MeasurementDirectory(tmp_path)


def test_definitions(mixed: tuple) -> None:
    requests, records, directory = mixed
    found = measure_performance(requests, directory, streamed=True)
    fine = [item for item in records if item.error_kind is None]
    assert len(fine) == 39
    expected = {
        "E2EL": [item.e2el_s * 1e3 for item in fine],
        "TTFT": [item.ttft_s * 1e3 for item in fine],
        "TPOT": [item.tpot_s * 1e3 for item in fine if item.tpot_s is not None],
        "ITL": [gap * 1e3 for item in fine for gap in item.itl_s],
        "InputTokens": [item.prompt_tokens for item in fine],
        "OutputTokens": [item.completion_tokens for item in fine],
        "OutputTokenThroughput": [item.completion_tokens / item.e2el_s for item in fine],
        "PrefillTokenThroughput": [item.prompt_tokens / item.ttft_s for item in fine],
    }
    # A rate is on average all tokens over all the time they took.
    averages = {
        "OutputTokenThroughput": sum(item.completion_tokens for item in fine)
        / sum(item.e2el_s for item in fine),
        "PrefillTokenThroughput": sum(item.prompt_tokens for item in fine)
        / sum(item.ttft_s for item in fine),
    }
    assert list(found.summaries) == list(expected)
    assert len(expected["TPOT"]) == 38, "one answer has a single token"
    for name, values in expected.items():
        summary = found.summaries[name]
        assert summary is not None
        assert summary.count == len(values)
        # ITL is recorded in single precision.
        assert summary.average == pytest.approx(averages.get(name, statistics.fmean(values)), rel=1e-6)
        assert summary.p99 == pytest.approx(by_hand(values, 0.99), rel=1e-6)
        assert summary.maximum == pytest.approx(max(values), rel=1e-6)
    assert (found.total_requests, found.success_requests) == (40, 39)
    assert found.chunks == sum(item.chunks for item in fine)
    assert found.output_tokens == sum(expected["OutputTokens"]) > found.chunks
    end = max(item.started_ns / 1e9 + item.e2el_s for item in fine)
    assert found.duration_seconds == pytest.approx(end - 0)
    assert found.mean_in_flight == pytest.approx(sum(expected["E2EL"]) / 1e3 / end)


def test_answers_that_arrived_at_once_have_no_token_times(tmp_path: Path) -> None:
    """Two token by token, one collected by a proxy, one in a single chunk, one of counts without text."""
    rows = [row(at, "group-0", None, 0) for at in range(5)]
    apart = {"completion_tokens": 3, "chunks": 3, "itl_s": (0.1, 0.3), "ttft_s": 0.2, "e2el_s": 0.6}
    once = {"completion_tokens": 3, "ttft_s": 0.5, "e2el_s": 0.5001}
    records = [
        record(0, 32, **apart),
        record(1, 32, **apart),
        record(2, 32, **once, chunks=3, itl_s=(0.0, 0.0)),
        record(3, 32, **once, chunks=1, itl_s=()),
        record(4, 32, completion_tokens=3, chunks=0, itl_s=(), ttft_s=None, e2el_s=0.6),
    ]
    found = measure_performance(
        measured(tmp_path, rows, records), MeasurementDirectory(tmp_path), streamed=True
    )
    tpot, itl = found.summaries["TPOT"], found.summaries["ITL"]
    assert tpot is not None
    assert itl is not None
    assert (tpot.count, tpot.average) == (2, pytest.approx(200))
    assert (itl.count, itl.average, itl.minimum) == (4, pytest.approx(200), pytest.approx(100))
    assert found.untimed == 3


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"completion_tokens": 3, "chunks": 3, "itl_s": (0.0, 0.0)}, "arrived in one read"),
        ({"completion_tokens": 3, "chunks": 0, "itl_s": (), "ttft_s": None}, "token counts and no text"),
        ({"completion_tokens": 1, "chunks": 1, "itl_s": ()}, "no answer has more than one token"),
    ],
)
def test_why_there_are_no_token_times(tmp_path: Path, changes: dict, reason: str) -> None:
    records = [record(0, 32, **({"ttft_s": 0.5, "e2el_s": 0.6} | changes))]
    requests = measured(tmp_path, [row(0, "group-0", None, 0)], records)
    found = measure_performance(requests, MeasurementDirectory(tmp_path), streamed=True)
    assert found.summaries["TPOT"] is None
    assert found.summaries["ITL"] is None
    assert reason in found.unavailable["TPOT"]
    assert found.unavailable["ITL"] == found.unavailable["TPOT"]


def test_common_metrics_are_of_the_whole_load(mixed: tuple) -> None:
    requests, records, directory = mixed
    found = measure_performance(requests, directory, streamed=True, wall_seconds=8.0)
    load = LoadRecord(
        driver="native", concurrency=5, stream=True, retries=0, timeout_seconds=9.0, started=40, finished=39, failed=1,
        aborted=0, retried=0, wall_seconds=8.0, mean_in_flight=3.5, max_in_flight=4, lane_wait_seconds=0.0,
    )  # fmt: skip
    common = {name: item["total"] for name, item in common_metrics(found, load).items()}
    assert list(common) == [
        "Benchmark Duration", "Total Requests", "Failed Requests", "Success Requests", "Concurrency",
        "Max Concurrency", "Peak Concurrency", "Request Throughput", "Total Input Tokens", "Total Generated Tokens",
        "Input Token Throughput", "Output Token Throughput", "Total Token Throughput",
    ]  # fmt: skip
    assert common["Benchmark Duration"] == "8000.0 ms"
    assert (common["Total Requests"], common["Failed Requests"], common["Max Concurrency"]) == (40, 1, 5)
    assert common["Peak Concurrency"] == 4
    assert common["Request Throughput"] == "4.875 req/s"
    fine = [item for item in records if item.error_kind is None]
    total = sum(item.prompt_tokens + item.completion_tokens for item in fine)
    assert float(common["Total Token Throughput"].removesuffix(" token/s")) == pytest.approx(
        total / 8, abs=1e-4
    )


def test_csv_is_in_the_form_of_aisbench(mixed: tuple) -> None:
    requests, _, directory = mixed
    found = measure_performance(requests, directory, streamed=True)
    text = csv_text(found)
    assert text.splitlines()[0] == "Performance Parameters,Stage,Average,Min,Max,Median,P75,P90,P99,N"
    rows = list(csv.DictReader(io.StringIO(text)))
    assert rows[0]["Stage"] == "total"
    number, unit = rows[1]["Average"].split()
    assert (rows[1]["Performance Parameters"], unit) == ("TTFT", "ms")
    assert found.summaries["TTFT"] is not None
    assert float(number) == pytest.approx(found.summaries["TTFT"].average, abs=1e-4)
    assert rows[-1]["Max"].endswith(" token/s")
    assert rows[4]["N"] == "39"


def test_without_a_stream_only_whole_answers_have_times(tmp_path: Path) -> None:
    whole = {"ttft_s": None, "itl_s": (), "chunks": 0}
    requests = measured(
        tmp_path,
        [row(at, "group-0", None, 0) for at in range(2)],
        [record(0, 0, **whole), record(1, 32, **whole)],
    )
    found = measure_performance(requests, MeasurementDirectory(tmp_path), streamed=False)
    missing = {name for name, summary in found.summaries.items() if summary is None}
    assert missing == {"TTFT", "TPOT", "ITL", "PrefillTokenThroughput"} == set(found.unavailable)
    assert all("stream: false" in reason for reason in found.unavailable.values())
    assert "TTFT" not in csv_text(found)
    assert found.summaries["E2EL"] is not None
    assert found.chunks is None


def test_nothing_answered_is_null_with_a_reason(tmp_path: Path) -> None:
    requests = measured(tmp_path, [row(0, "group-0", None, 0)], [record(0, None, "connect")])
    found = measure_performance(requests, MeasurementDirectory(tmp_path), streamed=True, wall_seconds=3.0)
    assert set(found.summaries.values()) == {None}
    assert set(found.unavailable.values()) == {"no request was answered"}
    common = common_metrics(found, None)
    assert common["Request Throughput"]["total"] is None
    assert common["Failed Requests"]["total"] == 1
