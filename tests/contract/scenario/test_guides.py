"""Whatever the two user guides show, loads: the full scenario and every inline example object in its place."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.scenario import parse_scenario

REFERENCE = Path(__file__).resolve().parents[4] / "shared" / "reference"
MINIMAL: dict[str, Any] = {
    "schema_version": "1.0",
    "run": {
        "run_id": "gsm8k-prefix-cache-60",
        "random_seed": 42,
        "output_dir": "./outputs/gsm8k-prefix-cache-60",
    },
    "tokenizer": {"path": "/path/to/tokenizer", "block_size": 16},
    "corpus": {"path": "./GSM8K.jsonl", "field": "question", "selection": {"mode": "random"}},
    "requests": {
        "count": 100,
        "input_length": {"mode": "fixed", "value": 1024},
        "output_length": {"mode": "fixed", "value": 32},
    },
    "prefix_cache": {
        "mode": "warmup",
        "target_hit_rate": 0.6,
        "seed_blocks": 1,
        "groups": {"count": 1, "assignment": {"mode": "uniform"}},
        "order": {"strategy": "interleave"},
    },
    "service": {"dp_size": 2},
}
RANGES = [{"min": 512, "max": 1024, "count": 80}, {"min": 2048, "max": 4096, "count": 20}]
EXAMPLES: list[tuple[str, Any]] = [
    ("corpus.selection", {"mode": "random"}),
    ("corpus.selection", {"mode": "indices", "values": [0, 15, 72]}),
    ("corpus.selection", {"mode": "question_sha256", "values": ["<64位SHA-256>"]}),
    ("corpus.selection", {"mode": "mixed", "indices": [0, 15], "question_sha256": ["<SHA-256>"]}),
    ("requests.input_length", {"mode": "fixed", "value": 1024}),
    ("requests.input_length", {"mode": "explicit", "values": [512, 768, 1024, 2048]}),
    ("requests.input_length", {"mode": "range", "ranges": RANGES}),
    ("requests.input_length", {"mode": "range", "ranges": [{"min": 512, "max": 1024, "count": 80}]}),
    (
        "requests.input_length",
        {"mode": "truncated_normal", "min": 512, "max": 2048, "mean": 1024, "std": 256},
    ),
    ("requests.input_length", {"mode": "csv", "path": "./input_lengths.csv"}),
    ("requests.output_length", {"mode": "fixed", "value": 32}),
    ("requests.output_length", {"mode": "uniform", "min": 16, "max": 64}),
    ("requests.output_length", {"mode": "truncated_normal", "min": 16, "max": 128, "mean": 64, "std": 16}),
    ("requests.output_length", {"mode": "csv", "path": "./output_lengths.csv"}),
    ("output", {"output_key": "max_tokens"}),
    ("output", {"output_key": None}),
    ("prefix_cache.groups.assignment", {"mode": "uniform"}),
    ("prefix_cache.groups.assignment", {"mode": "zipf", "exponent": 1.0}),
    ("prefix_cache.groups.assignment", {"mode": "weights", "weights": [0.5, 0.3, 0.15, 0.05]}),
    ("prefix_cache.groups.overrides", {}),
    ("prefix_cache.groups.overrides.group-0.input_length", {"mode": "fixed", "value": 2048}),
    ("prefix_cache.groups.overrides.group-0.output_length", {"mode": "fixed", "value": 64}),
    ("prefix_cache.groups.overrides.group-0.corpus_selection", {"mode": "indices", "values": [0, 1, 2]}),
    ("prefix_cache.order", {"strategy": "interleave"}),
    ("prefix_cache.order", {"strategy": "input_len_asc"}),
    ("aisbench.model.generation_kwargs", {"temperature": 0, "ignore_eos": True}),
    ("aisbench.extra_args", {"--num-warmups": 0}),
    ("aisbench", {"extra_args": ["--num-warmups", "0"]}),
    ("", {"multimodal": {"mmmu_parquet_dir": "../../../../MMMU", "scenarios": ["single_1080p"]}}),
]
OUTPUTS = [{"full": "...", "requests": "...", "manifest": "...", "analysis": "...", "log": "..."}]


def place(path: str, value: Any) -> dict[str, Any]:
    """The minimal scenario with `value` at `path`, and with as many requests and groups as the example is for."""
    document: dict[str, Any] = json.loads(json.dumps(MINIMAL))
    if not path:
        return document | value
    node = document
    steps = path.split(".")
    for step in steps[:-1]:
        node = node.setdefault(step, {})
    node[steps[-1]] = value
    document["requests"]["count"] = _count(value)
    if value.get("mode") == "weights":
        document["prefix_cache"]["groups"]["count"] = len(value["weights"])
    return document


def _count(value: Any) -> int:
    if value.get("mode") == "explicit":
        return len(value["values"])
    if value.get("mode") == "range":
        return sum(part["count"] for part in value["ranges"])
    return 3 if value.get("mode") == "csv" else 100


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "input_lengths.csv").write_text("input_prompt_tokens\n512\n768\n1024\n")
    (tmp_path / "output_lengths.csv").write_text("output_tokens\n16\n32\n64\n")
    return tmp_path


def test_minimal_scenario() -> None:
    scenario = parse_scenario(MINIMAL)
    assert (scenario.requests.count, scenario.seed_tokens, scenario.service.dp_size) == (100, 16, 2)


@pytest.mark.parametrize(("path", "value"), EXAMPLES, ids=lambda value: json.dumps(value)[:60])
def test_inline_example(path: str, value: Any, folder: Path) -> None:
    document = parse_scenario(place(path, value), folder=folder).model_dump(mode="json")
    steps = [step for step in path.split(".") if step]
    for step in steps:
        document = document[step]
    for key, expected in value.items():
        if key not in ("path", "ranges", "multimodal"):
            assert document[key] == expected


def test_multimodal_directory_is_seen_from_the_scenario(tmp_path: Path) -> None:
    scenario = parse_scenario(
        {"multimodal": {"mmmu_parquet_dir": "../MMMU"}}, folder=tmp_path / "scenarios", mode="mm"
    )
    assert scenario.multimodal.mmmu_parquet_dir == str(tmp_path / "MMMU")


def objects_in(text: str) -> Iterator[Any]:
    """Every outermost JSON object that stands in a text."""
    decoder = json.JSONDecoder()
    at = text.find("{")
    while at != -1:
        try:
            value, at = decoder.raw_decode(text, at)
            yield value
        except json.JSONDecodeError:
            at += 1
        at = text.find("{", at)


@pytest.mark.parametrize("name", ["000_", "001_"])
def test_nothing_in_the_guides_is_left_out(name: str) -> None:
    found = list(REFERENCE.glob(f"{name}*.txt"))
    if not found:
        pytest.skip("the user guides are not beside the checkout")
    known = [MINIMAL, *OUTPUTS, *(value for _, value in EXAMPLES), RANGES[0]]
    for value in objects_in(found[0].read_text(encoding="utf-8")):
        assert value in known
