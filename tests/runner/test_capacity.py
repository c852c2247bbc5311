"""What a load needs of a cache, against every set of requests; what it loses there, against the sequential model."""

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachemodel.prediction import PlannedRequest, predict
from cachemodel.releases import PoolRules
from contract.manifest import read_prepared_manifest
from contract.planned import UNKNOWN, PlannedColumns, planned_columns
from contract.token_ids import read_token_ids
from generator.prepare import prepare
from prompts.tokenizer import load_tokenizer
from runner.capacity import EqualPrompts, Loss, demand, equal_requests, modelled_loss

BLOCK = 4
Row = tuple[int, int, int, int, int]


def columns(rows: list[Row], *, routed: bool) -> PlannedColumns:
    """Rows of group, rank, shared blocks, own tokens (at least 1) and output tokens."""
    group, rank, shared, own, output = (
        np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)
    )
    tokens = shared * BLOCK + own
    return PlannedColumns(
        group=group,
        groups=("a", "b"),
        rank=rank if routed else rank * 0 + UNKNOWN,
        input_tokens=tokens,
        max_tokens=output,
        shared_prefix_tokens=shared * BLOCK,
        theoretical_hit_tokens=shared * 0,
    )


def blocks_in_use(
    plan: PlannedColumns, running: tuple[int, ...], prefixes: dict[tuple[int, int], int]
) -> int:
    """Blocks that these requests and all the prefixes take, every block by a name of its own."""
    used = {(lane, number) for lane, length in prefixes.items() for number in range(length)}
    for at in running:
        lane = (int(plan.group[at]), int(plan.rank[at]))
        tokens = int(plan.input_tokens[at] + plan.max_tokens[at] - 1)
        shared = int(plan.shared_prefix_tokens[at]) // BLOCK
        for number in range(-(-tokens // BLOCK)):
            used.add((lane, number) if number < shared else ((9, at), number))
    return len(used)


rows_of_load = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 4), st.integers(1, 9), st.integers(1, 9)),
    min_size=1,
    max_size=7,
)


