"""What took effect is written down: no value that HitLab derived is left for the reader to derive again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract.effective_config import effective_config
from contract.scenario import parse_scenario
from generator.plan.plan import build_plan

UNUSED_OR_CHOSEN = {
    "tokenizer.revision", "corpus.selection.values", "corpus.selection.indices", "corpus.selection.question_sha256",
    "output.output_key", "service.metrics_urls", "service.ca_file", "service.client_cert", "service.client_key",
    "aisbench.dataset.abbr", "aisbench.model.abbr", "multimodal.mmmu_parquet_dir", "engine.image", "engine.gpus",
    "engine.hf_home", "engine.kv_cache_gib", "prefix_cache.groups.assignment.weights",
}  # fmt: skip
"""Null says here that nothing of this kind was wanted, or (abbr) that the run's own name is taken, as in the guide."""
LENGTHS = ("values", "ranges", "min", "max", "mean", "std", "path")
"""Null in a length of another mode."""
BASE: dict[str, Any] = {
    "run": {"run_id": "x", "output_dir": "out"},
    "tokenizer": {"path": "builtin:demo", "block_size": 16},
    "corpus": {"path": "builtin:word-problems"},
    "requests": {"count": 60},
}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the guides' minimal example": (
        {},
        {
            "prefix_cache.minimum_non_shared_length": 16,
            "driver.kind": "native",
            "driver.concurrency": 1,
            "driver.retries": 0,
        },
    ),
    "two seed blocks, drawn lengths, AISBench": (
        {
            "prefix_cache": {"seed_blocks": 2, "groups": {"count": 2, "overrides": {"group-1": {
                "input_length": {"mode": "truncated_normal", "min": 100, "max": 100}}}}},
            "requests": {
                "count": 60,
                "input_length": {"mode": "truncated_normal", "min": 64, "max": 400},
                "output_length": {"mode": "truncated_normal", "min": 1, "max": 3, "mean": 2.5},
            },
            "aisbench": {"model": {"batch_size": 7}},
        },
        {
            "prefix_cache.minimum_non_shared_length": 32,
            "requests.input_length.mean": 232.0,
            "requests.input_length.std": 84.0,
            "requests.output_length.mean": 2.5,
            "requests.output_length.std": 1.0,
            "prefix_cache.groups.overrides.group-1.input_length.mean": 100.0,
            "driver.kind": "aisbench",
            "driver.concurrency": 7,
            "driver.retries": 2,
        },
    ),
    "what is set stays": (
        {
            "prefix_cache": {"minimum_non_shared_length": 40},
            "driver": {"kind": "native", "concurrency": 3, "retries": 1},
        },
        {
            "prefix_cache.minimum_non_shared_length": 40,
            "driver.kind": "native",
            "driver.concurrency": 3,
            "driver.retries": 1,
        },
    ),
}  # fmt: skip


def leaves(document: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(document, dict):
        yield path, document
        return
    for key, value in document.items():
        yield from leaves(value, f"{path}.{key}" if path else key)


@pytest.mark.parametrize("case", CASES)
def test_derived_values_are_filled_in_and_mean_the_same(case: str, tmp_path: Path) -> None:
    sections, expected = CASES[case]
    scenario = parse_scenario(BASE | sections, folder=tmp_path)
    config = effective_config(scenario)
    found = dict(leaves(config))
    assert {name: found[name] for name in expected} == expected
    open_ends = {name for name, value in found.items() if value is None} - UNUSED_OR_CHOSEN
    assert {name for name in open_ends if name.rsplit(".", 1)[-1] not in LENGTHS} <= {
        "prefix_cache.groups.overrides.group-1.output_length",
        "prefix_cache.groups.overrides.group-1.corpus_selection",
    }
    for section in [name[:-5] for name, value in found.items() if value == "truncated_normal"]:
        assert None not in (found[f"{section}.mean"], found[f"{section}.std"])

    del config["service"]["api_key_configured"]
    again = parse_scenario(config, folder=tmp_path)
    derived_again = dict(leaves(effective_config(again)))
    for name in found.keys() - {
        "aisbench.work_dir"
    }:  # a folder that was not named is relative to the scenario's
        assert derived_again[name] == found[name], "nothing is left to derive"
    first, second = build_plan(scenario), build_plan(again)
    for column in ("input_tokens", "output_tokens", "prefix"):
        np.testing.assert_array_equal(getattr(first, column), getattr(second, column))
