"""Two scrapes alone: a rate that is right, or none, with its reason and exit code 7. Never a finding and a number."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from analyzer.offline import analyze_scrapes
from contract.errors import ExitCode, HitLabError
from enginemetrics.difference import FindingCode
from tests.analyzer.conftest import Made, Make

QUERIES, HITS = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
STARTED = "process_start_time_seconds 100.0\n"


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analyzer.offline.write_report", lambda *_, **__: None)


def pages(made: Made) -> tuple[str, str]:
    """Before and after a load of exactly what was planned, as saved with curl."""
    directory = made.write()
    return directory.baseline.read_text() + STARTED, directory.after.read_text() + STARTED


def analyzed(made: Made, before: str, after: str) -> Any:
    folder = made.manifest.directory.root
    for name, text in (("b.prom", before), ("a.prom", after)):
        (folder / name).write_text(text)
    return analyze_scrapes(made.manifest, folder / "b.prom", folder / "a.prom")


def value_of(line: str) -> int:
    return int(float(line.rsplit(" ", 1)[1]))


def with_value(page: str, name: str, rank: int, change: Callable[[int], float]) -> str:
    """A counter of one rank shows something else."""
    pattern = re.compile(rf'^({re.escape(name)}{{engine="{rank}".*}}) (\S+)$', re.MULTILINE)
    return pattern.sub(lambda found: f"{found[1]} {change(int(float(found[2])))}", page)


def assert_no_rate(analysis: Any, code: str, words: str) -> None:
    document = analysis.document
    assert analysis.exit_code == ExitCode.INCONCLUSIVE
    actual = document["actual"]
    assert (actual["global_hit_rate"], document["theory_actual_difference_pp"]) == (None, None)
    assert words in actual["reason"]
    assert words in analysis.message
    codes = [warning["code"] for warning in document["warnings"]]
    assert code in codes
    assert "NOT_MEASURABLE" in codes
    assert document["validation"]["actual_status"] == "NOT_MEASURED"
    assert document["validation"]["ledgers"]["counters"]["status"] == "absent"


def one_more_series(page: str) -> str:
    return page + page.splitlines()[0] + "\n"


FAULTS: dict[str, tuple[Callable[[str], str], str, str]] = {
    "a series twice": (one_more_series, "SCRAPE_UNUSABLE", "stands in it twice"),
    "the page twice": (lambda page: page * 2, "SCRAPE_UNUSABLE", "stands in it twice"),
    "cut inside the last digits": (lambda page: page[:-3], "SCRAPE_UNUSABLE", "does not end in a newline"),
    "more hits than queries in the page": (
        lambda page: with_value(page, HITS, 1, lambda value: value * 1000),
        "SCRAPE_UNUSABLE",
        "more hits",
    ),
    "no count": (
        lambda page: with_value(page, HITS, 0, lambda _: float("nan")), "SCRAPE_UNUSABLE", "no count",
    ),
    "more hits than queries between the pages": (
        lambda page: with_value(with_value(page, QUERIES, 1, lambda _: 1100), HITS, 1, lambda _: 1099 + 1),
        "HITS_EXCEED_QUERIES",
        "hits from",
    ),
    "a restart": (
        lambda page: page.replace(STARTED, STARTED.replace("100", "200")), "ENGINE_RESTARTED", "start time",
    ),
    "another model": (
        lambda page: page.replace('model_name="demo"', 'model_name="other"'), "MODEL_CHANGED", "labelled model",
    ),
    "a counter that fell": (
        lambda page: with_value(page, "vllm:prompt_tokens_total", 0, lambda _: 3), "COUNTER_WENT_BACKWARDS", "fell",
    ),
    "series of one more process": (
        lambda page: page + "".join(
            line.replace("{", '{pid="7",') + "\n" for line in page.splitlines() if line.startswith((QUERIES, HITS))
        ),
        "SERIES_CHANGED",
        "series",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_known_is_null_with_its_reason(make: Make, fault: str) -> None:
    made = make()
    before, after = pages(made)
    if fault == "more hits than queries between the pages":
        before = with_value(before, HITS, 1, lambda _: 5)
    spoil, code, words = FAULTS[fault]
    analysis = analyzed(made, before, spoil(after))
    assert_no_rate(analysis, code, words)
    assert analysis.document["runtime"]["metrics_after"]["raw_prometheus"] == spoil(after)


@pytest.mark.parametrize("which", ["baseline", "after"])
def test_the_measured_rate_of_the_answers_stands_beside_it(make: Make, which: str) -> None:
    """The same rules for a run's own scrapes; what the answers said is not touched by them."""
    from analyzer.analyze import analyze_measurement
    from analyzer.table import result_rows
    from tests.analyzer.synthetic import edit_measurement

    made = make()
    directory = made.write()
    for path in (directory.baseline, directory.after):
        begun = (
            STARTED
            if path.name.startswith(which)
            else STARTED.replace("100", "50" if which == "after" else "150")
        )
        path.write_text(path.read_text() + begun)
    edit_measurement(directory)
    analysis = analyze_measurement(made.manifest, directory.stamp)
    assert_no_rate(analysis, "ENGINE_RESTARTED", "start time")
    rate = analysis.document["theory"]["hit_tokens"] / analysis.document["theory"]["input_tokens"]
    assert analysis.document["actual"]["client"]["hit_rate"] == rate
    rows = dict(result_rows(analysis.document))
    assert rows["Overall Actual Hit Rate"] == "N/A"
    assert rows["Hit Rate by Cached Tokens of Answers"].startswith(f"{rate:.2%}")


