"""Tokens written: what the engine counted against what the answers say."""

from typing import Any

import pytest

from analyzer.analyze import analyze_measurement
from analyzer.ledger_states import ledger_line
from contract.errors import ExitCode
from contract.measurement import Finding
from tests.analyzer.conftest import OUTPUT_TOKENS, Made, Make

STAMP = "20260101_000000"
WRITTEN = "generation_tokens_total"


def analysed(made: Made) -> dict[str, Any]:
    return analyze_measurement(made.manifest, STAMP).document


def warned(document: dict[str, Any]) -> str | None:
    found = [w["message"] for w in document["warnings"] if w["code"] == "OUTPUT_TOKENS_DIFFER"]
    return found[0] if found else None


def test_equal_to_the_token(make: Make) -> None:
    made = make("cold-2")
    made.write()
    document = analysed(made)
    ledger = document["ledgers"]["output_tokens"]
    total = OUTPUT_TOKENS * len(made.rows)
    assert (ledger["counters"], ledger["answers"], ledger["tokens"], ledger["reason"]) == (
        total,
        total,
        0,
        None,
    )
    assert {rank: set(both.values()) for rank, both in ledger["by_dp"].items()} == {
        str(rank): {OUTPUT_TOKENS * sum(row["dp_rank"] == rank for row in made.rows)} for rank in range(2)
    }
    assert document["validation"]["ledgers"]["output_tokens"]["status"] == "equal"
    assert warned(document) is None


@pytest.mark.parametrize(
    ("counted", "fields", "cause"),
    [
        (-1, {}, "no known cause fits"),
        (-1, {"settled": False}, "the counters had not come to rest"),
        (+7, {}, "no known cause fits"),
        (+7, {"findings": [Finding(code="FOREIGN_TRAFFIC", message="x")]}, "foreign traffic"),
    ],
)
def test_a_difference_is_told_with_what_fits_it(
    make: Make, counted: int, fields: dict[str, Any], cause: str
) -> None:
    made = make("cold-2")
    counters = made.counters()
    counters[1][WRITTEN] += counted
    made.write(counters=counters, **fields)
    document = analysed(made)
    state = document["validation"]["ledgers"]["output_tokens"]
    assert state == {
        "status": "differs",
        "against": "counters",
        "output_tokens": -counted,
        "by_dp": {"1": {"output_tokens": -counted}},
    }
    assert f"output_tokens differs ({-counted:+} output tokens against counters)" in ledger_line(
        document["validation"]["ledgers"]
    )
    message = warned(document)
    assert message is not None
    assert f"rank 1: {counted:+}" in message
    assert cause in message
    assert document["validation"]["status"] == "PASS_WITH_WARNING"


def test_ranks_that_are_swapped_are_seen_though_the_sums_agree(make: Make) -> None:
    made = make("cold-2")
    counters = made.counters()
    counters[0][WRITTEN] += 3
    counters[1][WRITTEN] -= 3
    made.write(counters=counters)
    message = warned(analysed(made))
    assert message is not None
    assert "rank 0: +3; rank 1: -3; the ranks differ though the sums agree" in message


def test_what_is_not_told_is_absent_with_the_reason(make: Make) -> None:
    made = make("cold-2")
    counters = made.counters()
    for values in counters.values():
        del values[WRITTEN]
    made.write(counters=counters)
    document = analysed(made)
    assert document["ledgers"]["output_tokens"]["tokens"] is None
    assert document["validation"]["ledgers"]["output_tokens"]["status"] == "absent"
    assert "generation_tokens" in document["validation"]["ledgers"]["output_tokens"]["reason"]
    assert warned(document) is None


def test_a_failed_attempt_may_have_written_tokens(make: Make) -> None:
    made = make("cold-2")
    records = made.records()
    records[3] = records[3]._replace(error_kind="bad_usage", completion_tokens=None, error_text="too many")
    made.write(records)
    analysis = analyze_measurement(made.manifest, STAMP)
    assert analysis.exit_code == ExitCode.REQUESTS_FAILED
    assert "1 failed or repeated attempts" in (warned(analysis.document) or "")
    assert "1 x bad_usage: too many" in str(analysis.message)


def test_without_an_answer_there_is_nothing_to_compare(make: Make) -> None:
    made = make("cold-2")
    lost = [
        record._replace(error_kind="timeout", error_text="nothing came", completion_tokens=None)
        for record in made.records()
    ]
    made.write(lost)
    document = analysed(made)
    state = document["validation"]["ledgers"]["output_tokens"]
    assert (state["status"], state["reason"]) == ("absent", "no request was answered")
    assert warned(document) is None


@pytest.mark.parametrize(
    ("counted", "cause"), [(+3, "no known cause fits"), (-3, "the counters had not come to rest")]
)
def test_where_the_sum_is_not_known_no_sums_are_said_to_agree(make: Make, counted: int, cause: str) -> None:
    """One answer of rank 0 does not say its tokens; rank 1 can be compared all the same."""
    made = make("cold-2")
    records = made.records()
    silent = next(at for at, record in enumerate(records) if record.dp_rank == 0)
    records[silent] = records[silent]._replace(completion_tokens=None)
    counters = made.counters()
    counters[1][WRITTEN] += counted
    made.write(records, counters=counters, settled=counted > 0)
    message = warned(analysed(made))
    assert message is not None
    assert f"answers not known; rank 1: {counted:+}; {cause}" in message


def test_the_replay_takes_no_more_output_than_was_allowed(make: Make) -> None:
    """A count of 2^62 would be that many blocks."""
    made = make("cold-2")
    exact = made.records()
    made.write(exact)
    expected = analysed(made)["prediction"]["hit_tokens"]
    assert expected is not None
    lying = [record._replace(completion_tokens=2**62) for record in exact]
    made.write(lying, stamp="20260101_000001")
    found = analyze_measurement(made.manifest, "20260101_000001").document["prediction"]
    assert found["hit_tokens"] == expected
