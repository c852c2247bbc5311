"""`validation.ledgers`: no ledger leaves the comparison without a word."""

from hypothesis import given
from hypothesis import strategies as st

from analyzer.analyze import analyze_measurement
from analyzer.ledger_states import incomplete_ledgers, ledger_line, ledger_states
from analyzer.ledgers import NAMES, Ledger, Tokens
from analyzer.offline import analyze_scrapes
from tests.analyzer.conftest import Make

STAMP = "20260101_000000"

counts = st.none() | st.integers(0, 5)
tokens = st.builds(lambda hits, queries: Tokens(hits, queries, "not told"), counts, counts)
made = st.builds(
    lambda total, ranks: Ledger(total, dict(enumerate(ranks))), tokens, st.lists(tokens, max_size=2)
)


@given(st.tuples(*[made] * len(NAMES)), st.integers(0, 5), st.integers(0, 5))
def test_equal_is_said_only_of_what_is_equal(found: tuple[Ledger, ...], theory: int, planned: int) -> None:
    ledgers = dict(zip(NAMES, found, strict=True))
    states = ledger_states(ledgers, theory, planned)
    known = [name for name in NAMES if ledgers[name].total.hits is not None]
    assert list(states) == list(NAMES)
    for name, state in states.items():
        mine = ledgers[name]
        assert (state["status"] == "absent") == (name not in known)
        if name not in known:
            assert state["reason"] == "not told"
            continue
        other = Ledger(Tokens(theory, planned)) if name == known[0] else ledgers[known[0]]
        pairs = [
            (mine.total, other.total),
            *((mine.ranks[r], other.ranks[r]) for r in mine.ranks.keys() & other.ranks),
        ]
        same = all(
            a == b
            for one, two in pairs
            for a, b in ((one.hits, two.hits), (one.queries, two.queries))
            if a is not None and b is not None
        )
        assert (state["status"] == "equal") == same
    assert ledger_line(states).count(",") >= len(NAMES) - 1


def test_a_clean_run_says_equal_of_every_ledger(make: Make) -> None:
    made = make()
    made.write()
    document = analyze_measurement(made.manifest, STAMP).document
    states = document["validation"]["ledgers"]
    assert {name: (state["status"], state["against"]) for name, state in states.items()} == {
        "counters": ("equal", "theory"),
        "by_source": ("equal", "counters"),
        "cached_tokens": ("equal", "counters"),
        "computed": ("equal", "counters"),
        "prediction": ("equal", "counters"),
        "output_tokens": ("equal", "counters"),
    }
    assert document["validation"]["status"] == "PASS"
    assert ledger_line(states) == (
        "Ledgers: counters equal, by_source equal, cached_tokens equal, computed equal, prediction equal, "
        "output_tokens equal"
    )


def test_one_answer_that_does_not_tell_is_said(make: Make) -> None:
    made = make()
    records = made.records()
    records[7] = records[7]._replace(cached_tokens=None)
    directory = made.write(records)
    document = analyze_measurement(made.manifest, STAMP).document
    state = document["validation"]["ledgers"]["cached_tokens"]
    assert (state["status"], state["answers_without"], state["answers"]) == ("absent", 1, 24)
    assert "1 of 24 answers" in state["reason"]
    assert "cached_tokens absent (1 of 24 answers have none)" in ledger_line(
        document["validation"]["ledgers"]
    )
    assert [warning["code"] for warning in document["warnings"]] == ["LEDGER_INCOMPLETE"]
    assert document["validation"]["status"] == "PASS_WITH_WARNING"
    page = directory.report.read_text()
    assert "cached_tokens absent (1 of 24 answers have none)" in page


def test_answers_that_never_tell_are_absent_without_a_warning(make: Make) -> None:
    made = make()
    made.write(made.records(), stamp=STAMP)
    silent = [record._replace(cached_tokens=None) for record in made.records()]
    made.write(silent, stamp="20260101_000001")
    document = analyze_measurement(made.manifest, "20260101_000001").document
    state = document["validation"]["ledgers"]["cached_tokens"]
    assert (state["status"], state["answers_without"], state["answers"]) == ("absent", 24, 24)
    assert incomplete_ledgers(document["validation"]["ledgers"]) == []


def test_by_how_many_tokens(make: Make) -> None:
    made = make()
    counters = made.counters()
    counters[1]["queries"] += 32
    counters[1]["hits"] -= 16
    made.write(counters=counters)
    states = analyze_measurement(made.manifest, STAMP).document["validation"]["ledgers"]
    assert states["counters"] == {
        "status": "differs", "against": "theory", "hit_tokens": -16, "input_tokens": 32, "by_dp": {},
    }  # fmt: skip
    assert states["cached_tokens"] == {
        "status": "differs", "against": "counters", "hit_tokens": 16, "input_tokens": -32,
        "by_dp": {"1": {"hit_tokens": 16, "input_tokens": -32}},
    }  # fmt: skip
    line = ledger_line(states)
    assert "counters differs (-16 hit tokens, +32 input tokens against theory)" in line


def test_swapped_ranks_differ_though_the_sums_agree(make: Make) -> None:
    made = make()
    counters = made.counters()
    counters[0], counters[1] = counters[1], counters[0]
    made.write(counters=counters)
    states = analyze_measurement(made.manifest, STAMP).document["validation"]["ledgers"]
    state = states["cached_tokens"]
    assert (state["status"], state["hit_tokens"], state["input_tokens"]) == ("differs", 0, 0)
    assert state["by_dp"].keys() == {"0", "1"}
    assert "cached_tokens differs (rank 0 " in ledger_line(states)


def test_scrapes_alone_name_what_they_cannot_check(make: Make) -> None:
    made = make()
    directory = made.write()
    states = analyze_scrapes(made.manifest, directory.baseline, directory.after).document["validation"][
        "ledgers"
    ]
    assert {name: state["status"] for name, state in states.items()} == {
        "counters": "equal", "by_source": "equal", "cached_tokens": "absent", "computed": "equal", "prediction": "absent",
        "output_tokens": "absent",
    }  # fmt: skip
    assert "hold no requests" in states["cached_tokens"]["reason"]
