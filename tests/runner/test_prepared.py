"""Which kind of data a scenario means, and what is told when it cannot be read as that."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contract.errors import ArtifactError, HitLabError, ScenarioError
from generator.multimodal.prepare import prepare_images
from generator.prepare import prepare
from runner.prepared import choose_data, likely_kind
from tests.mmmu import FULL_HD, picture, write_mmmu

COMPLETIONS, CHAT = "http://127.0.0.1:1/v1/completions", "http://127.0.0.1:1/v1/chat/completions"
IMAGES = {"mmmu_parquet_dir": "./MMMU", "scenarios": ["single_1080p"]}
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A text scenario with the example's section for images."""

    def scenario(**sections: Any) -> Path:
        document = {
            "run": {"run_id": "both", "output_dir": "out"},
            "tokenizer": {"path": "builtin:demo", "block_size": 16},
            "corpus": {"path": "builtin:word-problems"},
            "requests": {"count": 4, "input_length": {"mode": "fixed", "value": 64}},
            "prefix_cache": {"mode": "cold", "target_hit_rate": 0.5},
            "service": {"inference_url": COMPLETIONS},
            "multimodal": IMAGES,
        } | sections
        path = tmp_path / "scenario.json"
        path.write_text(
            json.dumps({name: section for name, section in document.items() if section is not None})
        )
        return path

    return scenario


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        ({"service": {"inference_url": CHAT}, "prefix_cache": {}, "multimodal": IMAGES}, "mm"),
        ({"service": {"inference_url": CHAT + "/"}, "multimodal": {}}, "mm"),
        ({"service": {"inference_url": CHAT}, "prefix_cache": {}}, "text"),
        ({"service": {"inference_url": CHAT}}, "text"),
        (
            {
                "service": {"inference_url": COMPLETIONS},
                "engine": {"kind": "simulator"},
                "multimodal": IMAGES,
            },
            "mm",
        ),
        ({"service": {"inference_url": COMPLETIONS}, "multimodal": IMAGES}, "text"),
        ({"prefix_cache": {}, "multimodal": IMAGES}, "text"),
        ({"multimodal": IMAGES}, "mm"),
        ({"multimodal": {}}, "text"),
        ({}, "text"),
        ([], "text"),
    ],
)
def test_route_then_sections_say_the_kind(document: Any, kind: str) -> None:
    assert likely_kind(document) == kind


def told(path: Path) -> HitLabError:
    with pytest.raises(HitLabError) as raised:
        choose_data(path, None)
    return raised.value


@pytest.mark.parametrize(
    "lengths",
    [{"mode": "fixed", "value": 64}, {"mode": "truncated_normal", "min": 64, "max": 96}],
)
def test_a_text_user_is_told_to_prepare_text(write: Write, lengths: dict[str, Any]) -> None:
    error = told(write(requests={"count": 4, "input_length": lengths}))
    assert isinstance(error, ArtifactError)
    assert str(error).endswith("--mode text")


def test_an_image_user_is_told_to_prepare_images(write: Write) -> None:
    assert str(told(write(service={"inference_url": CHAT}))).endswith("--mode mm")


def test_mistakes_of_a_text_scenario_are_not_hidden_by_a_readable_image_scenario(write: Write) -> None:
    error = told(write(prefix_cache={"mode": "cold", "target_hit_rate": 2}))
    assert isinstance(error, ScenarioError)
    assert "prefix_cache.target_hit_rate: found 2; must be <= 1" in str(error)
    assert "fixed" not in str(error)


def test_prepared_text_is_not_passed_over_for_its_mistakes(write: Write) -> None:
    """The data that is there says more than the route."""
    path = write()
    prepare(path)
    write(prefix_cache={"target_hit_rate": 2}, service={"inference_url": CHAT})
    assert "prefix_cache.target_hit_rate: found 2" in str(told(path))


def test_when_neither_can_be_read_both_are_told_and_named(write: Write) -> None:
    path = write(
        prefix_cache={"target_hit_rate": 2},
        requests={"count": 0, "input_length": {"mode": "truncated_normal", "min": 64, "max": 96}},
        multimodal={"scenarios": ["single_1080p", "multi_720p_5"]},
    )
    lines = str(told(path)).splitlines()
    assert lines[0] == f"{path}: requests.count: found 0; must be >= 1", "of both"
    assert lines[1] == f"{path}: prefix_cache.target_hit_rate: found 2; must be <= 1 (read as --mode text)"
    assert all(line.endswith("(read as --mode mm)") for line in lines[2:])
    assert len(lines) == len(set(lines))


def test_without_a_section_for_images_nothing_is_said_of_them(write: Write) -> None:
    """A text scenario, on whatever route, with a mistake, without one, and when its data is out of date."""
    lengths = {"count": 4, "input_length": {"mode": "truncated_normal", "min": 64, "max": 96}}
    for url in (COMPLETIONS, CHAT):
        service = {"inference_url": url}
        bad = write(multimodal=None, service=service, requests=lengths, prefix_cache={"target_hit_rate": 2})
        assert str(told(bad)) == f"{bad}: prefix_cache.target_hit_rate: found 2; must be <= 1"
        good = write(multimodal=None, service=service, requests=lengths)
        assert str(told(good)).endswith("--mode text")


@pytest.mark.parametrize(("there", "meant", "url"), [("text", "mm", CHAT), ("mm", "text", COMPLETIONS)])
def test_data_of_the_other_kind_that_is_out_of_date_does_not_say_the_kind(
    write: Write, tmp_path: Path, there: str, meant: str, url: str
) -> None:
    write_mmmu(tmp_path / "MMMU" / "test-0.parquet", [[picture(FULL_HD)]])
    path = write()
    (prepare if there == "text" else prepare_images)(path)
    write(
        requests={"count": 5, "input_length": {"mode": "fixed", "value": 64}}, service={"inference_url": url}
    )
    assert str(told(path)) == (
        f"{path}: no data has been prepared for it; run: hitlab prepare --scenario {path} --mode {meant}"
    )


def test_prepared_text_of_a_scenario_with_images_is_taken(write: Write) -> None:
    path = write(multimodal={"mmmu_parquet_dir": "./MMMU", "scenarios": ["single_1080p", "multi_720p_5"]})
    made = prepare(path)
    choice = choose_data(path, None)
    assert str(choice.prepared.manifest.directory.manifest) == made["manifest"]
    assert choice.prepared.manifest.mode == "text"
