"""Pairs, refusals, intervals."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analyzer.bench.compare import bootstrap_interval, compare_files, comparison_text
from contract.errors import ArtifactError


def quality(path: Path, samples: list[tuple[str, float | None, str | None]], **changes: Any) -> Path:
    document = {
        "run_fingerprint": "f" * 16,
        "fingerprint_parts": {"model": "m", "seed": 42, "prompts_sha256": "x"},
        "warmup_policy": "run",
        "per_sample": [
            {
                "sample_id": n,
                "f1": f1,
                "parsed": f1 is not None,
                "answer": a,
                "ttft": 0.1,
                "num_output_tokens": 5,
            }
            for n, f1, a in samples
        ],
    }
    path.write_text(json.dumps(document | changes))
    return path


def speed(path: Path, ttfts: dict[str, float | None], policy: str = "run") -> Path:
    requests = [
        {"request_id": n, "ttft_ms": t, "request_latency_ms": 5.0, "decode_speed": None, "cached_tokens": 0}
        for n, t in ttfts.items()
    ]
    document = {"fingerprint": "a", "config": {"warmup_policy": policy}, "requests": requests}
    path.write_text(json.dumps(document))
    return path


def test_answers_are_paired_by_sample(tmp_path: Path) -> None:
    one = quality(
        tmp_path / "a.json", [("x", 1.0, "Ann"), ("y", 0.5, "Bob"), ("z", None, None), ("only", 1.0, "O")]
    )
    other = quality(tmp_path / "b.json", [("y", 0.5, "Bob"), ("x", 0.0, "Eve"), ("z", 0.25, "Zed")])
    found = compare_files(one, other)
    assert (found["paired"], found["only_in_first"], found["only_in_second"]) == (3, 1, 0)
    f1 = found["metrics"]["f1"]
    assert (f1["n"], f1["first_mean"], f1["second_mean"], f1["mean_difference"]) == (2, 0.75, 0.25, -0.5)
    assert (f1["better"], f1["worse"], f1["equal"]) == (0, 1, 1)
    assert f1["interval"] == [-1.0, 0.0]
    assert [change["sample_id"] for change in found["changed_answers"]] == ["x", "z"]
    text = comparison_text(found)
    assert "x: 'Ann' -> 'Eve' (F1 1.000 -> 0.000)" in text
    assert "z: no answer -> 'Zed' (F1 - -> 0.250)" in text


def test_speed_is_paired_by_request(tmp_path: Path) -> None:
    one = speed(tmp_path / "a.json", {"r0": 10.0, "r1": 20.0, "r2": None})
    other = speed(tmp_path / "b.json", {"r0": 12.0, "r1": 24.0, "r2": 7.0})
    found = compare_files(one, other)
    ttft = found["metrics"]["ttft_ms"]
    assert (ttft["n"], ttft["mean_difference"]) == (2, 3.0)
    assert found["metrics"]["decode_speed"] is None
    assert "not measured on both sides" in comparison_text(found)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {
                "run_fingerprint": "0" * 16,
                "fingerprint_parts": {"model": "n", "seed": 42, "prompts_sha256": "y"},
            },
            "model 'm' and 'n'; prompts_sha256 'x' and 'y'",
        ),
        ({"run_fingerprint": "0" * 16, "fingerprint_parts": {}}, "model 'm' and None"),
        ({"warmup_policy": "skip"}, "warmup policy run and skip"),
    ],
)
def test_what_cannot_be_compared_is_refused_and_named(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    one = quality(tmp_path / "a.json", [("x", 1.0, "Ann")])
    other = quality(tmp_path / "b.json", [("x", 1.0, "Ann")], **changes)
    with pytest.raises(ArtifactError) as error:
        compare_files(one, other)
    assert "cannot be compared" in str(error.value)
    assert message in str(error.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    one = quality(tmp_path / "a.json", [("x", 1.0, "Ann")])
    with pytest.raises(ArtifactError, match="compare like with like"):
        compare_files(one, speed(tmp_path / "b.json", {"r0": 1.0}))
    (tmp_path / "c.json").write_text("{}")
    with pytest.raises(ArtifactError, match="is neither"):
        compare_files(one, tmp_path / "c.json")
    with pytest.raises(ArtifactError, match=r"no\.json"):
        compare_files(one, tmp_path / "no.json")


def test_the_interval_covers_the_true_mean_as_often_as_it_says() -> None:
    """Of 30 samples of 40 with mean 1 most intervals must hold 1."""
    rng = random.Random(3)
    covered = 0
    for _ in range(30):
        low, high = bootstrap_interval(np.array([rng.gauss(1.0, 2.0) for _ in range(40)]))
        covered += low <= 1.0 <= high
    assert covered / 30 > 0.85
