"""What `analyze` reads, writes and refuses; scrapes alone; measurements that never came to their end."""

import fcntl
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from analyzer.analysis import read_analysis, seal_analysis
from analyzer.analyze import analyze_measurement
from analyzer.offline import analyze_scrapes
from analyzer.report import performance_report
from analyzer.watch.verdict import verdict_of
from contract.documents import read_document, write_document
from contract.errors import ArtifactError, ExitCode
from contract.measurement import AisbenchRecord, Finding
from contract.records import REQUEST_SCHEMA, to_batch
from contract.streams import TableStream
from tests.analyzer.conftest import Made, Make
from tests.analyzer.synthetic import edit_measurement

FIRST, SECOND = "20260101_000000", "20260101_000001"


def current(made: Made) -> dict[str, Any]:
    document: dict[str, Any] = orjson.loads(made.manifest.directory.analysis.read_bytes())
    return document


def test_again_is_the_same_and_warnings_do_not_pile_up(make: Make) -> None:
    made = make()
    records = made.records()
    most = max(range(len(records)), key=lambda at: records[at].cached_tokens or 0)
    records[most] = records[most]._replace(cached_tokens=0)
    directory = made.write(records)
    first = analyze_measurement(made.manifest, FIRST)
    content = directory.analysis.read_bytes()
    assert first.document["warnings"]
    second = analyze_measurement(made.manifest, FIRST)
    assert second.document == first.document
    assert directory.analysis.read_bytes() == content == made.manifest.directory.analysis.read_bytes()


def test_only_the_latest_complete_measurement_speaks_for_the_run_directory(make: Make) -> None:
    made = make()
    made.write(stamp=FIRST)
    made.write(stamp=SECOND)
    failed = [made.records()[0]._replace(error_kind="http"), *made.records()[1:]]
    made.write(failed, stamp="20260101_000002")
    assert analyze_measurement(made.manifest, SECOND).path == made.manifest.directory.analysis
    assert current(made)["runtime"]["measurement"] == SECOND
    older = analyze_measurement(made.manifest, FIRST)
    assert older.path == made.manifest.directory.runs / FIRST / "analysis.json"
    partial = analyze_measurement(made.manifest, "20260101_000002")
    assert partial.exit_code == ExitCode.REQUESTS_FAILED
    assert current(made)["runtime"]["measurement"] == SECOND


@pytest.mark.parametrize("form", ["measurement", "scrapes"])
@pytest.mark.parametrize("artifact", ["full", "requests", "token_ids"])
def test_damaged_artifacts_are_refused_first(make: Make, form: str, artifact: str) -> None:
    made = make()
    directory = made.write()
    path = getattr(made.manifest.directory, artifact)
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    analyze = {
        "measurement": lambda: analyze_measurement(made.manifest, FIRST),
        "scrapes": lambda: analyze_scrapes(made.manifest, directory.baseline, directory.after),
    }
    with pytest.raises(ArtifactError, match=path.name):
        analyze[form]()
    assert not directory.analysis.exists()


def test_scrapes_alone_give_the_counters_and_say_what_they_cannot(make: Make) -> None:
    made = make()
    directory = made.write()
    measured = analyze_measurement(made.manifest, FIRST).document
    analysis = analyze_scrapes(made.manifest, directory.baseline, directory.after)
    document = analysis.document
    assert analysis.exit_code == ExitCode.DONE
    for rank in measured["actual"]["by_dp"].values():
        rank["kv_cache_usage_reason"] = "two scrapes hold no samples of the time between them"
    for name in ("by_dp", "global_hits", "global_queries", "global_hit_rate", "external", "by_source"):
        assert document["actual"][name] == measured["actual"][name]
    for name in ("counters", "by_source", "computed"):
        assert document["ledgers"][name] == measured["ledgers"][name]
    for name in ("cached_tokens", "prediction"):
        assert "hold no requests" in document["ledgers"][name]["total"]["reason"]
    assert current(made)["status"] == "complete", "it does not displace a complete measurement"
    assert document["ledgers"]["agree"] is True


def test_equal_scrapes_measure_nothing(make: Make) -> None:
    made = make()
    directory = made.write()
    analysis = analyze_scrapes(made.manifest, directory.baseline, directory.baseline)
    assert analysis.exit_code == ExitCode.INCONCLUSIVE
    assert analysis.document["actual"]["global_hit_rate"] is None
    assert "no queries" in (analysis.message or "")


def test_a_scrape_that_is_not_text(make: Make) -> None:
    made = make()
    directory = made.write()
    directory.after.write_bytes(b"\xff\xfe")
    with pytest.raises(ArtifactError, match="not UTF-8"):
        analyze_scrapes(made.manifest, directory.baseline, directory.after)
    with pytest.raises(ArtifactError, match="cannot be read"):
        analyze_scrapes(made.manifest, directory.root / "nothing.prom", directory.baseline)


def test_a_run_without_its_last_scrape_keeps_what_the_answers_told(make: Make) -> None:
    made = make()
    made.write(after=False, status="partial", settled=False)
    analysis = analyze_measurement(made.manifest, FIRST)
    assert analysis.exit_code == ExitCode.INCONCLUSIVE
    document = analysis.document
    assert document["actual"]["global_hits"] is None
    assert "no scrape from after the load" in document["actual"]["reason"]
    assert document["runtime"]["metrics_after"] is None
    assert document["ledgers"]["cached_tokens"]["total"]["hits"] == document["theory"]["hit_tokens"]
    assert document["prediction"]["requests"]["equal"] == len(made.rows)


