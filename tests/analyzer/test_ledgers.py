"""Ledgers side by side: equal ones, each way to differ with its cause and caveat, and what cannot be measured."""

from typing import Any

import pytest

from analyzer.analyze import analyze_measurement
from analyzer.table import result_rows
from contract.errors import ExitCode
from contract.measurement import Finding
from tests.analyzer.conftest import BLOCK, Made, Make

LEDGERS = ("counters", "by_source", "cached_tokens", "computed", "prediction")
STAMP = "20260101_000000"


def analysed(made: Made, *arguments: Any, **fields: Any) -> dict[str, Any]:
    made.write(*arguments, **fields)
    return analyze_measurement(made.manifest, STAMP).document


def only_difference(document: dict[str, Any], quantity: str = "hits") -> dict[str, Any]:
    found = [item for item in document["ledgers"]["differences"] if item["quantity"] == quantity]
    assert len(found) == 1, found
    return dict(found[0])


def raised(made: Made, rank: int = 0, **more: int) -> dict[int, dict[str, int]]:
    """Exact counters, some of them higher on one rank."""
    counters = made.counters()
    for name, tokens in more.items():
        counters[rank][name] += tokens
    return counters


@pytest.mark.parametrize("kind", ["cold-2", "warmup-2", "warmup-1"])
def test_an_exact_engine_has_five_equal_ledgers_and_five_rows(make: Make, kind: str) -> None:
    made = make(kind)
    made.write()
    analysis = analyze_measurement(made.manifest, STAMP)
    document = analysis.document
    theory = sum(row["theoretical_hit_tokens"] for row in made.rows)
    planned = sum(row["actual_input_tokens"] for row in made.rows)
    assert theory > 0
    for name in LEDGERS:
        total = document["ledgers"][name]["total"]
        assert (total["hits"], total["queries"]) == (theory, planned), name
        assert total["hit_rate"] == theory / planned
        assert total["reason"] is None
    assert document["ledgers"]["agree"] is True
    assert document["ledgers"]["differences"] == []
    assert document["ledgers"]["computed"]["source"]["queries"] == "vllm:request_prompt_tokens_sum"
    assert document["warnings"] == []
    assert len(result_rows(document)) == 5
    assert analysis.exit_code == ExitCode.DONE


def test_ledgers_per_rank(make: Make) -> None:
    made = make("cold-2")
    document = analysed(made)
    for rank in (0, 1):
        expected = sum(row["theoretical_hit_tokens"] for row in made.rows if row["dp_rank"] == rank)
        assert expected > 0
        assert {document["ledgers"][name]["by_dp"][str(rank)]["hits"] for name in LEDGERS} == {expected}


def test_ranks_that_the_service_chose_are_null_with_a_reason(make: Make) -> None:
    ledgers = analysed(make("warmup-2"))["ledgers"]
    for name in ("cached_tokens", "prediction"):
        assert ledgers[name]["by_dp"]["1"]["hits"] is None
        assert "the service chose" in ledgers[name]["by_dp"]["1"]["reason"]
    assert ledgers["counters"]["by_dp"]["1"]["hits"] == 0


def test_an_old_engine_that_let_requests_wait_counted_them_again(make: Make) -> None:
    made = make("cold-2")
    counters = raised(made, rank=1, queries=500, hits=160)
    document = analysed(made, None, counters, version="0.26.0")
    found = [item for item in document["ledgers"]["differences"] if item["quantity"] == "hits"]
    assert {item["between"][1] for item in found} == {"by_source", "cached_tokens", "computed", "prediction"}
    for item in found:
        assert (item["between"][0], item["tokens"], item["by_dp"].get("1", -160)) == ("counters", -160, -160)
        assert "scheduling retry" in item["cause"]
        assert "0.26.0" in item["caveat"]
        assert "#43736" in item["caveat"]
    rows = dict(result_rows(document)[5:])
    assert list(rows) == [
        "Hit Rate by Prompt Tokens by Source",
        "Hit Rate by Cached Tokens of Answers",
        "Hit Rate by Computed Prompt Tokens",
        "Hit Rate by Prediction",
    ]
    assert (
        "; -500 queries against counters; -160 hits against counters)"
        in rows["Hit Rate by Cached Tokens of Answers"]
    )
    warned = {warning["code"]: warning.get("message", "") for warning in document["warnings"]}
    assert "scheduling retry" in warned["HIT_TOKENS_DIFFER"]


