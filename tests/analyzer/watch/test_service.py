"""Whole passes of `hitlab watch` over measurements made by hand."""

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from analyzer.watch.service import KEPT_RESULTS, Watch
from contract.file_sd import EngineTarget, target_folder, target_path, write_target
from contract.measurement import Finding
from contract.run_directory import MeasurementDirectory
from hitlab.main import main
from tests.analyzer.conftest import Made, Make
from tests.analyzer.watch.conftest import NewAnnotator, artifacts_of, event, whole_run, write_events
from tests.analyzer.watch.grafana_server import Failure, FakeGrafana

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(watch: Watch, name: str) -> list[tuple[dict[str, str], float]]:
    return [
        (sample.labels, sample.value)
        for family in text_string_to_metric_families(watch.metrics().decode())
        for sample in family.samples
        if sample.name == name
    ]


def measured(made: Made, stamp: str = "20260101_000000") -> MeasurementDirectory:
    directory = made.write(stamp=stamp)
    write_events(directory, whole_run())
    return directory


def test_a_run_that_nobody_analysed_is_analysed(make: Make) -> None:
    made = make()
    directory = measured(made)
    watch = Watch(artifacts_of(made), None, None)
    watch.one_pass()
    analysis = json.loads(directory.analysis.read_text())
    assert analysis["agreement"]["hits_equal"] is True
    ((labels, actual),) = samples(watch, "hitlab_run_actual_hit_rate")
    rows = made.rows
    expected = sum(row["theoretical_hit_tokens"] for row in rows) / sum(
        row["actual_input_tokens"] for row in rows
    )
    assert actual == pytest.approx(expected, abs=1e-12)
    assert labels == {
        "run_id": made.manifest.document["run_id"],
        "measurement": "20260101_000000",
        "scenario": "made",
    }
    assert [
        (labels["rank"], value) for labels, value in samples(watch, "hitlab_run_baseline_hit_tokens")
    ] == [
        ("0", 1000.0),
        ("1", 1000.0),
    ]
    assert samples(watch, "hitlab_run_warnings")[0][1] == len(analysis["warnings"])
    assert {labels["quantile"] for labels, _ in samples(watch, "hitlab_run_ttft_seconds")} == {
        "0.5", "0.75", "0.9", "0.99",
    }  # fmt: skip
    assert samples(watch, "hitlab_run_ttft_seconds")[0][1] == pytest.approx(0.1), "seconds, as recorded"
    assert {labels["outcome"]: value for labels, value in samples(watch, "hitlab_run_requests")} == {
        "answered": len(rows),
        "failed": 0,
    }


@pytest.mark.parametrize(
    ("status", "failed_requests", "called"),
    [
        ("complete", 0, "PASS"),
        ("partial", 2, "failed"),
        ("interrupted", 0, "interrupted"),
        ("interrupted", 2, "interrupted"),
        ("failed", 0, "failed"),
    ],
)
def test_a_load_that_did_not_get_through_is_no_success(
    make: Make,
    grafana: FakeGrafana,
    new_annotator: NewAnnotator,
    status: str,
    failed_requests: int,
    called: str,
) -> None:
    """In the metrics, in the index and in Grafana alike."""
    made = make()
    records = made.records()
    records = [
        *(item._replace(error_kind="http_status", error_text="x") for item in records[:failed_requests]),
        *records[failed_requests:],
    ]
    directory = made.write(records, status=status)
    ending = event(71, "run_finished", status=status, error=None)
    write_events(directory, [*whole_run()[:-1], ending])
    watch = Watch(artifacts_of(made), new_annotator(), None)
    watch.one_pass(patient=False)
    assert directory.analysis.is_file()
    assert samples(watch, "hitlab_run_info")[0][0]["verdict"] == called
    ((path, title),) = watch.reports()
    assert path is not None
    assert title.endswith(f"measurement {directory.stamp}: {called}")
    assert any(f"<b>{called}</b>" in text for text in grafana.texts())


def test_a_run_that_ended_before_its_load_is_in_the_index(make: Make) -> None:
    made = make()
    directory = made.write(status="failed", load=None, error="no engine", error_code=4, after=False, parts={})
    for part in (directory.baseline, directory.requests):
        part.unlink()
    write_events(directory, [*whole_run()[:5], event(71, "run_finished", status="failed", error="no engine")])
    watch = Watch(artifacts_of(made), None, None)
    watch.one_pass(patient=False)
    assert not directory.analysis.is_file()
    assert samples(watch, "hitlab_run_info")[0][0]["verdict"] == "failed"
    assert watch.reports() == [
        (None, f"{made.manifest.document['run_id']}, measurement {directory.stamp}: failed")
    ]


