"""Each check against an engine that is wrong in just that way."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract.errors import NotThisEngineError, ServiceError
from contract.manifest import Manifest, read_prepared_manifest
from contract.measurement import Check
from contract.planned import planned_columns
from contract.scenario import Scenario, load_scenario
from generator.prepare import prepare
from prompts.tokenizer import Tokenizer, load_tokenizer
from runner import counting, reset, settle
from runner.capacity import demand
from runner.control import Answer
from runner.preflight import CheckList, Preflight, PreflightError, judge_hits, preflight
from runner.probe import make_probe, send_probe
from runner.reset import Reset, reset_cache
from runner.warmup import _require_as_planned
from tests.analyzer.synthetic import record
from tests.runner.fake_engine import FakeEngine

MakeEngine = Callable[..., FakeEngine]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer("builtin:demo")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scenario, Manifest]:
    folder = tmp_path_factory.mktemp("preflight")
    path = folder / "scenario.json"
    document = {
        "run": {"run_id": "p", "output_dir": "out"},
        "tokenizer": {"path": "builtin:demo", "block_size": 16},
        "corpus": {"path": "builtin:word-problems"},
        "requests": {"count": 6, "input_length": {"mode": "fixed", "value": 128}},
        "prefix_cache": {"target_hit_rate": 0.5, "groups": {"count": 2}},
        "service": {"model": "m", "dp_size": 2},
        "driver": {"concurrency": 4},
    }
    path.write_text(json.dumps(document))
    return load_scenario(path), read_prepared_manifest(Path(prepare(path)["manifest"]))


@pytest.fixture
def make(tokenizer: Tokenizer) -> MakeEngine:
    return lambda **wrong: FakeEngine(tokenizer, **wrong)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(counting, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(counting, "WAIT_SECONDS", 1.5)
    monkeypatch.setattr(counting, "STILL_SECONDS", 0.01)
    monkeypatch.setattr(reset, "PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(settle.quiet_scrape, "__defaults__", (1.5,))


@pytest.fixture
def check(prepared: tuple[Scenario, Manifest], tokenizer: Tokenizer) -> Callable[[FakeEngine], Preflight]:
    scenario, manifest = prepared

    def run(engine: Any) -> Preflight:
        return preflight(engine, scenario, manifest, tokenizer, threading.Event())

    return run


CheckEngine = Callable[[FakeEngine], Preflight]


def test_a_fitting_engine_passes_every_check(check: CheckEngine, make: MakeEngine) -> None:
    found = check(make())
    statuses = {item.name: item.status for item in found.checks}
    assert set(statuses.values()) == {"ok"}
    assert {
        "model", "longest_request", "idle", "prefix_caching", "block_size", "concurrency", "kv_capacity", "tokenizer",
        "metrics_page", "rank_0", "rank_1",
    } == set(statuses)  # fmt: skip
    assert found.findings == ()
    assert found.ranks.leftover_tokens == 0
    assert found.ranks.found_again == {0, 1}
    assert all(item.tokens > 2 * 16 + 1 for item in found.probes)


@pytest.mark.parametrize(
    ("wrong", "name", "message"),
    [
        ({"told_block_size": 32}, "block_size", "the engine's is 32; set tokenizer.block_size to 32"),
        ({"told_block_size": 2096}, "block_size", "its reachable hit rate is then 0"),
        ({"prefix_caching": "False"}, "prefix_caching", "--enable-prefix-caching"),
        ({"max_model_len": 128}, "longest_request", "--max-model-len 160"),
        ({"extra_tokens": 1}, "tokenizer", "set tokenizer.path"),
        ({"extra_tokens": 1, "tokenize": False}, "rank_0", "set tokenizer.path"),
        ({"ignores_rank_header": True}, "rank_1", "counted on rank 0"),
        ({"broken_cache": True}, "rank_0", "found no token of a prompt"),
        ({"running": 1}, "idle", "another client is using it"),
        ({"foreign_tokens_per_scrape": 7}, "idle", "counters keep changing"),
    ],
)
def test_a_wrong_engine_fails_with_field_and_value(
    check: CheckEngine, make: MakeEngine, wrong: dict[str, Any], name: str, message: str
) -> None:
    with pytest.raises(PreflightError) as raised:
        check(make(**wrong))
    last = raised.value.checks[-1]
    assert (last.name, last.status) == (name, "failed")
    assert message in last.detail == str(raised.value)


@pytest.mark.parametrize(
    ("served", "message"),
    [
        ({"data": []}, "/v1/models names no model, so service.model 'm' is not served; load it there"),
        ({"data": [{"id": "n"}, {"id": "o"}]}, "service.model 'm' is not served; set it to 'n' or 'o'"),
    ],
)
def test_a_model_that_is_not_served(
    check: CheckEngine, make: MakeEngine, monkeypatch: pytest.MonkeyPatch, served: Any, message: str
) -> None:
    engine = make()
    monkeypatch.setattr(engine, "get", lambda _: Answer(200, served, ""))
    with pytest.raises(PreflightError) as raised:
        check(engine)
    assert str(raised.value).startswith(message)


def test_an_answer_that_does_not_count_its_prompt(
    check: CheckEngine, make: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not "the engine counts None tokens", and not another tokenizer's fault."""
    engine = make()
    monkeypatch.setattr(engine, "complete", lambda *_: Answer(200, {"choices": []}, ""))
    with pytest.raises(PreflightError, match=r"has no usage\.prompt_tokens, so whether") as raised:
        check(engine)
    assert raised.value.checks[-1].name == "rank_0"
    assert "tokenizer.path" not in str(raised.value)