def test_a_new_engine_never_counts_again_so_it_is_foreign_traffic(make: Make) -> None:
    made = make("cold-2")
    counters = made.counters()
    for name in ("queries", "prompt_tokens_total", "request_prompt_tokens_sum",
                 "request_prefill_kv_computed_tokens_sum"):  # fmt: skip
        counters[0][name] += 777
    finding = Finding(code="FOREIGN_TRAFFIC", message="others", tokens=777)
    document = analysed(made, None, counters, findings=[finding], settled=False)
    answers = next(
        item
        for item in document["ledgers"]["differences"]
        if item["between"] == ["counters", "cached_tokens"]
    )
    assert (answers["quantity"], answers["tokens"]) == ("queries", -777)
    assert "foreign traffic" in answers["cause"]
    assert answers["caveat"] is None


def test_an_external_cache_explains_answers_with_more_hits(make: Make) -> None:
    made = make("cold-2")
    records = made.records()
    records[5] = records[5]._replace(cached_tokens=records[5].cached_tokens + 48)
    counters = made.counters()
    rank = made.rows[5]["dp_rank"]
    counters[rank]["external_prefix_cache_queries_total"] = 600
    counters[rank]["external_prefix_cache_hits_total"] = 48
    counters[rank]['prompt_tokens_by_source_total{source="external_kv_transfer"}'] = 48
    counters[rank]["request_prefill_kv_computed_tokens_sum"] -= 48
    document = analysed(made, records, counters)
    found = {item["between"][1]: item for item in document["ledgers"]["differences"]}
    assert set(found) == {"cached_tokens", "computed"}
    for item in found.values():
        assert item["tokens"] == 48
        assert item["cause"].startswith("external cache")
        assert "exactly 48 tokens" in item["cause"]
        assert item["caveat"] is None
    actual = document["actual"]
    assert actual["external"] == {"queries": 600, "hits": 48, "hit_rate": 0.08, "reason": None}
    assert actual["by_dp"][str(rank)]["external"]["hits"] == 48
    assert actual["by_source"]["prompt_tokens"]["external_kv_transfer"] == 48
    assert actual["by_source"]["cached_tokens"] is None
    assert "prompt_tokens_cached_by_source" in actual["by_source"]["reason"]


def test_counters_of_one_rank_that_had_not_come_to_rest(make: Make) -> None:
    made = make("cold-2")
    counters = made.counters()
    missing = made.rows[-1]
    rank = missing["dp_rank"]
    counters[rank]["queries"] -= missing["actual_input_tokens"]
    document = analysed(made, None, counters, settled=False)
    found = next(item for item in document["ledgers"]["differences"] if item["between"][1] == "cached_tokens")
    assert found["by_dp"] == {str(rank): missing["actual_input_tokens"]}
    assert f"rank {rank} had not come to rest" in found["cause"]


def test_lookups_that_were_skipped(make: Make) -> None:
    made = make("cold-2")
    document = analysed(made, None, raised(made, queries=-100))
    assert {item["tokens"] for item in document["ledgers"]["differences"]} == {100}
    assert "lookups were skipped" in document["ledgers"]["differences"][0]["cause"]


def test_preempted_requests_are_left_out_by_new_engines(make: Make) -> None:
    made = make("cold-2")
    counters = raised(made, queries=-64, hits=-32, num_preemptions_total=2)
    document = analysed(made, None, counters)
    assert {"2 preemptions" in item["cause"] for item in document["ledgers"]["differences"]} == {True}