def killed(made: Made, records: int) -> Any:
    """What is left of a run that was killed in its formal phase."""
    directory = made.write(after=False, status="running", load=None, settled=None)
    directory.requests.unlink()
    stream = TableStream(directory.requests_stream, REQUEST_SCHEMA)
    stream.append(to_batch(made.records()[:records]))
    directory.requests_stream.write_bytes(directory.requests_stream.read_bytes() + b"\xff\xff\xff\xff\x10")
    directory.events.write_bytes(b"")
    return directory


def test_a_killed_run_is_finished(make: Make) -> None:
    made = make("warmup-1")
    directory = killed(made, 9)
    analysis = analyze_measurement(made.manifest, FIRST)
    assert analysis.exit_code == ExitCode.INTERRUPTED
    assert analysis.document["status"] == "interrupted"
    assert pq.read_table(directory.requests).num_rows == 9
    assert not directory.requests_stream.exists()
    assert analysis.document["actual"]["requests"]["equal"] == 9
    assert "RUN_CUT_SHORT" in {warning["code"] for warning in analysis.document["warnings"]}
    again = analyze_measurement(made.manifest, FIRST)
    assert again.document == analysis.document


def test_a_run_that_goes_on_is_left_alone(make: Make) -> None:
    made = make("warmup-1")
    directory = killed(made, 9)
    with directory.events.open("ab") as events:
        fcntl.flock(events, fcntl.LOCK_EX)
        with pytest.raises(ArtifactError, match="still going on"):
            analyze_measurement(made.manifest, FIRST)
    assert directory.requests_stream.exists()


def test_a_measurement_has_to_be_there_and_of_this_data(make: Make) -> None:
    made = make()
    directory = made.write()
    for stamp in ("20200101_000000", "../runs/" + FIRST, ""):
        with pytest.raises(ArtifactError, match=f"there: {FIRST}"):
            analyze_measurement(made.manifest, stamp)
    document = orjson.loads(directory.measurement.read_bytes())
    edit_measurement(directory, manifest_sha256="0" * 64)
    with pytest.raises(ArtifactError, match="another manifest"):
        analyze_measurement(made.manifest, FIRST)
    edit_measurement(directory, **document | {"settled": "perhaps"})
    with pytest.raises(ArtifactError, match="settled"):
        analyze_measurement(made.manifest, FIRST)


def test_records_of_other_data_are_refused(make: Make) -> None:
    made = make()
    records = made.records()
    records[3] = records[3]._replace(position=999)
    made.write(records)
    with pytest.raises(ArtifactError, match="position 999"):
        analyze_measurement(made.manifest, FIRST)


@pytest.mark.parametrize("kind", ["cold-2", "warmup-2"])
def test_a_run_that_ended_before_its_first_answer(make: Make, kind: str) -> None:
    made = make(kind)
    made.write([], after=False, status="interrupted", load=None, settled=None)
    document = analyze_measurement(made.manifest, FIRST).document
    assert document["actual"]["failed_requests"] == len(made.rows)
    assert document["actual"]["client"]["reason"] == "no request was answered"
    assert document["prediction"]["hit_tokens"] is None
    report = performance_report(made.manifest, FIRST)
    assert set(report["metrics"].values()) == {None}
    assert report["failures"] == {"attempts": {}, "not_sent": len(made.rows)}
    assert report["common"]["Benchmark Duration"] == {"total": None}


@pytest.mark.parametrize("code", [None, 0, 3])
def test_the_exit_code_of_aisbench_where_it_sent(make: Make, code: int | None) -> None:
    made = make()
    sent = AisbenchRecord(
        version="3.1", results="/x", csv=None, summary=None, config="c.py", log="l", exit_code=code,
        total_requests=None, failed_requests=None,
    )  # fmt: skip
    made.write(aisbench=sent)
    runtime = analyze_measurement(made.manifest, FIRST).document["runtime"]
    assert runtime["aisbench_exit_code"] == code
    made.write(stamp=SECOND)
    runtime = analyze_measurement(made.manifest, SECOND).document["runtime"]
    assert runtime["aisbench_exit_code"] is None, "the native driver sent"


def test_the_state_of_a_measurement_is_spelled_as_in_the_guide(make: Make) -> None:
    made = make()
    made.write(findings=[Finding(code="CONTAMINATED", message="x")])
    validation = analyze_measurement(made.manifest, FIRST).document["validation"]
    assert (validation["status"], validation["actual_status"]) == ("PASS_WITH_WARNING", "PASS_WITH_WARNING")
    made.write(stamp=SECOND)
    validation = analyze_measurement(made.manifest, SECOND).document["validation"]
    assert (validation["status"], validation["actual_status"]) == ("PASS", "PASS")


def test_an_analysis_that_an_older_hitlab_wrote_is_still_reported(make: Make) -> None:
    """It says WARNING where the guide, and HitLab today, say PASS_WITH_WARNING."""
    made = make()
    directory = made.write(findings=[Finding(code="CONTAMINATED", message="x")])
    analyze_measurement(made.manifest, FIRST)
    document = read_document(directory.analysis, "analysis")
    document["validation"]["actual_status"] = "WARNING"
    del document["runtime"]["aisbench_exit_code"]
    write_document(directory.analysis, seal_analysis(document))
    assert performance_report(made.manifest, FIRST)["hit_rate"]["actual"] is not None
    assert verdict_of("complete", read_analysis(directory.analysis)) == "PASS_WITH_WARNING"