def test_a_warmup_that_does_not_count_its_prompt() -> None:
    answered = record(0, None, prompt_tokens=None)
    with pytest.raises(
        ServiceError, match=r"warmup of g on rank 0: .* 64 tokens has no usage\.prompt_tokens"
    ):
        _require_as_planned(answered, {"group_id": "g", "dp_rank": 0, "input_tokens": 64}, 10)


def test_a_wait_that_is_stopped_says_so_and_blames_nobody(make: MakeEngine) -> None:
    stop = threading.Event()
    stop.set()
    for engine in (make(running=1), make(foreign_tokens_per_scrape=7)):
        found = settle.quiet_scrape(engine, stop, limit_seconds=3600).finding
        assert found is not None
        assert found.message.startswith("stopped after 0.0 s of waiting for an idle engine (")
        assert "3600" not in found.message
    engine = make()
    before = engine.scrape()
    found = settle.settled_scrape(engine, before, 100, stop, limit_seconds=3600).finding
    assert found is not None
    assert found.code == "COUNTERS_NOT_SETTLED"
    assert (
        found.message == "stopped before the counters stood still: the counters lack 100 of 100 prompt tokens"
    )


def test_a_stop_is_not_taken_for_the_page_of_another_engine(make: MakeEngine) -> None:
    stop = threading.Event()
    stop.set()
    engine = make(tells_prompt_tokens=True)
    with pytest.raises(ServiceError, match="stopped while the counters were waited for") as raised:
        counting.wait_until_counted(engine, engine.scrape(), 100, None, stop)
    assert not isinstance(raised.value, NotThisEngineError)


@pytest.mark.parametrize(
    ("silent", "names"),
    [
        ({"cache_config": False}, {"prefix_caching", "block_size", "kv_capacity"}),
        ({"max_model_len": None}, {"longest_request"}),
        ({"tokenize": False}, {"tokenizer"}),
    ],
)
def test_what_cannot_be_checked_stops_nothing(
    check: CheckEngine, make: MakeEngine, silent: dict[str, Any], names: set[str]
) -> None:
    found = check(make(**silent))
    unchecked = {item.name: item.detail for item in found.checks if item.status == "not_checked"}
    assert set(unchecked) == names
    assert all(unchecked.values())


def test_a_dropped_last_block_is_found_and_counted(
    check: CheckEngine, make: MakeEngine, prepared: tuple[Scenario, Manifest]
) -> None:
    found = check(make(drops_last_block=True))
    (finding,) = found.findings
    assert finding.code == "DROPS_LAST_BLOCK"
    assert finding.tokens == 6 * 16, "each of the six requests hits something and loses one block"


def test_a_small_cache_is_a_warning_with_the_tokens_that_the_model_loses(
    check: Check, make: MakeEngine, prepared: tuple[Scenario, Manifest]
) -> None:
    manifest = prepared[1]
    plan = planned_columns(manifest.directory.full)
    need = demand(plan, concurrency=4, ranks=2, block_size=16)
    assert check(make(blocks=need.whole_load + 1)).findings == ()
    found = check(make(blocks=need.blocks - 6))
    (finding,) = found.findings
    assert finding.code == "KV_CAPACITY"
    detail = next(item.detail for item in found.checks if item.name == "kv_capacity")
    assert f"need at most {need.blocks * 16} of {(need.blocks - 7) * 16} tokens" in detail
    assert f"loses {finding.tokens} of {plan.theoretical_hit_tokens.sum()} hit tokens" in detail
    assert "in turn" in detail, "two ranks, and the service chooses"