def test_the_command_gets_its_time_before_the_service_analyses(make: Make) -> None:
    made = make()
    directory = made.write()
    write_events(directory, [event(0, "run_started", run_id="made", stamp="x")])
    now = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    write_events(directory, [{"time": now, "event": "run_finished", "status": "complete", "error": None}])
    watch = Watch(artifacts_of(made), None, None)
    watch.one_pass()
    assert not directory.analysis.exists()
    watch.one_pass(patient=False)
    assert directory.analysis.exists()


def test_a_live_run_shows_target_theory_and_phase(make: Make) -> None:
    made = make()
    directory = made.write(
        status="running", load=None, phases=[{"name": "formal", "started_at": "2026-01-01T00:00:00+00:00"}]
    )
    write_events(directory, whole_run()[:10])
    os.utime(directory.events)
    watch = Watch(artifacts_of(made), None, None)
    watch.one_pass(patient=False)
    assert not directory.analysis.exists()
    assert samples(watch, "hitlab_run_phase")[0][0]["phase"] == "formal"
    assert samples(watch, "hitlab_run_target_hit_rate")[0][1] == 0.5
    theory = sum(row["theoretical_hit_tokens"] for row in made.rows) / sum(
        row["actual_input_tokens"] for row in made.rows
    )
    assert samples(watch, "hitlab_run_theoretical_hit_rate")[0][1] == pytest.approx(theory, abs=1e-12)
    assert {labels["rank"] for labels, _ in samples(watch, "hitlab_run_rank_theoretical_hit_rate")} == {
        "0",
        "1",
    }
    assert samples(watch, "hitlab_run_actual_hit_rate") == []
    assert samples(watch, "hitlab_run_warnings") == []


def broken_measurement(directory: MeasurementDirectory) -> None:
    directory.measurement.write_text('{"status": "complete"}')


def broken_analysis(directory: MeasurementDirectory) -> None:
    directory.analysis.write_text('{"status": "complete"}')


def cut_analysis(directory: MeasurementDirectory) -> None:
    directory.analysis.write_text('{"status": ')


def no_records(directory: MeasurementDirectory) -> None:
    directory.requests.write_bytes(b"PAR1")


@pytest.mark.parametrize("damage", [broken_measurement, broken_analysis, cut_analysis, no_records])
def test_a_damaged_run_is_told_once_and_keeps_no_other_away(
    make: Make,
    damage: Callable[[MeasurementDirectory], None],
    caplog: pytest.LogCaptureFixture,
    new_annotator: NewAnnotator,
    grafana: FakeGrafana,
) -> None:
    made = make()
    damage(measured(made, "20260101_000000"))
    good = measured(made, "20260102_000000")
    watch = Watch(artifacts_of(made), new_annotator(), None)
    for _ in range(3):
        watch.one_pass(patient=False)
    assert good.analysis.is_file()
    assert [labels["measurement"] for labels, _ in samples(watch, "hitlab_run_actual_hit_rate")] == [
        "20260102_000000"
    ]
    told = [
        record.getMessage()
        for record in caplog.records
        if record.name == "hitlab.watch" and record.levelname == "WARNING"
    ]
    assert 1 <= len(told) == len(set(told)) <= 2
    assert all("20260101_000000" in message for message in told)
    assert sum("measurement:20260102_000000" in item["tags"] for item in grafana.annotations.values()) == 8


def test_only_the_newest_are_exposed(make: Make) -> None:
    made = make()
    directory = measured(made, "20260101_000000")
    for number in range(KEPT_RESULTS + 3):
        other = MeasurementDirectory(made.manifest.directory.runs / f"20260201_{number:06d}")
        other.root.mkdir()
        for path in (directory.measurement, directory.events):
            (other.root / path.name).write_text(path.read_text().replace("20260101_000000", other.stamp))
        other.analysis.write_text("{}")
    watch = Watch(artifacts_of(made), None, None)
    watch.one_pass(patient=False)
    assert samples(watch, "hitlab_watch_measurements")[0][1] == KEPT_RESULTS + 4
    assert samples(watch, "hitlab_run_actual_hit_rate") == [], "the oldest is not among them"


def test_grafana_is_told_all_and_links_the_report(
    make: Make, grafana: FakeGrafana, new_annotator: NewAnnotator
) -> None:
    made = make()
    directory = measured(made)
    directory.report.write_text("<!doctype html>")
    watch = Watch(artifacts_of(made), new_annotator(), "http://127.0.0.1:9400/")
    watch.one_pass(patient=False)
    verdict = next(item for item in grafana.annotations.values() if "verdict" in item["tags"])
    link = f"http://127.0.0.1:9400/reports/{made.manifest.directory.root.name}/result/runs/20260101_000000/report.html"
    assert f'<a href="{link}"' in verdict["text"]
    asked = len(grafana.requests)
    watch.one_pass(patient=False)
    assert len(grafana.requests) == asked, "nothing new, nothing asked"
    assert samples(watch, "hitlab_watch_annotations_behind")[0][1] == 0
    assert samples(watch, "hitlab_watch_grafana_up")[0][1] == 1


