"""What failures void, what unknown numbers become, and when ledgers agree."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.actual import client_actual, per_request, void_theory
from analyzer.document import differences, equal
from analyzer.request_table import read_attempts
from analyzer.table import result_rows
from contract.errors import ArtifactError
from contract.planned import UNKNOWN
from contract.records import REQUEST_SCHEMA, to_batch
from contract.run_directory import MeasurementDirectory
from contract.streams import TableStream
from tests.analyzer.synthetic import measured, record, row


def test_a_failure_voids_the_rest_of_its_lane_and_no_other(tmp_path: Path) -> None:
    rows = [
        row(0, "group-0", 0, 0),
        row(1, "group-0", 1, 0),
        row(2, "group-0", 0, 32),
        row(3, "group-0", 1, 32),
        row(4, "group-0", 0, 64),
        row(5, "group-1", 0, 16),
    ]
    records = [record(at, rows[at]["theoretical_hit_tokens"]) for at in (0, 1, 3, 4, 5)]
    requests = measured(tmp_path, rows, [*records, record(2, None, "reset")])
    assert requests.void.tolist() == [False, False, True, False, True, False]
    assert void_theory(requests) == {
        "failed_requests": 1,
        "void_requests": 2,
        "void_input_tokens": 200,
        "void_theoretical_hit_tokens": 96,
    }
    assert per_request(requests)["compared"] == 4


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans()), min_size=1, max_size=30),
)
def test_void_is_what_walking_through_the_lanes_says(
    tmp_path_factory: pytest.TempPathFactory, sent: list[tuple[int, int, bool]]
) -> None:
    rows = [row(at, f"group-{group}", rank, 0) for at, (group, rank, _) in enumerate(sent)]
    records = [record(at, 0, None if fine else "http") for at, (_, _, fine) in enumerate(sent)]
    requests = measured(tmp_path_factory.mktemp("lanes"), rows, records)
    broken: set[tuple[int, int]] = set()
    expected = []
    for group, rank, fine in sent:
        if not fine:
            broken.add((group, rank))
        expected.append((group, rank) in broken)
    assert requests.void.tolist() == expected


def test_without_lanes_only_the_failed_request_is_void(tmp_path: Path) -> None:
    rows = [row(at, "group-0", None, 32) for at in range(3)]
    requests = measured(tmp_path, rows, [record(0, 32), record(1, None, "http"), record(2, 32)])
    assert requests.void.tolist() == [False, True, False]


def test_a_repeated_request_is_void_even_when_it_succeeds_in_the_end(tmp_path: Path) -> None:
    rows = [row(0, "group-0", None, 32)]
    requests = measured(tmp_path, rows, [record(0, None, "reset"), record(0, 96, attempt=2)])
    assert requests.answered.tolist() == [True]
    assert requests.void.tolist() == [True]
    assert (requests.retried, requests.failed) == (1, 0)
    assert requests.cached_tokens.tolist() == [96], "the last attempt is what the request got"


def test_attempts_count_by_their_number_and_not_by_their_place(tmp_path: Path) -> None:
    rows = [row(0, "group-0", None, 32)]
    requests = measured(tmp_path, rows, [record(0, 96, attempt=2), record(0, None, "reset")])
    assert requests.cached_tokens.tolist() == [96]


def test_a_request_that_was_never_sent_counts_as_failed(tmp_path: Path) -> None:
    requests = measured(tmp_path, [row(0, "group-0", None, 0), row(1, "group-0", None, 32)], [record(0, 0)])
    assert requests.answered.tolist() == [True, False]
    assert requests.cached_tokens.tolist() == [0, UNKNOWN]
    assert void_theory(requests)["failed_requests"] == 1


def test_sums_per_group_and_rank(tmp_path: Path) -> None:
    rows = [row(0, "group-10", 0, 0), row(1, "group-2", 1, 32), row(2, "group-10", 1, 64)]
    requests = measured(tmp_path, rows, [record(0, 0), record(1, 32), record(2, 64)])
    actual = client_actual(requests)
    assert (actual["prompt_tokens"], actual["cached_tokens"], actual["hit_rate"]) == (300, 96, 0.32)
    assert list(actual["groups"]) == ["group-2", "group-10"]
    assert actual["groups"]["group-10"]["cached_tokens"] == 64
    assert actual["dp"]["1"]["cached_tokens"] == 96


def test_one_answer_without_cached_tokens_makes_the_sum_unknown(tmp_path: Path) -> None:
    rows = [row(0, "group-0", None, 0), row(1, "group-0", None, 32)]
    requests = measured(tmp_path, rows, [record(0, 0), record(1, None)])
    actual = client_actual(requests)
    assert actual["cached_tokens"] is None
    assert actual["hit_rate"] is None
    assert "--enable-prompt-tokens-details" in actual["reason"]
    assert per_request(requests)["compared"] == 1


def test_nothing_answered_is_unknown_and_not_zero(tmp_path: Path) -> None:
    requests = measured(tmp_path, [row(0, "group-0", None, 0)], [record(0, None, "connect")])
    actual = client_actual(requests)
    assert actual["cached_tokens"] is None
    assert actual["reason"] == "no request was answered"


def test_differing_requests_are_named(tmp_path: Path) -> None:
    rows = [row(0, "group-0", None, 0), row(1, "group-0", None, 32)]
    found = per_request(measured(tmp_path, rows, [record(0, 0), record(1, 16)]))
    assert (found["compared"], found["equal"]) == (2, 1)
    assert found["differing"][0]["request_id"] == "request-00000001"
    assert found["differing"][0]["cached_tokens"] == 16


@pytest.mark.parametrize(
    ("ledgers", "agree"),
    [
        ({"a": 5, "b": 5, "c": 5}, True),
        ({"a": 5, "b": 5, "c": 6}, False),
        ({"a": 5, "b": 5, "c": None}, True),
        ({"a": 5, "b": None, "c": None}, None),
    ],
)
def test_agreement_needs_two_known_ledgers(ledgers: dict[str, int | None], agree: bool | None) -> None:
    assert equal(ledgers) is agree


def test_differences_are_signed_and_absolute_percentage_points() -> None:
    assert differences(0.6, 0.55) == {
        "theory_actual_difference_pp": pytest.approx(5),
        "theory_actual_signed_difference_pp": pytest.approx(-5),
        "theory_actual_absolute_difference_pp": pytest.approx(5),
    }
    assert set(differences(0.6, None).values()) == {None}


def test_unknown_values_are_not_available_in_the_table() -> None:
    analysis = {
        "requested_target_hit_rate": 0.6,
        "theoretical_hit_rate": 0.59964,
        "actual": {"global_hit_rate": None, "unit": "tokens"},
        "theory": {"hit_tokens": 5},
        "ledgers": {
            "differences": [],
            "cached_tokens": {"total": {"hits": None, "queries": None, "hit_rate": None}},
            "prediction": {"total": {"hits": None, "queries": None, "hit_rate": None}},
        },
        "theory_actual_difference_pp": None,
        "target_difference_pp": 0.036,
    }
    assert [value for _, value in result_rows(analysis)] == [
        "60.00%", "59.96%", "N/A", "N/A", "0.04%", "N/A",
    ]  # fmt: skip


def test_records_of_a_run_that_died_are_read_from_its_stream(tmp_path: Path) -> None:
    directory = MeasurementDirectory(tmp_path)
    stream = TableStream(directory.requests_stream, REQUEST_SCHEMA)
    stream.append(to_batch([record(0, 0), record(1, 32)]))
    stream.append(to_batch([record(2, 64)]))
    content = directory.requests_stream.read_bytes()
    directory.requests_stream.write_bytes(content[:-10])  # killed while it wrote
    assert read_attempts(directory).position.tolist() == [0, 1]
    directory.requests_stream.unlink()
    with pytest.raises(ArtifactError, match="has no request records"):
        read_attempts(directory)