def test_hits_are_read_from_answers_where_counters_do_not_tell(check: CheckEngine, make: MakeEngine) -> None:
    assert check(make(tells_cached_tokens=False)).findings == ()


@pytest.mark.parametrize("witness", [True, False])
def test_counters_that_stand_still_beside_answers_stop_nothing(
    check: CheckEngine, make: MakeEngine, witness: bool
) -> None:
    """vllm-ascend#15744: queries and hits stay 0 for ever, the answers tell cached_tokens."""
    found = check(make(counts_queries=False, counts_hits=False, tells_prompt_tokens=witness))
    statuses = {item.name: item.status for item in found.checks}
    assert statuses["rank_0"] == statuses["rank_1"] == "ok", "found again, by the answers"
    assert statuses["counters"] == "not_checked"
    assert found.ranks.not_counting is not None
    assert ("vllm:prompt_tokens shows them" in found.ranks.not_counting) is witness
    assert found.findings == ()


def test_hits_that_stand_still_beside_answers_are_told_and_stop_nothing(
    check: CheckEngine, make: MakeEngine
) -> None:
    """vllm-ascend#16639: the lookups are counted, the hits are not."""
    found = check(make(counts_hits=False))
    assert [finding.code for finding in found.findings] == ["PROBE_LEDGERS_DIFFER"] * 2
    assert "its counters show 0 hit tokens and the answer" in found.findings[0].message
    assert found.ranks.not_counting is None


def test_an_engine_without_prefix_caching_is_told_without_waiting_for_its_lookups(
    check: CheckEngine, make: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "_not_counting", lambda *_: pytest.fail("waited for lookups"))
    with pytest.raises(PreflightError, match="prefix caching is off; start the engine with"):
        check(make(prefix_caching="False", counts_queries=False, counts_hits=False, tells_prompt_tokens=True))


def test_with_neither_counters_nor_answers_nothing_is_measured(check: CheckEngine, make: MakeEngine) -> None:
    silent = make(counts_queries=False, counts_hits=False, tells_cached_tokens=False)
    with pytest.raises(
        PreflightError, match="nothing could be measured: start vLLM with --enable-prompt-tokens"
    ):
        check(silent)


def test_a_cause_that_an_answer_refutes_is_not_named(check: CheckEngine, make: MakeEngine) -> None:
    with pytest.raises(PreflightError) as both:
        check(make(broken_cache=True))
    assert "by counters and answer" in str(both.value)
    assert "counters do not show" not in str(both.value)
    assert "caching is off" not in str(both.value), "the engine says that it is on"
    with pytest.raises(PreflightError) as counters_alone:
        check(make(broken_cache=True, tells_cached_tokens=False))
    assert "or its counters do not show hits" in str(counters_alone.value)


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        ({}, "ok"),
        ({"drops_last_block": True}, "failed"),
        ({"drops_last_block": True, "speculative": True}, "not_checked"),
        ({"broken_cache": True}, "failed"),
        ({"broken_cache": True, "speculative": True}, "not_checked"),
    ],
)
def test_nothing_found_of_one_block_is_no_dropped_block(
    tokenizer: Tokenizer, make: MakeEngine, wrong: dict[str, Any], status: str
) -> None:
    """An engine that takes so little that its probe holds one unit."""
    engine = make(ranks=1, **wrong)
    probe, checks = make_probe(0, tokenizer, ["some more words " * 9], 16, 24), CheckList()
    assert probe.expected_hits(16) == 16
    first = send_probe(engine, probe, engine.scrape(), threading.Event())
    second = send_probe(engine, probe, first.scrape, threading.Event())
    if status == "failed":
        with pytest.raises(PreflightError, match="found no token"):
            judge_hits(probe, second, 16, checks)
    else:
        judged = judge_hits(probe, second, 16, checks)
        assert judged == ("as_expected" if status == "ok" else "not_checked")
    assert checks.checks[-1].status == status


def test_a_probe_with_nothing_to_find_proves_nothing(
    tokenizer: Tokenizer, make: MakeEngine, check: CheckEngine
) -> None:
    engine, checks = make(ranks=1), CheckList()
    probe = make_probe(0, tokenizer, ["some more words " * 9], 64, 32)
    assert probe.expected_hits(64) == 0
    first = send_probe(engine, probe, engine.scrape(), threading.Event())
    second = send_probe(engine, probe, first.scrape, threading.Event())
    assert judge_hits(probe, replace(second, counted_hits=0, cached_tokens=0), 64, checks) == "not_checked"
    assert "nothing to find" in checks.checks[-1].detail