def test_ranks_that_swapped_their_tokens_do_not_agree(make: Make) -> None:
    made = make("cold-2")
    counters = made.counters()
    counters[0]["hits"] += 16
    counters[1]["hits"] -= 16
    document = analysed(made, None, counters)
    difference = document["ledgers"]["differences"][0]
    assert (
        "rank 0 -16, rank 1 +16 hits against counters"
        in dict(result_rows(document))["Hit Rate by Prediction"]
    )
    assert (difference["tokens"], difference["by_dp"]) == (0, {"0": -16, "1": 16})
    assert "other ranks" in difference["cause"]


def test_failed_requests_are_in_the_counters_and_in_no_answer(make: Make) -> None:
    made = make("warmup-2")
    records = made.records()
    records[2] = records[2]._replace(error_kind="timeout", prompt_tokens=None, cached_tokens=None)
    made.write(records)
    analysis = analyze_measurement(made.manifest, STAMP)
    assert analysis.exit_code == ExitCode.REQUESTS_FAILED
    ledgers = analysis.document["ledgers"]
    assert ledgers["prediction"]["total"] == {
        "hits": None,
        "queries": None,
        "hit_rate": None,
        "reason": "1 requests are void",
    }
    found = next(item for item in ledgers["differences"] if item["quantity"] == "queries")
    assert found["tokens"] == -made.rows[2]["actual_input_tokens"]
    assert "1 failed or repeated attempts" in found["cause"]
    assert analysis.document["prediction"]["requests"]["compared"] == len(made.rows) - 1


@pytest.mark.parametrize("still", [("hits",), ("queries", "hits")])
def test_counters_that_stand_still_are_not_0_percent(make: Make, still: tuple[str, ...]) -> None:
    made = make("cold-2")
    counters = made.counters()
    for values in counters.values():
        values |= dict.fromkeys(still, 0)
    made.write(None, counters)
    analysis = analyze_measurement(made.manifest, STAMP)
    actual = analysis.document["actual"]
    assert actual["global_hit_rate"] is None
    assert "not measurable from counters" in actual["reason"]
    assert {rank["hit_rate"] for rank in actual["by_dp"].values()} == {None}
    assert analysis.document["ledgers"]["counters"]["total"]["hits"] is None
    assert analysis.document["ledgers"]["by_source"]["total"]["hits"] > 0
    assert analysis.exit_code == ExitCode.INCONCLUSIVE
    assert "not measurable" in (analysis.message or "")
    assert analysis.document["validation"]["actual_status"] == "NOT_MEASURED"
    rows = dict(result_rows(analysis.document))
    assert rows["Overall Actual Hit Rate"] == "N/A"
    rate = analysis.document["theoretical_hit_rate"]
    assert rows["Hit Rate by Cached Tokens of Answers"].startswith(f"{rate:.2%}")


def test_no_hits_because_an_external_cache_had_them_is_a_true_zero(make: Make) -> None:
    made = make("cold-2")
    counters = made.counters()
    for values in counters.values():
        values["external_prefix_cache_hits_total"] = values["hits"]
        values["hits"] = 0
    actual = analysed(made, None, counters)["actual"]
    assert actual["global_hit_rate"] == 0


def test_requests_that_fail_come_before_counters_that_stand_still(make: Make) -> None:
    made = make("cold-2")
    records = made.records()
    records[0] = records[0]._replace(error_kind="reset", prompt_tokens=None, cached_tokens=None)
    counters = {rank: values | {"queries": 0, "hits": 0} for rank, values in made.counters().items()}
    made.write(records, counters)
    assert analyze_measurement(made.manifest, STAMP).exit_code == ExitCode.REQUESTS_FAILED


