"""The files of a measurement belong together, and damage to any of them is told: never a figure of something else."""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analyzer.analyze import analyze_measurement
from analyzer.measurements import find_measurement
from analyzer.recover import finished_measurement
from analyzer.report import performance_report
from contract.documents import read_document, write_document
from contract.errors import ArtifactError, ExitCode
from contract.measurement import Measurement, PhaseRecord
from contract.measurement_file import SEAL, read_measurement_file, write_measurement
from contract.records import REQUEST_SCHEMA, to_batch
from contract.run_directory import MeasurementDirectory
from contract.streams import KV_SAMPLE_SCHEMA, TableStream, write_parquet
from tests.analyzer.conftest import Made, Make
from tests.analyzer.synthetic import edit_measurement

MINE, OTHER = "20260101_000000", "20260101_000001"
FORMAL = PhaseRecord(name="formal", started_at="1970-01-01T00:16:40.000+00:00")
"""Where the records of `Made` begin."""
NEEDED = ("measurement", "requests", "baseline", "after")


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts are drawn elsewhere; they take most of the time."""
    monkeypatch.setattr("analyzer.analyze.write_report", lambda *_, **__: None)


def samples(directory: MeasurementDirectory, ranks: int) -> None:
    rows = [
        {"elapsed_seconds": at / 10, "dp_rank": rank, "kv_cache_usage": at / 100, "requests_running": 2,
         "requests_waiting": 0}
        for at in range(40)
        for rank in range(ranks)
    ]  # fmt: skip
    stream = directory.kv_samples_stream
    with TableStream(stream, KV_SAMPLE_SCHEMA) as table:
        table.append(pa.RecordBatch.from_pylist(rows, schema=KV_SAMPLE_SCHEMA))
    write_parquet(stream, directory.kv_samples, KV_SAMPLE_SCHEMA)
    stream.unlink()


def whole(made: Made, stamp: str = MINE, **changes: Any) -> MeasurementDirectory:
    directory = made.write(made.records(**changes), stamp=stamp, phases=[FORMAL])
    samples(directory, made.ranks)
    edit_measurement(directory)
    return directory


@pytest.mark.parametrize("part", NEEDED)
def test_a_part_of_another_measurement_is_refused(make: Make, part: str) -> None:
    made = make()
    directory, other = whole(made), whole(made, OTHER, ttft_s=0.3)
    if part in ("baseline", "after"):
        path = getattr(other, part)
        path.write_text(path.read_text() + "# another one\n")
        edit_measurement(other)
    shutil.copy(getattr(other, part), getattr(directory, part))
    for command in (analyze_measurement, performance_report):
        with pytest.raises(ArtifactError, match=f"{MINE}/.*of another measurement"):
            command(made.manifest, MINE)
    assert not directory.analysis.exists(), "no verdict"
    assert analyze_measurement(made.manifest, OTHER).exit_code == ExitCode.DONE


@pytest.mark.parametrize("part", ["requests", "baseline", "after"])
def test_a_part_that_is_gone_or_added_is_refused(make: Make, part: str) -> None:
    made = make()
    directory = whole(made)
    path: Path = getattr(directory, part)
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(ArtifactError, match=f"{path.name}: is missing"):
        analyze_measurement(made.manifest, MINE)
    parts = {name: part for name, part in measured(directory)["parts"].items() if name != path.name}
    path.write_bytes(content)
    edit_measurement(directory, parts=parts)
    with pytest.raises(ArtifactError, match=f"{path.name}: is none of this measurement's files"):
        analyze_measurement(made.manifest, MINE)


def measured(directory: MeasurementDirectory) -> dict[str, Any]:
    return read_document(directory.measurement, "measurement")


def keys_of(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key of the document, at any depth."""
    items = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    for key, value in items:
        if isinstance(document, dict):
            yield (*path, key)
        yield from keys_of(value, (*path, key))


def test_a_lost_key_is_told_with_file_and_key(make: Make) -> None:
    made = make()
    directory = whole(made)
    document = measured(directory)
    found = [
        path
        for path in keys_of(document)
        if path[0] != "parts" and path[:2] != ("service", "engine_label_map")
    ]
    assert len(found) > 50
    for path in found:
        broken = orjson.loads(orjson.dumps(document))
        place = broken
        for step in path[:-1]:
            place = place[step]
        del place[path[-1]]
        write_document(directory.measurement, broken)
        with pytest.raises(ArtifactError) as refused:
            analyze_measurement(made.manifest, MINE)
        assert str(directory.measurement) in str(refused.value)
        assert ".".join(map(str, path)) in str(refused.value)