def test_an_analysis_that_comes_again_changes_the_verdict_in_place(
    make: Make, grafana: FakeGrafana, new_annotator: NewAnnotator
) -> None:
    made = make()
    directory = measured(made)
    watch = Watch(artifacts_of(made), new_annotator(), None)
    watch.one_pass(patient=False)
    before = len(grafana.annotations)
    analysis = json.loads(directory.analysis.read_text())
    analysis["validation"]["status"] = "PASS_WITH_WARNING"
    directory.analysis.unlink()
    directory.analysis.write_text(json.dumps(analysis))
    watch.one_pass(patient=False)
    assert len(grafana.annotations) == before
    assert any("<b>PASS_WITH_WARNING</b>" in text for text in grafana.texts())


def test_while_grafana_is_down_all_else_goes_on(
    make: Make, grafana: FakeGrafana, new_annotator: NewAnnotator, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make()
    directory = measured(made)
    grafana.failures = [Failure(status=503, times=10**6)]
    watch = Watch(artifacts_of(made), new_annotator(), None)
    watch.one_pass(patient=False)
    assert directory.analysis.is_file()
    assert samples(watch, "hitlab_watch_grafana_up")[0][1] == 0
    assert samples(watch, "hitlab_watch_annotations_behind")[0][1] == 1
    asked = len(grafana.requests)
    watch.one_pass(patient=False)
    assert len(grafana.requests) == asked, "it is left alone for a while"
    grafana.failures = []
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    watch.one_pass(patient=False)
    assert len(grafana.annotations) == 8
    assert watch.trouble is None


@pytest.mark.parametrize("over", [True, False])
def test_targets_of_runs_that_are_over_are_removed(make: Make, over: bool) -> None:
    made = make()
    directory = made.write() if over else made.write(status="running", load=None)
    write_events(directory, whole_run() if over else whole_run()[:10])
    os.utime(directory.events)
    path = target_path(target_folder(made.manifest.directory.root), "http://x")
    write_target(
        path,
        EngineTarget(("http://x/metrics",), "m", made.manifest.directory.run_id, directory.stamp, "external"),
    )
    Watch(artifacts_of(made), None, None).one_pass(patient=False)
    assert path.exists() is not over


def test_targets_of_runs_that_are_nowhere_stay_for_a_day(make: Make) -> None:
    made = make()
    path = target_path(target_folder(made.manifest.directory.root), "http://x")
    write_target(path, EngineTarget(("http://x/metrics",), "m", "gone", "20260101_000000", "external"))
    watch = Watch(artifacts_of(made), None, None)
    watch.one_pass()
    assert path.exists()
    os.utime(path, (1, time.time() - 25 * 3600))
    watch.one_pass()
    assert not path.exists()


def test_follow_ends_when_it_is_told(tmp_path: Path) -> None:
    stop = threading.Event()
    watch = Watch(tmp_path, None, None)
    thread = threading.Thread(target=watch.follow, args=(stop,))
    thread.start()
    stop.set()
    thread.join(3)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--artifacts", "/nowhere/at/all"], 3, "no such folder"),
        (["--artifacts", "{tmp}", "--grafana", "http://127.0.0.1:9"], 2, "--grafana-password-file"),
        (
            ["--artifacts", "{tmp}", "--grafana", "nonsense", "--grafana-password-file", "x"],
            2,
            "must be an address",
        ),
        (["--artifacts", "{tmp}", "--port", "99999"], 2, "--port"),
        ([], 2, "--artifacts"),
    ],
)
def test_wrong_use_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    with pytest.raises(SystemExit) as ending:
        main(["watch", *(argument.replace("{tmp}", str(tmp_path)) for argument in arguments), "--once"])
    assert ending.value.code == code
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ERROR")]
    assert message in line


def test_once_ends_with_4_while_grafana_is_not_there(
    make: Make, password_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make()
    directory = measured(made)
    arguments = ["--artifacts", str(artifacts_of(made)), "--grafana", "http://127.0.0.1:9"]
    with pytest.raises(SystemExit) as ending:
        main(["watch", *arguments, "--grafana-password-file", str(password_file), "--once"])
    assert ending.value.code == 4
    assert "Grafana cannot be reached" in capsys.readouterr().err
    assert directory.analysis.is_file(), "all else is done"


def test_findings_of_the_run_are_counted_once(make: Make) -> None:
    made = make()
    finding = Finding(code="CONTAMINATED", message="300 tokens", tokens=300)
    directory = made.write(findings=[finding])
    write_events(directory, whole_run(event(2, "warning", **finding.model_dump())))
    watch = Watch(artifacts_of(made), None, None)
    watch.one_pass(patient=False)
    assert {labels["code"]: value for labels, value in samples(watch, "hitlab_run_warning")} == {
        "CONTAMINATED": 1.0
    }