def test_what_the_metrics_speak_against_is_not_given_as_the_cause(
    check: CheckEngine, make: MakeEngine
) -> None:
    (plain,) = check(make(drops_last_block=True)).findings
    assert "its metrics show no speculation" in plain.message
    (speculating,) = check(make(drops_last_block=True, speculative=True)).findings
    assert "as with EAGLE or MTP" in speculating.message


@pytest.fixture
def reset_after(check: CheckEngine) -> Callable[..., Any]:
    def run(engine: Any, *, assume: bool = False) -> Any:
        return reset_cache(engine, check(engine), assume_empty_cache=assume, stop=threading.Event())

    return run


def test_a_reset_is_proved_and_asks_for_the_external_tier(
    reset_after: Callable[..., Any], make: MakeEngine
) -> None:
    engine = make()
    assert reset_after(engine) == Reset(
        Check(name="reset", status="ok", detail="the probes, found before it, miss on every rank")
    )
    assert engine.reset_calls[0] == {"params": {"reset_external": "true"}}


def test_a_reset_is_tried_again_while_blocks_are_held(
    reset_after: Callable[..., Any], make: MakeEngine
) -> None:
    engine = make(reset_answers=[{"success": False}, {"success": False}, {"success": True}])
    assert reset_after(engine).findings == ()
    assert len(engine.reset_calls) == 3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"reset_answers": [{"success": False}] * 10}, '"success": false 10 times'),
        ({"reset_answers": [404]}, "VLLM_SERVER_DEV_MODE=1"),
        ({"reset_answers": [500]}, "HTTP 500"),
        ({"reset_answers": [ServiceError("engine gone")]}, "engine gone"),
        ({"reset_does_nothing": True}, "tokens of the probes are still found"),
    ],
)
def test_a_reset_that_did_not_happen_ends_the_run(
    reset_after: Callable[..., Any], make: MakeEngine, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(ServiceError, match=r"service\.assume_empty_cache") as raised:
        reset_after(make(**wrong))
    assert message in str(raised.value)


def test_a_reset_that_a_probe_could_not_show_is_not_checked(check: CheckEngine, make: MakeEngine) -> None:
    engine = make()
    checked = check(engine)
    unfound = replace(checked, ranks=replace(checked.ranks, found_again=frozenset({0})))
    proof = reset_cache(engine, unfound, assume_empty_cache=False, stop=threading.Event())
    assert proof.findings == ()
    assert proof.check.status == "not_checked"
    assert "the probe of rank 1 was not found before it either" in proof.check.detail


def test_who_kept_the_tokens_is_told_by_counters_and_answers(
    reset_after: Callable[..., Any], make: MakeEngine
) -> None:
    with pytest.raises(ServiceError, match="own cache was not emptied; or set"):
        reset_after(make(reset_does_nothing=True))
    with pytest.raises(ServiceError, match="own cache was not emptied, or an external tier"):
        reset_after(make(reset_does_nothing=True, counts_hits=False))
    engine = make(external_tier=True)
    with pytest.raises(
        ServiceError, match=r"external tier \(LMCache, KV offload\) keeps them, so reset that too"
    ):
        reset_after(engine)


def test_an_old_version_that_lies_about_its_reset_is_found_out(
    reset_after: Callable[..., Any], make: MakeEngine
) -> None:
    engine = make(reset_answers=[None], reset_does_nothing=True)
    with pytest.raises(ServiceError, match="tokens of the probes are still found"):
        reset_after(engine)


def test_assumed_empty_and_empty(reset_after: Callable[..., Any], make: MakeEngine) -> None:
    engine = make()
    engine.without_reset()
    assert [finding.code for finding in reset_after(engine, assume=True).findings] == ["ASSUME_EMPTY_CACHE"]


def test_assumed_empty_and_contaminated_by_an_earlier_run(
    reset_after: Callable[..., Any], make: MakeEngine
) -> None:
    engine = make()
    engine.without_reset()
    reset_after(engine, assume=True)
    findings = reset_after(engine, assume=True).findings
    assert [finding.code for finding in findings] == ["ASSUME_EMPTY_CACHE", "CONTAMINATED"]
    assert findings[1].tokens > 0