def test_an_edited_value_is_refused(make: Make) -> None:
    made = make()
    directory = whole(made)
    for change in (
        {"status": "partial"},
        {"settled": False},
        {"findings": []},
        {"parts": {}},
        {"parts": None},
    ):
        write_document(
            directory.measurement, measured(directory) | {"stamp": MINE} | change | {"run_id": "x"}
        )
        with pytest.raises(ArtifactError, match=r"measurement\.json: is not what the run wrote"):
            analyze_measurement(made.manifest, MINE)


def test_another_measurement_that_is_damaged_is_not_in_the_way_of_this_one(make: Make) -> None:
    made = make()
    whole(made)
    other = whole(made, OTHER)
    other.measurement.write_bytes(other.measurement.read_bytes()[:-30])
    assert analyze_measurement(made.manifest, MINE).path == made.manifest.directory.analysis
    assert performance_report(made.manifest, MINE)["measurement"] == MINE
    with pytest.raises(ArtifactError, match=f"{OTHER}/measurement.json"):
        performance_report(made.manifest)  # the latest would be that one


Damage = Callable[[bytes], bytes]


def test_damaged_samples_cost_their_own_figures_alone(make: Make) -> None:
    made = make()
    directory = whole(made)
    sound = analyze_measurement(made.manifest, MINE)
    assert sound.document["actual"]["global_kv_cache_usage_peak"] == 0.39
    content = directory.kv_samples.read_bytes()
    damages: dict[str, Damage] = {
        "is not what the run wrote": lambda it: it[:100] + bytes([it[100] ^ 1]) + it[101:],
        "is not what the run wrote (": lambda it: it[:-20],
        "is not what the run wrote (S": lambda _: b"",
    }
    for reason, damage in damages.items():
        directory.kv_samples.write_bytes(damage(content))
        assert_without_samples(analyze_measurement(made.manifest, MINE), sound, reason)
    directory.kv_samples.unlink()
    assert_without_samples(analyze_measurement(made.manifest, MINE), sound, "is missing; the run wrote it")
    directory.kv_samples.write_bytes(content)
    assert analyze_measurement(made.manifest, MINE).document == sound.document


def assert_without_samples(found: Any, sound: Any, reason: str) -> None:
    assert found.exit_code == sound.exit_code
    document, before = found.document, sound.document
    assert [warning["code"] for warning in document["warnings"]] == ["SAMPLES_DAMAGED"]
    polling = document["runtime"]["kv_cache_polling"]
    assert reason in polling["reason"]
    assert (polling["count"], polling["samples"], polling["summary"]["global_peak"]) == (None, [], None)
    assert document["actual"]["global_kv_cache_usage_peak"] is None
    for name in ("agreement", "prediction", "theory"):
        assert document[name] == before[name]
    assert document["actual"]["global_hit_rate"] == before["actual"]["global_hit_rate"]


FIGURES = (
    "theoretical_hit_rate",
    "actual",
    "agreement",
    "ledgers",
    "prediction",
    "warnings",
    "validation",
    "runtime",
)


def test_no_damaged_byte_changes_a_figure_in_silence(make: Make) -> None:
    """Bits flipped and ends cut off, in every file: the same figures, or a word; and never a fault of ours."""
    made = make()
    directory = whole(made)
    analyze_measurement(made.manifest, MINE)
    performance_report(made.manifest, MINE)
    directory.events.write_bytes(b'{"event":"run_started"}\n')
    before = figures(made)
    draws = random.Random(12)
    told = 0
    for path in sorted(directory.root.iterdir()):
        content = path.read_bytes()
        for turn in range(24):
            broken = bytearray(content)
            at = draws.randrange(len(content))
            if turn % 4 == 3:
                del broken[at:]
            else:
                broken[at] ^= 1 << draws.randrange(8)
            path.write_bytes(broken)
            try:
                after = figures(made)
            except ArtifactError as error:
                after = str(error)
            finally:
                path.write_bytes(content)
            if isinstance(after, str):
                assert path.name in after
                told += 1
            elif path == directory.kv_samples:
                assert {warning["code"] for warning in after["warnings"]} == {"SAMPLES_DAMAGED"}
                told += 1
            elif path == directory.analysis:
                assert after == before or after["rate_of_report"] is None
            else:
                assert after == before
    assert told >= 24 * 5, "all but the events, the analysis and the report, which are made again"