@given(rows_of_load, st.integers(1, 5), st.booleans())
def test_the_demand_is_the_largest_of_all_sets_that_may_run_at_once(
    rows: list[Row], concurrency: int, routed: bool
) -> None:
    plan = columns(rows, routed=routed)
    ranks = sorted(set(plan.rank.tolist())) if routed else [UNKNOWN]
    most = 0
    for rank in ranks:
        mine = [at for at in range(plan.count) if plan.rank[at] == rank]
        prefixes: dict[tuple[int, int], int] = {}
        for at in mine:
            lane = (int(plan.group[at]), rank)
            prefixes[lane] = max(prefixes.get(lane, 0), int(plan.shared_prefix_tokens[at]) // BLOCK)
        for number in range(1, min(concurrency, len(mine)) + 1):
            for running in combinations(mine, number):
                lanes = [int(plan.group[at]) for at in running]
                if not routed or len(set(lanes)) == len(lanes):
                    most = max(most, blocks_in_use(plan, running, prefixes))
    assert demand(plan, concurrency=concurrency, ranks=1, block_size=BLOCK).blocks == most


def test_requests_without_a_rank_are_spread_over_the_ranks() -> None:
    plan = columns([(0, 0, 2, 5, 1)] * 20, routed=False)
    alone, spread = (demand(plan, concurrency=9, ranks=ranks, block_size=BLOCK) for ranks in (1, 2))
    assert (alone.running, spread.running) == (9, 5)
    assert (alone.prefixes, alone.added, spread.added) == (2, 9 * 2, 5 * 2)


Prepared = Callable[..., tuple[PlannedColumns, list[Any], list[list[list[int]]]]]


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    """Plan, token ids and warmup ids of a scenario with these fields."""

    def made(mode: str, ranks: int, **fields: Any) -> tuple[PlannedColumns, list[Any], list[list[list[int]]]]:
        path = tmp_path / "scenario.json"
        document = {
            "run": {"run_id": "c", "output_dir": str(tmp_path / f"{mode}{ranks}")},
            "tokenizer": {"path": "builtin:demo", "block_size": 16},
            "corpus": {"path": "builtin:word-problems"},
            "requests": {
                "count": 60,
                "input_length": {"mode": "truncated_normal", "min": 64, "max": 400},
                "output_length": {"mode": "fixed", "value": 8},
            },
            "prefix_cache": {"mode": mode, "target_hit_rate": 0.6, "groups": {"count": 4}},
            "service": {"model": "m", "dp_size": ranks},
        }
        path.write_text(json.dumps(document | fields))
        manifest = read_prepared_manifest(Path(prepare(path)["manifest"]))
        tokenizer = load_tokenizer("builtin:demo")
        warmups: list[list[list[int]]] = [[] for _ in range(ranks)]
        for item in manifest.warmup_plan:
            warmups[item["dp_rank"]].append(tokenizer.encode_for_server(item["prompt"]))
        return (
            planned_columns(manifest.directory.full),
            list(read_token_ids(manifest.directory.token_ids)),
            warmups,
        )

    return made


def loss(plan: PlannedColumns, ids: list[Any], warmups: list[list[list[int]]], **options: Any) -> Loss:
    known: dict[str, Any] = {"concurrency": 1, "block_size": 16, "rules": PoolRules()}
    return modelled_loss(plan, ids, warmups, **(known | options))


@pytest.mark.parametrize(("mode", "ranks"), [("cold", 2), ("warmup", 1)])
@pytest.mark.parametrize("rules", [PoolRules(), PoolRules(hashless_first=False)])
def test_one_at_a_time_the_loss_is_theory_less_the_sequential_prediction(
    prepared: Prepared, mode: str, ranks: int, rules: PoolRules
) -> None:
    plan, ids, warmups = prepared(mode, ranks)
    sent = [PlannedRequest(one, 1, rank) for rank, part in enumerate(warmups) for one in part]
    sent += [
        PlannedRequest(one, int(output), max(0, int(rank)))
        for one, output, rank in zip(ids, plan.max_tokens, plan.rank, strict=True)
    ]
    found = list(predict(sent, 16, 40, rules))[-plan.count :]
    lost = sum(int(theory) - hit for theory, hit in zip(plan.theoretical_hit_tokens, found, strict=True))
    assert lost > 0, "the pool is too small"
    made = loss(plan, ids, warmups, blocks=40, rules=rules)
    assert made == Loss(plan.count, int(plan.theoretical_hit_tokens.sum()), lost, 0)


@pytest.mark.parametrize(("mode", "ranks"), [("cold", 2), ("warmup", 1), ("warmup", 2)])
def test_a_pool_that_holds_the_whole_load_loses_nothing(prepared: Prepared, mode: str, ranks: int) -> None:
    plan, ids, warmups = prepared(mode, ranks)
    need = demand(plan, concurrency=8, ranks=1, block_size=16)
    roomy = loss(plan, ids, warmups, blocks=need.whole_load + 1, concurrency=8)
    assert (roomy.tokens, roomy.waited) == (0, 0)
    crowded = loss(plan, ids, warmups, blocks=45, concurrency=8)
    assert crowded.tokens > 0
    assert crowded.waited > 0


def test_a_pool_that_holds_the_demand_may_lose_prefixes_all_the_same(prepared: Prepared) -> None:
    """What finished requests leave pushes out what comes back late: the demand alone does not report."""
    plan, ids, warmups = prepared("cold", 2)
    need = demand(plan, concurrency=1, ranks=2, block_size=16)
    assert loss(plan, ids, warmups, blocks=need.blocks + 1).tokens > 0


def test_a_clean_run_of_ninety_percent_fits_though_its_requests_are_long(prepared: Prepared) -> None:
    """Prefixes counted once per request would say 67,000 of 19,168 tokens."""
    plan, ids, warmups = prepared(
        "warmup",
        1,
        requests={
            "count": 64,
            "input_length": {"mode": "fixed", "value": 2000},
            "output_length": {"mode": "fixed", "value": 32},
        },
        prefix_cache={"mode": "warmup", "target_hit_rate": 0.9, "groups": {"count": 2}},
    )
    need = demand(plan, concurrency=32, ranks=1, block_size=16)
    assert 32 * 2032 > 3 * 19_168
    assert need.blocks * 16 < 19_168
    assert loss(plan, ids, warmups, blocks=19_168 // 16 + 1, concurrency=32).tokens == 0


def test_the_replay_is_bounded_and_can_be_ended(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, ids, warmups = prepared("cold", 2)
    steps: list[int] = []
    monkeypatch.setattr("runner.capacity.REPLAYED_TOKENS", int(plan.input_tokens[:10].sum()))
    found = loss(plan, ids, warmups, blocks=40, on_step=steps.append)
    assert found.requests == 10
    assert steps == list(range(1, 11))


def test_images_share_what_stands_before_the_text() -> None:
    prompts = EqualPrompts(shared=32, length=60)
    assert list(prompts[0][:32]) == list(prompts[1][:32])
    assert set(prompts[0][32:]).isdisjoint(prompts[1][32:])
    plan = equal_requests(20, prompts, output_tokens=5, ranks=2)
    need = demand(plan, concurrency=8, ranks=2, block_size=16)
    assert (need.prefixes, need.running, need.added) == (2, 4, 4 * 2)
    common: dict[str, Any] = {"concurrency": 8, "block_size": 16, "rules": PoolRules()}
    fits = modelled_loss(plan, prompts, [[], []], blocks=need.blocks + 1, **common)
    assert (fits.theory, fits.tokens, fits.waited) == (18 * 32, 0, 0)
    assert modelled_loss(plan, prompts, [[], []], blocks=5, **common).waited > 0
