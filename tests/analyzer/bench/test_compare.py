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
        {"request_id": n, "ttft_ms": t, "request_latency_ms": 5.0, "tpot_ms": None, "cached_tokens": 0}
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
    assert found["metrics"]["tpot_ms"] is None
    assert "not measured on both sides" in comparison_text(found)


LESS_IS_BETTER = ("ttft_ms", "request_latency_ms", "tpot_ms")


@pytest.mark.parametrize("change", [1.0, -1.0])
def test_better_and_worse_have_a_direction_for_each_metric(tmp_path: Path, change: float) -> None:
    """A second more is worse, one less better; of cached tokens neither is said."""

    def written(name: str, more: float) -> Path:
        requests = [
            {
                "request_id": f"r{n}",
                "cached_tokens": 64 + more,
                **dict.fromkeys(LESS_IS_BETTER, 10.0 + n + more),
            }
            for n in range(4)
        ]
        (tmp_path / name).write_text(
            json.dumps({"fingerprint": "a", "config": {"warmup_policy": "run"}, "requests": requests})
        )
        return tmp_path / name

    found = compare_files(written("a.json", 0.0), written("b.json", change))
    for name in LESS_IS_BETTER:
        metric = found["metrics"][name]
        assert metric["better_is"] == "less"
        assert (metric["better"], metric["worse"], metric["equal"]) == (
            (0, 4, 0) if change > 0 else (4, 0, 0)
        )
    cached = found["metrics"]["cached_tokens"]
    assert cached["better_is"] is None
    assert (cached["higher"], cached["lower"], cached["equal"]) == ((4, 0, 0) if change > 0 else (0, 4, 0))
    assert "better" not in cached
    text = comparison_text(found)
    assert ("0 better, 4 worse, 0 equal" if change > 0 else "4 better, 0 worse, 0 equal") in text
    assert ("4 higher, 0 lower" if change > 0 else "0 higher, 4 lower") in text


def test_answers_have_directions_too(tmp_path: Path) -> None:
    one = quality(tmp_path / "a.json", [("x", 0.5, "Ann")])
    other = quality(tmp_path / "b.json", [("x", 0.75, "Ann B")])
    document = json.loads(other.read_text())
    document["per_sample"][0] |= {"ttft": 0.2, "num_output_tokens": 9}
    other.write_text(json.dumps(document))
    metrics = compare_files(one, other)["metrics"]
    assert {name: metric["better_is"] for name, metric in metrics.items()} == {
        "f1": "more", "ttft": "less", "num_output_tokens": None,
    }  # fmt: skip
    assert (metrics["f1"]["better"], metrics["ttft"]["worse"], metrics["num_output_tokens"]["higher"]) == (
        1,
        1,
        1,
    )


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
        ({"run_fingerprint": "0" * 16, "fingerprint_parts": {}}, "model 'm' and none"),
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
