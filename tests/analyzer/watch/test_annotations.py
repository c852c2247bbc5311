"""From events and analysis to annotations, and what has to be done about them. Pure."""

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from analyzer.watch.annotations import Annotation, annotations_of
from analyzer.watch.reconcile import changes
from tests.analyzer.watch.conftest import PHASES, epoch_ms, event, whole_run


def analysis(*warnings: dict[str, Any], actual: float | None = 0.5994) -> dict[str, Any]:
    return {
        "status": "complete",
        "validation": {"status": "PASS"},
        "actual": {"global_hit_rate": actual},
        "theoretical_hit_rate": 0.6,
        "requested_target_hit_rate": 0.6,
        "warnings": list(warnings),
    }


def made(
    events: list[dict[str, Any]], found: dict[str, Any] | None = None, **more: Any
) -> dict[str, Annotation]:
    annotations = annotations_of("made", "20260101_000000", events, found, **{"ended": True, **more})
    by_key = {annotation.key: annotation for annotation in annotations}
    assert len(by_key) == len(annotations), "keys tell annotations apart"
    assert all(annotation.key in annotation.tags for annotation in annotations)
    assert all(
        annotation.tags[:3] == ("hitlab", "run:made", "measurement:20260101_000000")
        for annotation in annotations
    )
    return by_key


def test_a_region_per_phase_and_a_verdict_with_a_link() -> None:
    found = made(whole_run(), analysis(), report_url="http://x/report.html")
    assert set(found) == {f"phase:{name}" for name in PHASES} | {"verdict"}
    assert (found["phase:formal"].time_ms, found["phase:formal"].end_ms) == (epoch_ms(41), epoch_ms(50))
    assert "phase" in found["phase:formal"].tags
    verdict = found["verdict"]
    assert (verdict.time_ms, verdict.end_ms) == (epoch_ms(71), None)
    assert verdict.text.startswith("<b>PASS</b>: hit rate actual 59.94%, theory 60.00%, target 60.00%.")
    assert '<a href="http://x/report.html"' in verdict.text


def test_a_phase_that_lasts_is_a_point_until_it_ends() -> None:
    events = whole_run()[:10]
    assert events[-1]["event"] == "phase_started"
    found = made(events, ended=False)
    assert found["phase:formal"].end_ms is None
    assert found["phase:baseline"].end_ms == epoch_ms(40)
    assert "verdict" not in found


def test_a_run_that_was_killed_ends_with_its_last_event() -> None:
    found = made(whole_run()[:11], None, failure="nothing was recorded")
    assert found["phase:formal"].end_ms == epoch_ms(50)
    assert found["verdict"].time_ms == epoch_ms(50)
    assert "cut short: nothing was recorded" in found["verdict"].text


def test_the_verdict_waits_for_the_analysis() -> None:
    assert "verdict" not in made(whole_run())


def test_nothing_is_said_of_a_run_without_events() -> None:
    assert made([]) == {}


def test_each_warning_is_a_point_where_it_was_found_and_none_comes_twice() -> None:
    early = event(2, "warning", code="CONTAMINATED", message="a", tokens=None)
    again = event(3, "warning", code="CONTAMINATED", message="b", tokens=None)
    repeated = [{"code": "CONTAMINATED", "message": "a"}, {"code": "CONTAMINATED", "message": "b"}]
    own = {"code": "ACTUAL_DEVIATION", "difference_pp": 3.21}
    found = made(whole_run(early, again), analysis(*repeated, own))
    warned = {key: item for key, item in found.items() if "warning" in item.tags}
    assert {key: item.time_ms for key, item in warned.items()} == {
        "warning:CONTAMINATED": epoch_ms(2),
        "warning:CONTAMINATED#2": epoch_ms(3),
        "warning:ACTUAL_DEVIATION": epoch_ms(71),
    }
    assert all(item.end_ms is None for item in warned.values())
    assert "3.21 pp" in warned["warning:ACTUAL_DEVIATION"].text
    assert "earlier traffic" in warned["warning:CONTAMINATED"].text, "its meaning is told too"


def test_text_of_engines_is_escaped() -> None:
    nasty = "<script>alert(1)</script>"
    found = made(
        whole_run(event(2, "warning", code=nasty, message=nasty, tokens=None)),
        analysis(),
        report_url='http://x/"onclick="y',
    )
    assert not any("<script" in item.text or '"onclick' in item.text for item in found.values())
    failed = made([event(0, "run_finished", status="failed", error=nasty)], None, failure=nasty)
    assert "<script" not in failed["verdict"].text


def present(number: int, annotation: Annotation, **changed: Any) -> dict[str, Any]:
    """As Grafana answers: the order of tags is its own."""
    tags = list(annotation.tags)
    random.Random(number).shuffle(tags)
    end = annotation.time_ms if annotation.end_ms is None else annotation.end_ms
    return {
        "id": number,
        "time": annotation.time_ms,
        "timeEnd": end,
        "text": annotation.text,
        "tags": tags,
    } | changed


WANTED = tuple(made(whole_run(), analysis()).values())


@given(st.data())
def test_whatever_is_there_one_round_of_changes_makes_it_right(data: st.DataObject) -> None:
    """Grafana holds any subset, any of it several times, any of it out of date, and things of others."""
    held: dict[int, dict[str, Any]] = {0: {"id": 0, "time": 5, "text": "mine", "tags": ["hitlab", "lunch"]}}
    for annotation in WANTED:
        for _ in range(data.draw(st.integers(0, 3))):
            changed = data.draw(
                st.sampled_from([{}, {"timeEnd": 10**12 + 7}, {"text": "old"}, {"time": 10**12 + 1}])
            )
            held[len(held)] = present(len(held), annotation, **changed)
    needed = changes(WANTED, list(held.values()))
    for number in needed.delete:
        del held[number]
    for number, annotation in needed.update:
        held[number] = present(number, annotation)
    for annotation in needed.create:
        held[len(held) + 1000] = present(len(held) + 1000, annotation)
    assert not changes(WANTED, list(held.values()))
    assert held.pop(0)["text"] == "mine"
    assert sorted(item["text"] for item in held.values()) == sorted(item.text for item in WANTED)


def test_the_oldest_of_several_stays() -> None:
    (annotation,) = (item for item in WANTED if item.key == "verdict")
    needed = changes([annotation], [present(9, annotation), present(4, annotation), present(7, annotation)])
    assert needed.delete == [7, 9]
    assert not needed.create
    assert not needed.update
