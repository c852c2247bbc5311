"""Runs with images against simulated engines, as a user does them."""

import json
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import requests

from contract.run_directory import RunDirectory
from simulator.config import SimulatorConfig
from simulator.process import start_simulator
from tests.hitlab.conftest import Hitlab
from tests.mmmu import FULL_HD, HD, picture, write_mmmu

COUNT, TEXT, BLOCK = 20, 30, 16
IMAGE_TOKENS = {"single_1080p": 69 * 39, "multi_720p_5": 5 * 46 * 26}
"""Started patches of 28 pixels."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    config = SimulatorConfig(multimodal=True, block_size=BLOCK, blocks_per_rank=4096)
    with start_simulator(config) as simulator:
        yield simulator.url


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("MMMU")
    write_mmmu(folder / "test-0.parquet", [[picture(FULL_HD)], [picture(HD, file_format="JPEG")]])
    return folder


def service(base: str) -> dict[str, Any]:
    return {
        "inference_url": f"{base}/v1/chat/completions",
        "metrics_url": f"{base}/metrics",
        "reset_url": f"{base}/reset_prefix_cache",
        "model": "demo",
        "dp_size": 2,
        "poll_interval_seconds": 0.1,
    }


@pytest.fixture
def write(tmp_path: Path, folder: Path, url: str) -> Callable[..., Path]:
    def scenario(address: str | None = None, name: str = "single_1080p", **sections: Any) -> Path:
        base = address or url
        document: dict[str, Any] = {
            "run": {"run_id": "mm", "output_dir": "out"},
            "tokenizer": {"path": "builtin:demo", "block_size": BLOCK},
            "corpus": {"path": "builtin:word-problems"},
            "requests": {
                "count": COUNT,
                "input_length": {"mode": "fixed", "value": TEXT},
                "output_length": {"mode": "fixed", "value": 4},
            },
            "multimodal": {"mmmu_parquet_dir": str(folder), "scenarios": [name]},
            "service": service(base),
            "driver": {"kind": "native", "concurrency": 4},
        }
        for section, content in sections.items():
            document[section] = {**document.get(section, {}), **content}
        path = tmp_path / "scenario.json"
        path.write_text(json.dumps(document))
        return path

    return scenario


def prepare(hitlab: Hitlab, path: Path, mode: str = "mm") -> RunDirectory:
    ended = hitlab("prepare", "--scenario", path, "--mode", mode)
    assert ended.code == 0, ended.err
    return RunDirectory.of_manifest(Path(json.loads(ended.out)["manifest"]))


def records(directory: RunDirectory) -> list[dict[str, Any]]:
    (run,) = directory.runs.iterdir()
    found: list[dict[str, Any]] = pq.read_table(run / "requests.parquet").to_pylist()
    return found


@pytest.mark.parametrize("name", ["single_1080p", "multi_720p_5"])
def test_every_request_but_the_first_of_a_rank_shares_the_image(
    hitlab: Hitlab, write: Callable[..., Path], url: str, name: str
) -> None:
    path = write(name=name)
    directory = prepare(hitlab, path)
    ended = hitlab("run", "--scenario", path)
    assert ended.code == 0, ended.err
    for row in (
        "Image Tokens per Request",
        "Expected Prefix Cache Hit Rate",
        "Actual Prefix Cache Hit Rate",
        "Multimodal Cache Hit Rate",
    ):
        assert row in ended.out
    analysis = json.loads(directory.analysis.read_text())

    # An oracle of its own: what the server makes of one of the rows.
    found = records(directory)
    rows = [
        json.loads(line) for line in next(directory.result.glob("*.requests.jsonl")).read_text().splitlines()
    ]
    data_url = json.loads(directory.manifest.read_text())["datasets"][name]["image"]["data_url"]
    sent = rows[0]["prompt"]
    for part in sent[0]["content"]:
        if part["type"] == "image_url":
            part["image_url"] = {"url": data_url}
    ids = requests.post(f"{url}/tokenize", json={"messages": sent}, timeout=20).json()["tokens"]
    placeholder = max(ids)
    before_text = len(ids) - ids[::-1].index(placeholder)
    shared = before_text // BLOCK * BLOCK
    assert ids.count(placeholder) == IMAGE_TOKENS[name]
    assert {record["prompt_tokens"] for record in found} == {len(ids)}
    assert {record["image_tokens"] for record in found} == {IMAGE_TOKENS[name]}
    assert sorted(record["cached_tokens"] for record in found)[:2] == [0, 0]
    # A text may begin like an earlier one for the rest of a block; here none does.
    assert {record["cached_tokens"] for record in found} == {0, shared}

    actual, expected = analysis["actual"], analysis["expected"]
    assert analysis["status"] == "complete"
    assert analysis["validation"]["actual_status"] == "PASS"
    assert expected["hit_tokens"] == actual["global_hits"] == (COUNT - 2) * shared
    assert expected["input_tokens"] == actual["global_queries"] == COUNT * len(ids)
    assert analysis["agreement"]["hits_equal"] is True
    assert analysis["theory_actual_difference_pp"] == 0
    for rank in ("0", "1"):
        assert actual["by_dp"][rank]["hits"] == actual["by_dp"][rank]["expected_hits"]
    assert actual["requests"] == {
        "compared": COUNT,
        "equal": COUNT,
        "found_nothing": 2,
        "differing": [],
        "differing_requests": 0,
    }
    images = COUNT * (5 if name == "multi_720p_5" else 1)
    assert actual["multimodal_cache"]["queries"] == images
    assert actual["multimodal_cache"]["hits"] == images - 1
    assert actual["image_tokens"]["total"] == COUNT * IMAGE_TOKENS[name]

    report = json.loads(hitlab("report", "--manifest", directory.manifest, "--json").out)
    for metric in ("TTFT", "E2EL"):
        assert report["metrics"][metric]["N"] == COUNT
    # On a busy machine an answer may arrive in one read: its tokens have no times of their own.
    assert report["untimed"] + (report["metrics"]["TPOT"] or {"N": 0})["N"] == COUNT
    assert report["metrics"]["InputTokens"]["Average"] == len(ids)
    assert report["hit_rate"]["theoretical"] == report["hit_rate"]["actual"]
    (run,) = directory.runs.iterdir()
    page = (run / "report.html").read_text()
    assert "Equal to the token" in page
    assert "Requests and their images" in page
    assert "base64" not in page
    again = json.loads(hitlab("analyze", "--manifest", directory.manifest, "--measurement", run.name).out)
    assert again == analysis


def test_one_rank_and_texts_that_begin_alike(
    hitlab: Hitlab, write: Callable[..., Path], tmp_path: Path
) -> None:
    """With one rank what texts have in common is predicted, too, block by block."""
    opening = "Anna and Ben walk along the river and count the ducks that they can see"
    (tmp_path / "alike.jsonl").write_text(
        "".join(
            json.dumps({"question": f"{opening} and {word} more."}) + "\n"
            for word in ("one", "two", "three", "four", "five", "six")
        )
    )
    with start_simulator(SimulatorConfig(multimodal=True, block_size=BLOCK, ranks=1)) as simulator:
        path = write(
            simulator.url,
            corpus={"path": str(tmp_path / "alike.jsonl")},
            requests={"count": 6, "input_length": {"mode": "fixed", "value": 24}},
            service={**service(simulator.url), "dp_size": 1},
            driver={"kind": "native", "concurrency": 1},
        )
        directory = prepare(hitlab, path)
        assert hitlab("run", "--scenario", path).code == 0
    analysis = json.loads(directory.analysis.read_text())
    found = [record["cached_tokens"] for record in records(directory)]
    shared = analysis["expected"]["shared_tokens_per_request"]
    assert found[0] == 0
    assert min(found[1:]) > shared  # otherwise this test would show nothing
    assert analysis["expected"]["hit_tokens"] == analysis["actual"]["global_hits"] == sum(found)
    assert analysis["actual"]["requests"]["differing_requests"] == 0


def test_without_a_stream_times_of_tokens_are_null_with_the_reason(
    hitlab: Hitlab, write: Callable[..., Path]
) -> None:
    # An aisbench section would choose that driver; its model settings hold for the native one as well.
    path = write(aisbench={"model": {"stream": False}})
    directory = prepare(hitlab, path)
    assert hitlab("run", "--scenario", path).code == 0
    report = json.loads(hitlab("report", "--manifest", directory.manifest, "--json").out)
    for metric in ("TTFT", "TPOT", "ITL"):
        assert report["metrics"][metric] is None
        assert "stream: false" in report["unavailable"][metric]
    assert report["metrics"]["E2EL"]["N"] == COUNT
    analysis = json.loads(directory.analysis.read_text())
    assert analysis["expected"]["hit_tokens"] == analysis["actual"]["global_hits"]


def test_the_simulator_as_the_engine_of_a_run(hitlab: Hitlab, write: Callable[..., Path]) -> None:
    path = write("http://127.0.0.1:9")
    prepare(hitlab, path)
    ended = hitlab("run", "--scenario", path, "--engine", "simulator")
    assert ended.code == 0, ended.err
    assert "0.00%" in ended.out


def test_wrong_addresses_and_options_name_the_right_ones(
    hitlab: Hitlab, write: Callable[..., Path], url: str, tmp_path: Path
) -> None:
    path = write(service={"inference_url": f"{url}/v1/completions"})
    prepare(hitlab, path)
    ended = hitlab("run", "--scenario", path)
    assert ended.code == 2
    assert f"needs chat completions: {url}/v1/chat/completions" in ended.err
    template = tmp_path / "own.py"
    template.write_text("")
    ended = hitlab("run", "--scenario", write(), "--config", template)
    assert ended.code == 2
    assert "--config is for text data" in ended.err


def test_a_text_scenario_is_not_sent_to_chat(hitlab: Hitlab, write: Callable[..., Path], url: str) -> None:
    path = write(requests={"input_length": {"mode": "fixed", "value": 64}})
    prepare(hitlab, path, "text")
    ended = hitlab("run", "--scenario", path)
    assert ended.code == 2
    assert f"needs completions: {url}/v1/completions" in ended.err


def test_the_newest_of_both_kinds_is_taken_and_told(
    hitlab: Hitlab, write: Callable[..., Path], url: str
) -> None:
    sections = {"requests": {"input_length": {"mode": "fixed", "value": 64}}}
    path = write(**sections)
    images = prepare(hitlab, path)
    text = prepare(hitlab, path, "text")
    assert text.root != images.root
    # The text data is newest, and the address takes no texts.
    ended = hitlab("run", "--scenario", path)
    assert ended.code == 2
    ended = hitlab("run", "--scenario", path, "--manifest", images.manifest)
    assert ended.code == 0, ended.err
    newer = prepare(hitlab, path)
    ended = hitlab("run", "--scenario", path)
    assert ended.code == 0, ended.err
    assert f"using the newest, mm: {newer.manifest} (older: {text.manifest}; --manifest decides)" in ended.err
    path = write(service={"inference_url": f"{url}/v1/completions"}, **sections)
    ended = hitlab("run", "--scenario", path, "--manifest", text.manifest)
    assert ended.code == 0, ended.err
    assert "Overall Target Hit Rate" in ended.out


def test_nothing_prepared_names_the_command(hitlab: Hitlab, write: Callable[..., Path]) -> None:
    path = write()
    ended = hitlab("run", "--scenario", path)
    assert ended.code == 3
    assert f"hitlab prepare --scenario {path} --mode mm" in ended.err
    prepare(hitlab, path)
    ended = hitlab("run", "--scenario", write(name="multi_720p_5"))
    assert ended.code == 3
    assert "--mode mm" in ended.err


def test_damaged_data_is_not_sent(hitlab: Hitlab, write: Callable[..., Path]) -> None:
    path = write()
    directory = prepare(hitlab, path)
    rows = next(directory.result.glob("*.requests.jsonl"))
    rows.write_text(rows.read_text().replace('"max_out_len":4', '"max_out_len":5', 1))
    ended = hitlab("run", "--scenario", path)
    assert ended.code == 3
    assert "max_out_len is not what the manifest describes" in ended.err


def test_an_engine_without_images_is_told(
    hitlab: Hitlab, write: Callable[..., Path], engine_url: str
) -> None:
    path = write(engine_url)
    prepare(hitlab, path)
    ended = hitlab("run", "--scenario", path)
    assert ended.code == 4
    assert "is not a multimodal model" in ended.err


def test_a_cache_that_cannot_be_reset_is_expected_to_know_the_image(
    hitlab: Hitlab, write: Callable[..., Path]
) -> None:
    with start_simulator(SimulatorConfig(multimodal=True, block_size=BLOCK, dev_mode=False)) as simulator:
        path = write(simulator.url, service={**service(simulator.url), "assume_empty_cache": True})
        directory = prepare(hitlab, path)
        assert hitlab("run", "--scenario", path).code == 0
    analysis = json.loads(directory.analysis.read_text())
    assert analysis["expected"]["requests_that_find_nothing"] == 0
    assert analysis["expected"]["hit_tokens"] == analysis["actual"]["global_hits"]
    codes = [warning["code"] for warning in analysis["warnings"]]
    assert {"ASSUME_EMPTY_CACHE", "IMAGE_CACHE_NOT_RESET"} <= set(codes)


def test_an_engine_that_tells_little(hitlab: Hitlab, write: Callable[..., Path]) -> None:
    """No details in usage: the counters still tell what hit, and what is not told is null with its reason."""
    config = SimulatorConfig(multimodal=True, block_size=BLOCK, prompt_tokens_details=False)
    with start_simulator(config) as simulator:
        path = write(simulator.url)
        directory = prepare(hitlab, path)
        ended = hitlab("run", "--scenario", path)
    assert ended.code == 0, ended.err
    analysis = json.loads(directory.analysis.read_text())
    assert analysis["expected"]["hit_tokens"] == analysis["actual"]["global_hits"]
    assert analysis["actual"]["image_tokens"]["total"] is None
    assert "multimodal_tokens" in analysis["actual"]["image_tokens"]["reason"]
    assert "Image Tokens per Request" in ended.out
    assert "N/A" in ended.out


def test_memory_does_not_grow_with_the_requests_in_flight(
    hitlab: Hitlab, write: Callable[..., Path], tmp_path: Path
) -> None:
    """Requests in flight hold one copy of the image together, not five each."""
    folder = tmp_path / "large"
    content = picture(HD, seed=9) + bytes(3_000_000)  # decoders stop at the end of the image
    write_mmmu(folder / "test-0.parquet", [[content]])
    path = write(
        "http://127.0.0.1:9",
        name="multi_720p_5",
        multimodal={"mmmu_parquet_dir": str(folder), "scenarios": ["multi_720p_5"]},
        requests={"count": 16},
        driver={"kind": "native", "concurrency": 16},
        service={"timeout_seconds": 120},
    )
    prepare(hitlab, path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ended = hitlab("run", "--scenario", path, "--engine", "simulator")
    assert ended.code == 0, ended.err
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3
    assert sys.platform != "linux" or grown < 150, f"{grown:.0f} MB for 16 requests of 20 MB"