Mutation = Callable[[str], str]


def cut(share: float) -> Mutation:
    return lambda page: page[: int(len(page) * share)]


def doubled(which: list[int]) -> Mutation:
    def mutate(page: str) -> str:
        lines = page.splitlines(keepends=True)
        return "".join([*lines, *(lines[at % len(lines)] for at in which)])

    return mutate


def without(which: list[int]) -> Mutation:
    def mutate(page: str) -> str:
        lines = page.splitlines(keepends=True)
        gone = {at % len(lines) for at in which}
        return "".join(line for at, line in enumerate(lines) if at not in gone)

    return mutate


def renamed(model: str) -> Mutation:
    return lambda page: page.replace('model_name="demo"', f'model_name="{model}"')


def hits_above(rank: int, more: int) -> Mutation:
    def mutate(page: str) -> str:
        line = next(line for line in page.splitlines() if line.startswith(f'{QUERIES}{{engine="{rank}"'))
        return with_value(page, HITS, rank, lambda _: value_of(line) + more)

    return mutate


def started(at: int) -> Mutation:
    return lambda page: page.replace(STARTED, f"process_start_time_seconds {at}\n")


places = st.lists(st.integers(0, 200), min_size=1, max_size=3)
mutations: st.SearchStrategy[Mutation] = st.one_of(
    st.floats(0, 1).map(cut),
    places.map(doubled),
    places.map(without),
    st.sampled_from(["", "other", "demo-2"]).map(renamed),
    st.builds(hits_above, st.integers(0, 1), st.integers(1, 10**6)),
    st.integers(1, 99).map(started),
)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutation=mutations, which=st.integers(0, 1))
@example(mutation=cut(1.0), which=1)
def test_a_spoiled_page_never_gives_another_rate(
    make: Make, tmp_path: Path, mutation: Mutation, which: int
) -> None:
    made = _once(make, tmp_path)
    both = list(made.sound)
    both[which] = mutation(both[which])
    try:
        analysis = analyzed(made.made, *both)
    except HitLabError:
        return  # refused: not the page of an engine, or not of all its ranks
    found = analysis.document["actual"]
    if found["global_hit_rate"] is None:
        assert analysis.exit_code == ExitCode.INCONCLUSIVE
        assert found["reason"]
    else:
        assert found["global_hit_rate"] == made.rate
        codes = {warning["code"] for warning in analysis.document["warnings"]}
        assert not codes & set(get_args(FindingCode))
        assert analysis.exit_code == ExitCode.DONE


class _Sound:
    def __init__(self, made: Made) -> None:
        self.made, self.sound = made, pages(made)
        self.rate = analyzed(made, *self.sound).document["actual"]["global_hit_rate"]


def _once(make: Make, tmp_path: Path, known: dict[Path, _Sound] = {}) -> _Sound:  # noqa: B006 - one per test
    if tmp_path not in known:
        known[tmp_path] = _Sound(make())
    return known[tmp_path]
