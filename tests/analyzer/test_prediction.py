"""The prediction over prepared data: equal to theory where nothing is lost, and the cause where something is."""

from typing import Any

import pytest

from analyzer.analyze import analyze_measurement
from cachemodel.prediction import PlannedRequest, predict
from cachemodel.releases import PoolRules
from contract.documents import write_document
from contract.manifest import read_manifest, seal
from contract.measurement import Finding
from contract.token_ids import read_token_ids
from prompts.tokenizer import load_tokenizer
from tests.analyzer.conftest import BLOCK, Made, Make

STAMP = "20260101_000000"
TODAY = PoolRules()
BEFORE_0_24 = PoolRules(hashless_first=False)


def prediction(made: Made, *arguments: Any, **fields: Any) -> dict[str, Any]:
    made.write(*arguments, **fields)
    found: dict[str, Any] = analyze_measurement(made.manifest, STAMP).document["prediction"]
    return found


def lane_of_the_first(made: Made) -> list[int]:
    """Positions of all requests in the lane of the first one."""
    lanes = [(row["group_id"], row["dp_rank"]) for row in made.rows]
    return [position for position, lane in enumerate(lanes) if lane == lanes[0]]


def sequential(made: Made, blocks: int, rules: PoolRules = TODAY) -> list[int]:
    """Hits by the sequential model of `cachemodel`, warmup first, four output tokens per answer."""
    tokenizer = load_tokenizer("builtin:demo")
    warm = [
        PlannedRequest(tokenizer.encode_for_server(item["prompt"]), 1, item["dp_rank"])
        for item in made.manifest.warmup_plan
    ]
    ids = read_token_ids(made.manifest.directory.token_ids)
    formal = [
        PlannedRequest(tokens, 4, row["dp_rank"] or 0) for tokens, row in zip(ids, made.rows, strict=True)
    ]
    return list(predict([*warm, *formal], BLOCK, blocks, rules))[len(warm) :]


@pytest.mark.parametrize(
    ("kind", "blocks"), [("cold-2", 34), ("cold-2", 26), ("warmup-1", 40), ("warmup-1", 60)]
)
def test_a_pool_too_small_for_what_is_shared_is_predicted_request_by_request(
    make: Make, kind: str, blocks: int
) -> None:
    made = make(kind, num_gpu_blocks_override=blocks)
    expected = sequential(made, blocks)
    theory = [row["theoretical_hit_tokens"] for row in made.rows]
    assert sum(expected) < sum(theory), "the pool is too small"
    records = [item._replace(cached_tokens=hits) for item, hits in zip(made.records(), expected, strict=True)]
    found = prediction(made, records)
    assert found["hit_tokens"] == sum(expected)
    assert found["requests"] == {"predicted": 24, "compared": 24, "equal": 24, "differing": []}
    assert found["theory"]["tokens"] == sum(expected) - sum(theory)
    assert [item["tokens"] for item in found["theory"]["causes"]] == [sum(expected) - sum(theory)]
    assert "evicted" in found["theory"]["causes"][0]["cause"]
    assert found["model"]["evicted_blocks"] > 0
    assert found["model"]["blocks_per_rank"]["0"] == blocks
    assert found["caveats"] == []


@pytest.mark.parametrize(("kind", "blocks"), [("cold-2", 34), ("warmup-1", 40)])
def test_an_old_engine_frees_in_its_own_order(make: Make, kind: str, blocks: int) -> None:
    """Until 0.23 blocks without a hash go to the end of the free queue, so that less of what is shared survives."""
    made = make(kind, num_gpu_blocks_override=blocks)
    expected = sequential(made, blocks, BEFORE_0_24)
    assert sum(expected) < sum(sequential(made, blocks)), "the order makes a difference here"
    records = [item._replace(cached_tokens=hits) for item, hits in zip(made.records(), expected, strict=True)]
    found = prediction(made, records, version="0.23.0")
    assert found["hit_tokens"] == sum(expected)
    assert found["requests"]["equal"] == 24
    assert found["caveats"] == []
    assert found["model"]["free_order"] == "all_last"
    assert found["model"]["engine_version"] == "0.23.0"


@pytest.mark.parametrize("version", [None, "nightly"])
def test_an_engine_of_unknown_release_is_a_caveat_where_blocks_can_be_evicted(
    make: Make, version: str | None
) -> None:
    small = prediction(make("cold-2", num_gpu_blocks_override=34), version=version)
    assert len(small["caveats"]) == 1
    assert "0.24.0" in small["caveats"][0]


def test_an_unknown_release_makes_no_difference_to_a_pool_that_holds_everything(make: Make) -> None:
    assert prediction(make("cold-2"), version=None)["caveats"] == []


@pytest.mark.parametrize(("version", "certain"), [("0.16.0", False), ("0.23.0", True), ("0.32.0", True)])
def test_waiting_for_room_depends_on_the_release(make: Make, version: str, certain: bool) -> None:
    made = make("warmup-1", num_gpu_blocks_override=40)
    found = prediction(made, made.records(e2el_s=3.5), version=version)
    said = [caveat for caveat in found["caveats"] if "first chunk" in caveat]
    assert (not said) == certain
    assert any("side by side" in caveat for caveat in found["caveats"]), "they wait because others run"