def test_blocks_are_never_compared_with_tokens(make: Make) -> None:
    """vLLM 0.8.5: full blocks, each prompt's last, partial block left out, and no other ledger but the answers."""
    made = make("cold-2")
    counters = {}
    for rank, exact in made.counters().items():
        mine = [row for row in made.rows if row["dp_rank"] == rank]
        queries = sum(row["actual_input_tokens"] // BLOCK for row in mine)
        counters[rank] = {"queries": queries, "hits": exact["hits"] // BLOCK}
    document = analysed(made, None, counters, unit="blocks", version="0.8.5")
    actual, ledgers = document["actual"], document["ledgers"]
    hits = sum(values["hits"] for values in counters.values())
    queries = sum(values["queries"] for values in counters.values())
    assert actual["unit"] == "blocks"
    assert (actual["global_hits"], actual["global_queries"]) == (hits, queries)
    total = ledgers["counters"]["total"]
    assert (total["hits"], total["queries"], total["hit_rate"]) == (hits * BLOCK, None, None)
    assert "full blocks" in total["reason"]
    assert ledgers["counters"]["source"]["hits"] == "vllm:gpu_prefix_cache_hits_total"
    assert ledgers["differences"] == [], "hits agree in tokens, and queries have nothing to be compared with"
    assert ledgers["by_source"]["total"]["hits"] is None
    assert "prompt_tokens_by_source" in ledgers["by_source"]["total"]["reason"]
    assert dict(result_rows(document))["Overall Actual Hit Rate"] == f"{hits / queries:.2%} (of blocks)"


def test_a_decode_instance_that_reports_all_but_one(make: Make) -> None:
    made = make("cold-2")
    records = [item._replace(cached_tokens=item.prompt_tokens - 1) for item in made.records()]
    document = analysed(made, records)
    found = next(item for item in document["ledgers"]["differences"] if item["between"][1] == "cached_tokens")
    assert "all but one token" in found["cause"]


def test_a_server_that_drops_the_last_block_is_recognised(make: Make) -> None:
    made = make("cold-2")
    records = [item._replace(cached_tokens=max(0, item.cached_tokens - BLOCK)) for item in made.records()]
    counters = made.counters()
    for item in records:
        lost = made.rows[item.position]["theoretical_hit_tokens"] - item.cached_tokens
        values = counters[item.dp_rank]
        values["hits"] -= lost
        values['prompt_tokens_by_source_total{source="local_cache_hit"}'] -= lost
        values["request_prefill_kv_computed_tokens_sum"] += lost
    found = only_difference(analysed(made, records, counters))
    assert found["between"] == ["counters", "prediction"]
    assert "EAGLE or MTP" in found["cause"]


def test_leftovers_of_an_earlier_run_are_more_hits_than_predicted(make: Make) -> None:
    made = make("cold-2")
    rank = made.rows[0]["dp_rank"]
    records = made.records()
    assert records[0].cached_tokens == 0
    records[0] = records[0]._replace(cached_tokens=32)
    counters = made.counters()
    counters[rank]["hits"] += 32
    counters[rank]['prompt_tokens_by_source_total{source="local_cache_hit"}'] += 32
    counters[rank]["request_prefill_kv_computed_tokens_sum"] -= 32
    found = only_difference(analysed(made, records, counters))
    assert (found["between"], found["tokens"]) == (["counters", "prediction"], -32)
    assert "cache was not empty" in found["cause"]


def test_an_engine_without_a_version_may_be_an_old_one(make: Make) -> None:
    made = make("cold-2")
    document = analysed(made, None, raised(made, queries=50), version=None)
    caveat = document["ledgers"]["differences"][0]["caveat"]
    assert caveat.startswith("the engine states no version")
    assert "0.27.1" in caveat


def test_counters_that_went_backwards_are_null_and_the_other_rank_stays(make: Make) -> None:
    made = make("cold-2")
    counters = made.counters()
    counters[1]["hits"] = -5
    made.write(None, counters)
    analysis = analyze_measurement(made.manifest, STAMP)
    ledger = analysis.document["ledgers"]["counters"]
    assert ledger["total"]["hits"] is None
    assert "fell" in ledger["by_dp"]["1"]["reason"]
    assert ledger["by_dp"]["0"]["hits"] == counters[0]["hits"]
    assert "fell" in analysis.document["actual"]["reason"]
    assert analysis.exit_code == ExitCode.INCONCLUSIVE