def figures(made: Made) -> dict[str, Any]:
    """The report first: it reads the analysis, which is then made again."""
    report = performance_report(made.manifest, MINE)
    document = analyze_measurement(made.manifest, MINE).document
    shown = {name: document[name] for name in FIGURES}
    return shown | {"metrics": report["metrics"], "rate_of_report": report["hit_rate"]["actual"]}


def cut_short(made: Made) -> MeasurementDirectory:
    """A run that was killed after its load, with its baseline named already."""
    directory = made.write(status="running", load=None, settled=None, after=False)
    samples(directory, made.ranks)
    directory.events.write_bytes(b"")
    document = measured(directory)
    edit_measurement(directory)
    parts = {"baseline.prom": measured(directory)["parts"]["baseline.prom"]}
    write_measurement(directory.measurement, document | {"parts": parts})
    return directory


def test_a_killed_run_is_recovered_with_a_finding_and_sealed_then(make: Make) -> None:
    made = make("warmup-1")
    directory = cut_short(made)
    analysis = analyze_measurement(made.manifest, MINE)
    assert analysis.exit_code == ExitCode.INTERRUPTED
    assert "RUN_CUT_SHORT" in {warning["code"] for warning in analysis.document["warnings"]}
    assert measured(directory)["parts"].keys() == {"baseline.prom", "requests.parquet", "kv_samples.parquet"}
    records = made.records(ttft_s=0.7)
    with pq.ParquetWriter(directory.requests, REQUEST_SCHEMA) as writer:
        writer.write_batch(to_batch(records))
    with pytest.raises(ArtifactError, match=r"requests\.parquet: is not what the run wrote"):
        analyze_measurement(made.manifest, MINE)


def test_what_a_killed_run_had_named_is_held_to_it(make: Make) -> None:
    made = make("warmup-1")
    directory = cut_short(made)
    directory.baseline.write_text(directory.baseline.read_text().replace(" 1000.0", " 900.0"))
    with pytest.raises(ArtifactError, match=r"baseline\.prom: is not what the run wrote"):
        analyze_measurement(made.manifest, MINE)


@pytest.mark.parametrize("moment", ["before it named the new file", "before it removed the stream"])
def test_a_recovery_that_was_cut_short_is_taken_up_again(
    make: Make, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    made = make("warmup-1")
    directory = made.write(status="interrupted", load=None, settled=None, after=False)
    directory.requests.unlink()
    with TableStream(directory.requests_stream, REQUEST_SCHEMA) as stream:
        stream.append(to_batch(made.records()[:9]))
    edit_measurement(directory)

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        if moment == "before it named the new file":
            patched.setattr("analyzer.recover.write_measurement", killed)
        else:
            patched.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            finished_measurement(*find_measurement(made.manifest, MINE))
    assert directory.requests.is_file()
    assert directory.requests_stream.is_file()
    analysis = analyze_measurement(made.manifest, MINE)
    assert analysis.document["actual"]["client"]["answered"] == 9
    assert set(measured(directory)["parts"]) == {"baseline.prom", "requests.parquet"}


def test_a_measurement_of_before_is_read_with_a_warning(make: Make) -> None:
    made = make()
    directory = whole(made)
    document = measured(directory)
    old = {key: value for key, value in document.items() if key not in ("parts", "error_code", SEAL)}
    write_document(directory.measurement, old | {"schema_version": "1.0"})
    analysis = analyze_measurement(made.manifest, MINE)
    assert [warning["code"] for warning in analysis.document["warnings"]] == ["PARTS_UNPROVEN"]
    del old["service"]["dp_size"]
    write_document(directory.measurement, old | {"schema_version": "1.0"})
    with pytest.raises(ArtifactError, match=r"measurement\.json: service\.dp_size: is missing"):
        read_measurement_file(directory.measurement, Measurement)