def test_requests_are_replayed_in_order_of_sending_and_not_of_the_file(make: Make) -> None:
    made = make("cold-2")
    records = made.records()
    lane = lane_of_the_first(made)[:2]
    assert made.rows[lane[0]]["theoretical_hit_tokens"] == 0 < made.rows[lane[1]]["theoretical_hit_tokens"]
    swapped = dict(zip(lane, reversed([records[at].started_ns for at in lane]), strict=True))
    records = [item._replace(started_ns=swapped.get(item.position, item.started_ns)) for item in records]
    found = prediction(made, records)
    differing = {
        item["sequence_index"]: item["predicted_hit_tokens"] for item in found["requests"]["differing"]
    }
    assert differing[lane[1]] == 0
    assert differing.get(lane[0], 0) > 0
    assert any("was sent before" in item["cause"] for item in found["theory"]["causes"])


def test_overlapping_requests_in_a_small_pool_are_not_certain(make: Make) -> None:
    made = make("warmup-1", num_gpu_blocks_override=60)
    found = prediction(made, made.records(e2el_s=1.5))
    assert any("side by side" in caveat for caveat in found["caveats"])


def test_a_service_that_chooses_ranks_of_a_small_pool_is_not_certain(make: Make) -> None:
    made = make("warmup-2", num_gpu_blocks_override=60)
    found = prediction(made)
    assert found["hit_tokens"] == sum(row["theoretical_hit_tokens"] for row in made.rows)
    assert found["model"]["evicted_blocks"] is None
    assert "the service chose the ranks" in found["caveats"][0]


def test_an_engine_that_does_not_tell_its_size_is_assumed_not_to_evict(make: Make) -> None:
    made = make("cold-2")
    made.config = {"num_gpu_blocks": "None"}
    found = prediction(made)
    assert found["requests"]["equal"] == 24
    assert found["model"]["blocks_per_rank"] is None
    assert "no eviction is assumed" in found["caveats"][0]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"prefix_match_unit": 64}, "units of 64 tokens"),
        ({"mamba_block_size": 528}, "several kinds of blocks"),
    ],
)
def test_caches_of_another_kind_are_not_predicted(make: Make, config: dict[str, Any], message: str) -> None:
    found = prediction(make("cold-2", **config))
    assert found["hit_tokens"] is None
    assert message in found["reason"]
    assert found["requests"] == {"predicted": 0, "compared": 0, "equal": 0, "differing": []}
    assert found["theory"]["tokens"] is None


def test_a_server_known_to_drop_the_last_block_is_predicted_to(make: Make) -> None:
    made = make("cold-2")
    records = [item._replace(cached_tokens=max(0, item.cached_tokens - BLOCK)) for item in made.records()]
    found = prediction(made, records, findings=[Finding(code="DROPS_LAST_BLOCK", message="it does")])
    hitting = sum(row["theoretical_hit_tokens"] > 0 for row in made.rows)
    assert found["requests"]["equal"] == 24
    assert [item["tokens"] for item in found["theory"]["causes"]] == [-hitting * BLOCK]
    assert "EAGLE" in found["theory"]["causes"][0]["cause"]


def test_an_attempt_that_never_reached_the_engine_fills_no_cache(make: Make) -> None:
    """A refused connection leaves its lane void, and the rest of the lane hits what only answered requests left."""
    made = make("cold-2")
    records = made.records()
    records[0] = records[0]._replace(
        error_kind="connect", cached_tokens=None, prompt_tokens=None, completion_tokens=None
    )
    found = prediction(made, records)
    assert found["requests"]["predicted"] == 23
    lane = lane_of_the_first(made)
    assert found["requests"]["compared"] == 24 - len(lane)
    assert found["requests"]["equal"] == 24 - len(lane)
    assert found["reason"] == f"{len(lane)} requests are void"


def test_without_its_tokenizer_the_warmup_is_unknown(make: Make) -> None:
    made = make("warmup-2")
    document = dict(made.manifest.document)
    config = document["effective_config"]
    changed = {**config, "tokenizer": {**config["tokenizer"], "path": "/nowhere/at/all"}}
    write_document(made.manifest.directory.manifest, seal({**document, "effective_config": changed}))
    made.manifest = read_manifest(made.manifest.directory.manifest)
    made.write()
    analysis = analyze_measurement(made.manifest, STAMP)
    found = analysis.document["prediction"]
    assert found["hit_tokens"] is None
    assert "the warmup prompts cannot be tokenized" in found["reason"]
    assert "/nowhere/at/all" in found["reason"]
    assert analysis.exit_code == 0, "a prediction is not required"
    assert analysis.document["ledgers"]["agree"] is True


def test_cold_data_needs_no_tokenizer(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr("analyzer.prediction.load_tokenizer", refuse)
    assert prediction(make("cold-2"))["requests"]["equal"] == 24


def test_requests_that_were_never_sent_are_not_predicted(make: Make) -> None:
    made = make("warmup-1")
    found = prediction(made, made.records()[:10], status="interrupted")
    assert found["requests"]["predicted"] == found["requests"]["equal"] == 10
    assert found["hit_tokens"] is None
