"""An engine is a target of Prometheus while its run goes on."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from contract.file_sd import authority_path
from contract.run_directory import MeasurementDirectory, RunDirectory
from contract.trust import Trust
from runner.engines.engine import Engine
from runner.prometheus_target import published


def engine(kind: str) -> Engine:
    return Engine(
        kind, "http://127.0.0.1:8000/v1/completions", ("http://127.0.0.1:8000/metrics",), None, "m", 1
    )


def run(tmp_path: Path) -> tuple[RunDirectory, MeasurementDirectory]:
    directory = RunDirectory(tmp_path / "job_20260101_000000", "job_20260101_000000")
    directory.root.mkdir()
    return directory, MeasurementDirectory(directory.runs / "20260101_000001")


@pytest.mark.parametrize(("kind", "stays"), [("simulator", False), ("external", True)])
def test_the_target_is_there_during_the_run(tmp_path: Path, kind: str, stays: bool) -> None:
    folder = tmp_path / ".prometheus" / "targets"
    with published(engine(kind), *run(tmp_path)) as unseen:
        assert unseen is None
        (path,) = folder.iterdir()
        (group,) = json.loads(path.read_text())
        assert group["targets"] == ["127.0.0.1:8000"]
        assert group["labels"]["run_id"] == "job_20260101_000000"
        assert group["labels"]["measurement"] == "20260101_000001"
        assert group["labels"]["engine_kind"] == kind
    assert path.exists() is stays


def test_a_folder_that_takes_no_file_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / ".prometheus").write_text("in the way")
    with published(engine("simulator"), *run(tmp_path)) as unseen:
        assert unseen is None


def test_an_engine_that_prometheus_cannot_reach_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_URL", "http://prometheus:9090")
    with published(engine("external"), *run(tmp_path)) as unseen:
        assert unseen is not None
        assert unseen.code == "PROMETHEUS_CANNOT_REACH"
        assert "127.0.0.1:8000" in unseen.message


def secure_engine(**trust: str) -> Engine:
    return replace(engine("external"), metrics_urls=("https://gpu:8000/metrics",), trust=Trust(**trust))


def test_an_authority_goes_along_without_what_else_is_in_its_file(tmp_path: Path) -> None:
    """And goes away with the next run that names none."""
    one, two = (
        f"-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----" for text in ("YQ==", "Yg==")
    )
    key = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----"
    (tmp_path / "ca.pem").write_text(f"text\n{one}\n{key}\n{two}\n")
    directory = run(tmp_path)
    with published(secure_engine(ca_file=str(tmp_path / "ca.pem")), *directory):
        (path,) = (tmp_path / ".prometheus" / "authorities").iterdir()
        assert path.read_text() == f"{one}\n{two}\n"
        (target,) = (tmp_path / ".prometheus" / "targets").iterdir()
        assert authority_path(target) == path
        assert json.loads(target.read_text())[0]["labels"]["__scheme__"] == "https"
    assert path.exists(), "an engine that goes on is still scraped"
    with published(engine("external"), *directory):
        assert not path.exists()


def test_an_engine_that_wants_a_certificate_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_URL", "http://prometheus:9090")
    with published(secure_engine(client_cert="/keys/client.pem"), *run(tmp_path)) as unseen:
        assert unseen is not None
        assert "service.client_cert" in unseen.message
