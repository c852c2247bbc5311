"""Targets for Prometheus: what is in the file, where it is, and who cannot be reached."""

import json
from pathlib import Path

import pytest

from contract.errors import ArtifactError
from contract.file_sd import (
    EngineTarget,
    out_of_reach,
    read_measurements,
    target_folder,
    target_groups,
    target_path,
    write_target,
)


def target(*urls: str) -> EngineTarget:
    return EngineTarget(
        urls, model="m", run_id="job_1", measurement="20260101_000000", engine_kind="external"
    )


@pytest.mark.parametrize(
    ("url", "address", "scheme", "page"),
    [
        ("http://engine:8000/metrics", "engine:8000", "http", "/metrics"),
        ("https://gpu.example/metrics", "gpu.example:443", "https", "/metrics"),
        ("http://gpu.example", "gpu.example:80", "http", "/metrics"),
        ("http://[::1]:9/deep/metrics", "[::1]:9", "http", "/deep/metrics"),
        ("http://me:secret@engine:8000/metrics", "engine:8000", "http", "/metrics"),
    ],
)
def test_an_address_becomes_a_target(url: str, address: str, scheme: str, page: str) -> None:
    (group,) = target_groups(target(url))
    assert group["targets"] == [address]
    labels = group["labels"]
    assert isinstance(labels, dict)
    assert labels["__scheme__"] == scheme
    assert labels["__metrics_path__"] == page
    assert "secret" not in json.dumps(group)
    visible = {name: value for name, value in labels.items() if not name.startswith("__")}
    assert visible == {
        "model": "m",
        "run_id": "job_1",
        "measurement": "20260101_000000",
        "engine_kind": "external",
    }


def test_parameters_of_an_address_are_kept() -> None:
    (group,) = target_groups(target("http://e:1/metrics?rank=2&name=a%20b"))
    labels = group["labels"]
    assert isinstance(labels, dict)
    assert labels["__param_rank"] == "2"
    assert labels["__param_name"] == "a b"


def test_the_file_holds_a_group_per_page_and_others_may_read_it(tmp_path: Path) -> None:
    path = target_path(tmp_path / "targets", "http://e:1")
    write_target(path, target("http://e:1/metrics", "http://e:2/metrics"))
    groups = json.loads(path.read_text())
    assert [group["targets"] for group in groups] == [["e:1"], ["e:2"]]
    assert path.stat().st_mode & 0o044 == 0o044
    assert read_measurements(path) == {("job_1", "20260101_000000")}
    assert list(path.parent.iterdir()) == [path]


def test_one_file_per_engine(tmp_path: Path) -> None:
    assert target_path(tmp_path, "http://e:1") == target_path(tmp_path, "http://e:1")
    assert target_path(tmp_path, "http://e:1") != target_path(tmp_path, "http://e:2")


@pytest.mark.parametrize(
    "content", ["", "[", "3", "[1]", '[{"labels": {}}]', '[{"labels": {"run_id": "x"}}]']
)
def test_a_file_that_is_not_ours_is_told(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(ArtifactError, match="not a file of targets"):
        read_measurements(path)


def test_targets_of_deep_run_directories_are_where_prometheus_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "team" / "job_20260101_000000"
    run.mkdir(parents=True)
    monkeypatch.delenv("ARTIFACTS_DIR", raising=False)
    assert target_folder(run) == tmp_path / "team" / ".prometheus" / "targets"
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    assert target_folder(run) == tmp_path / ".prometheus" / "targets"
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path / "elsewhere"))
    assert target_folder(run) == tmp_path / "team" / ".prometheus" / "targets"


@pytest.mark.parametrize(
    ("prometheus", "metrics", "reached"),
    [
        (None, "http://127.0.0.1:8000/metrics", True),
        ("http://prometheus:9090", "http://127.0.0.1:8000/metrics", False),
        ("http://prometheus:9090", "http://localhost:8000/metrics", False),
        ("http://prometheus:9090", "http://[::1]:8000/metrics", False),
        ("http://prometheus:9090", "http://engine:8000/metrics", True),
        ("http://prometheus:9090", "http://10.0.0.7:8000/metrics", True),
        ("http://127.0.0.1:9090", "http://127.0.0.1:8000/metrics", True),
    ],
)
def test_a_loopback_engine_is_out_of_reach_of_a_prometheus_elsewhere(
    monkeypatch: pytest.MonkeyPatch, prometheus: str | None, metrics: str, reached: bool
) -> None:
    if prometheus is None:
        monkeypatch.delenv("PROMETHEUS_URL", raising=False)
    else:
        monkeypatch.setenv("PROMETHEUS_URL", prometheus)
    reason = out_of_reach([metrics])
    assert (reason is None) is reached
    if reason is not None:
        assert "service.metrics_url" in reason
        assert "\n" not in reason
