"""Checks before the load: is this the engine that the data was made for, and does every rank count its own?

Each check leaves its finding. A failed one ends the run with the field to change and the value to set; a warning says
what is going to differ; one that cannot be made is "not checked" with the reason, and stops nothing.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from cachemodel.releases import pool_rules
from contract.concurrency import too_few_lanes
from contract.engine_version import parse_version
from contract.errors import NotThisEngineError, ServiceError
from contract.manifest import Manifest
from contract.measurement import Check, Finding
from contract.planned import PlannedColumns, planned_columns
from contract.scenario import Scenario
from contract.token_rows import TokenRows
from prompts.tokenizer import Tokenizer
from runner.capacity import Demand, Loss, demand, modelled_loss
from runner.control import ControlClient, Scrape, engine_version, named, refusal, served_models
from runner.engine_cache import EngineCache, engine_cache
from runner.page_identity import PageProof, foreign_page, prove_page
from runner.probe import Probe, ProbeResult, make_probe, send_probe
from runner.settle import quiet_scrape
from runner.tokenizer_check import sample_prompts, tokenizer_advice, tokens_differ


@dataclass(frozen=True)
class RankChecks:
    """What the probes of all ranks have shown.

    scrape: the last one. leftover_tokens: hits of the probes' first sending, of something that an earlier run has left in
    the cache. found_again: ranks that found their probe when it was sent again. not_counting: why the engine's
    prefix-cache counters say nothing, while its answers do. ledgers_differ: counters and answer of a probe do.
    """

    scrape: Scrape
    leftover_tokens: int = 0
    found_again: frozenset[int] = frozenset()
    not_counting: str | None = None
    ledgers_differ: bool = False

    def after(self, first: ProbeResult | None, second: ProbeResult, rank: int) -> "RankChecks":
        """With a probe that was sent twice; `first` None: that one was counted elsewhere."""
        return RankChecks(
            second.scrape,
            self.leftover_tokens + ((first.hits if first else None) or 0),
            self.found_again | ({rank} if second.hits else set()),
            self.not_counting or second.not_counting,
            self.ledgers_differ or second.ledgers_differ,
        )


@dataclass(frozen=True)
class Preflight:
    """Findings of all checks, what the engine told about itself, and the probes that it now has in its cache."""

    checks: tuple[Check, ...]
    findings: tuple[Finding, ...]
    version: str | None
    max_model_len: int | None
    probes: tuple[Probe, ...]
    ranks: RankChecks


class PreflightError(ServiceError):
    """A check failed. The checks made so far are kept; `finding`, where the reason has a code of its own."""

    def __init__(self, message: str, checks: Sequence[Check], finding: Finding | None = None) -> None:
        self.checks = tuple(checks)
        self.finding = finding
        super().__init__(message)


def finding_of(error: BaseException) -> Finding | None:
    """The finding that an error is, where its reason has a code of its own."""
    if isinstance(error, PreflightError):
        return error.finding
    return next(iter(foreign_page(error)), None)


class CheckList:
    """Collects findings; the first failed check ends it."""

    def __init__(self) -> None:
        self.checks: list[Check] = []
        self.findings: list[Finding] = []

    def require(self, name: str, problem: str | None, detail: str = "") -> None:
        """The check passed, with `detail`, or `problem` says why not and raises PreflightError."""
        self.checks.append(Check(name=name, status="failed" if problem else "ok", detail=problem or detail))
        if problem:
            raise PreflightError(problem, self.checks)

    def warn(self, name: str, code: str, message: str, tokens: int | None = None) -> None:
        """The run goes on, and everybody who reads its result is told."""
        self.checks.append(Check(name=name, status="warning", detail=message))
        self.findings.append(Finding(code=code, message=message, tokens=tokens))

    def not_checked(self, name: str, reason: str) -> None:
        self.checks.append(Check(name=name, status="not_checked", detail=reason))

    @contextmanager
    def of_rank(self, rank: int) -> Iterator[None]:
        """A block that probes a rank: what goes wrong there is its failed check."""
        try:
            yield
        except (PreflightError, NotThisEngineError):
            raise
        except ServiceError as error:
            self.require(f"rank_{rank}", str(error))

    @contextmanager
    def of_one_engine(self) -> Iterator[None]:
        """A block that reads the engine's page: one that is found to be another's is the failed check `metrics_page`."""
        try:
            yield
        except NotThisEngineError as error:
            self.checks.append(Check(name="metrics_page", status="failed", detail=error.reason))
            raise PreflightError(str(error), self.checks, finding_of(error)) from error


def preflight(
    client: ControlClient,
    scenario: Scenario,
    manifest: Manifest,
    tokenizer: Tokenizer,
    stop: threading.Event,
    concurrency: int | None = None,
) -> Preflight:
    """Run all checks. Nothing of the prepared data is sent.

    `concurrency` is the driver's, where it is not the scenario's.
    """
    checks = CheckList()
    with checks.of_one_engine():
        return _preflight(
            client, scenario, manifest, tokenizer, concurrency or scenario.concurrency, stop, checks
        )


def _preflight(
    client: ControlClient,
    scenario: Scenario,
    manifest: Manifest,
    tokenizer: Tokenizer,
    concurrency: int,
    stop: threading.Event,
    checks: CheckList,
) -> Preflight:
    requests = manifest.document["requests"]
    version = engine_version(client)
    max_model_len = check_model(client, checks)
    check_length(requests["longest_request_tokens"], max_model_len, checks)
    page = check_page(client, stop, checks)
    cache = engine_cache(page.scrape.snapshot)
    check_prefix_caching(cache, checks)
    _check_block_size(cache, scenario, requests["input_length_summary"]["max"], checks)
    plan = planned_columns(manifest.directory.full)
    _check_concurrency(plan, concurrency, scenario.service.dp_size, checks)
    _check_capacity(cache, scenario, manifest, tokenizer, plan, concurrency, version, stop, checks)
    samples = sample_prompts(manifest)
    _check_tokens(client, tokenizer, samples, checks)
    unit = cache.match_unit or scenario.tokenizer.block_size
    probes = [
        make_probe(rank, tokenizer, samples, unit, max_model_len) for rank in range(scenario.service.dp_size)
    ]
    ranks = _check_ranks(client, manifest.document, probes, unit, page, stop, checks)
    return Preflight(
        checks=tuple(checks.checks),
        findings=tuple(checks.findings),
        version=version,
        max_model_len=max_model_len,
        probes=tuple(probes),
        ranks=ranks,
    )


def check_page(client: ControlClient, stop: threading.Event, checks: CheckList) -> PageProof:
    """The engine is idle, and the page that is read is its own."""
    before = quiet_scrape(client, stop)
    if not before.settled:
        checks.require("idle", before.finding.message if before.finding else "the engine is not idle")
    checks.require("idle", None, "no request is running or waiting, counters stand still")
    off = engine_cache(before.scrape.snapshot).enabled is False  # then lookups are not waited for
    proof = prove_page(client, before.scrape, stop, looks_up=not off)
    if proof.not_checked is not None:
        checks.not_checked("metrics_page", proof.not_checked)
    else:
        checks.require("metrics_page", None, proof.detail)
    return proof


def check_model(client: ControlClient, checks: CheckList) -> int | None:
    """Whether the model is served. Returns its max_model_len where the engine tells."""
    model = client.engine.model
    answer = client.get("/v1/models")
    if answer.status in (401, 403):
        checks.require("model", f"{refusal(answer)}; set service.api_key or OPENAI_API_KEY")
    served = served_models(answer)
    if served is None:
        checks.not_checked("model", f"/v1/models: {refusal(answer)}")
        return None
    checks.require(
        "model",
        f"/v1/models names no model, so service.model {model!r} is not served; load it there, or correct the address"
        if not served
        else f"service.model {model!r} is not served; set it to {named(served, ' or ')}"
        if model not in served
        else None,
        f"{model!r} is served",
    )
    return served[model]


def check_length(longest_request: int, max_model_len: int | None, checks: CheckList) -> None:
    """Input and output of every request must fit; vLLM would reduce max_tokens silently."""
    if max_model_len is None:
        checks.not_checked("longest_request", "the engine does not report its max_model_len")
        return
    checks.require(
        "longest_request",
        f"the longest request has {longest_request} tokens, the engine takes {max_model_len}; "
        f"shorten requests.input_length/output_length or start the engine with --max-model-len {longest_request}"
        if longest_request > max_model_len
        else None,
        f"{longest_request} tokens fit max_model_len {max_model_len}",
    )


def check_prefix_caching(cache: EngineCache, checks: CheckList) -> None:
    """Prefix caching is on, on every rank."""
    if cache.enabled is None:
        checks.not_checked("prefix_caching", cache.reason or "the engine does not report")
        return
    checks.require(
        "prefix_caching",
        None if cache.enabled else "prefix caching is off; start the engine with --enable-prefix-caching",
        "on, on every rank",
    )


def _check_block_size(cache: EngineCache, scenario: Scenario, longest_input: int, checks: CheckList) -> None:
    """The unit of a hit must be the block that the data is built on."""
    if cache.match_unit is None:
        checks.not_checked("block_size", cache.reason or "the engine does not report")
        return
    unit, expected = cache.match_unit, scenario.tokenizer.block_size
    problem = None
    if unit != expected:
        problem = (
            f"tokenizer.block_size is {expected}, the engine's is {unit}; set tokenizer.block_size to {unit} and "
            "prepare again"
        )
        if longest_input < 2 * unit:
            problem += (
                f" (with inputs of up to {longest_input} tokens its reachable hit rate is then 0: a request has to hold "
                f"a shared block and one of its own, {2 * unit} tokens)"
            )
    checks.require("block_size", problem, f"{expected} tokens, on every rank")


def _check_concurrency(plan: PlannedColumns, asked: int, ranks: int, checks: CheckList) -> None:
    """Requests of one lane go one at a time, so lanes limit how many are in flight."""
    if plan.lane is None:
        checks.require("concurrency", None, f"{asked}; requests wait for no lanes")
        return
    lanes = np.unique(plan.lane).size
    problem = too_few_lanes(asked, lanes=lanes, groups=len(plan.groups), ranks=ranks)
    if problem is None:
        checks.require("concurrency", None, f"{asked} of {lanes} lanes at a time")
    else:
        checks.warn("concurrency", "CONCURRENCY_NOT_REACHED", problem)


def _check_capacity(
    cache: EngineCache,
    scenario: Scenario,
    manifest: Manifest,
    tokenizer: Tokenizer,
    plan: PlannedColumns,
    concurrency: int,
    version: str | None,
    stop: threading.Event,
    checks: CheckList,
) -> None:
    """What a rank holds at once must fit its pool, and what is shared must stay there until it is wanted again."""
    unit, ranks = scenario.tokenizer.block_size, scenario.service.dp_size

    def loss(blocks: int) -> Loss:
        warmups: list[list[list[int]]] = [[] for _ in range(ranks)]
        for item in manifest.warmup_plan:
            warmups[item["dp_rank"]].append(tokenizer.encode_for_server(item["prompt"]))
        with TokenRows(manifest.directory.token_ids) as rows:
            return modelled_loss(
                plan,
                rows,
                warmups,
                concurrency=concurrency,
                blocks=blocks,
                block_size=unit,
                rules=pool_rules(parse_version(version)),
                on_step=until_stopped(stop),
            )

    need = demand(plan, concurrency=concurrency, ranks=ranks, block_size=unit)
    judge_capacity(cache, need, plan, unit=unit, ranks=ranks, loss=loss, checks=checks)


def until_stopped(stop: threading.Event) -> Callable[[int], None]:
    """A step of work that ends with ServiceError once the run is stopped."""

    def step(_: int) -> None:
        if stop.is_set():
            raise ServiceError("stopped while the capacity was being checked")

    return step


def judge_capacity(
    cache: EngineCache,
    need: Demand,
    plan: PlannedColumns,
    *,
    unit: int,
    ranks: int,
    loss: Callable[[int], Loss],
    checks: CheckList,
) -> None:
    """Whether what is in use at once fits, and nothing is evicted that is wanted again.

    `loss` says what a pool of so many blocks loses; it is asked only where the whole load does not fit.
    """
    capacity = cache.tokens_per_rank
    if capacity is None:
        checks.not_checked(
            "kv_capacity", cache.reason or "the engine does not report the size of its KV cache"
        )
        return
    detail = (
        f"shared prefixes of {need.prefixes * unit} tokens plus {need.added * unit} that up to {need.running} running "
        f"requests add need at most {need.blocks * unit} of {capacity} tokens per rank"
    )
    advice = "lower concurrency, groups or lengths, or give the engine more KV cache"
    fits = need.blocks * unit <= capacity
    if need.whole_load * unit <= capacity:
        checks.require("kv_capacity", None, f"{detail}; all {need.whole_load * unit} of the load stay cached")
        return
    if cache.not_one_pool is not None or cache.blocks_per_rank is None:
        why = cache.not_one_pool or "the engine does not report how many blocks a rank has"
        said = f"{detail}; what is evicted is not known ({why})"
        if fits:
            checks.require("kv_capacity", None, said)
        else:
            checks.warn("kv_capacity", "KV_CAPACITY", f"{said}; {advice}")
        return
    found = loss(cache.blocks_per_rank)
    whole = found.requests == plan.count
    where = "" if whole else f" in the first {found.requests} of {plan.count} requests"
    in_turn = (
        " when the service gives requests to its ranks in turn" if plan.lane is None and ranks > 1 else ""
    )
    said = f"{detail}; the block model loses {found.tokens} of {found.theory} hit tokens{where}{in_turn}"
    if found.waited:
        said += f", and {found.waited} requests wait for room or are preempted"
    if found.tokens or found.waited or not (whole or fits):
        checks.warn("kv_capacity", "KV_CAPACITY", f"{said}; {advice}", found.tokens)
    else:
        checks.require("kv_capacity", None, said)


def _check_tokens(client: ControlClient, tokenizer: Tokenizer, samples: list[str], checks: CheckList) -> None:
    asked, difference = tokens_differ(client, tokenizer, samples)
    if not asked:
        checks.not_checked("tokenizer", "the engine has no /tokenize; the probes' token counts are compared")
        return
    checks.require(
        "tokenizer",
        f"{difference}; {tokenizer_advice(client, tokenizer)}" if difference else None,
        f"the same token ids for {len(samples)} prompts",
    )


def _check_ranks(
    client: ControlClient,
    manifest: dict[str, Any],
    probes: Sequence[Probe],
    unit: int,
    page: PageProof,
    stop: threading.Event,
    checks: CheckList,
) -> RankChecks:
    """Every rank answers, counts for itself, and finds a text that it has seen."""
    ranks, dropped = RankChecks(page.scrape, not_counting=page.not_counting), False
    for probe in probes:
        with checks.of_rank(probe.rank):
            first = send_probe(client, probe, ranks.scrape, stop, ranks.not_counting)
            second = send_probe(client, probe, first.scrape, stop, ranks.not_counting or first.not_counting)
        ranks = ranks.after(first, second, probe.rank)
        dropped |= judge_hits(probe, second, unit, checks) == "drops_last_block"
    if ranks.not_counting is not None:
        checks.not_checked("counters", ranks.not_counting)
    if dropped:
        _warn_of_dropped_blocks(manifest["theory"], unit, ranks.scrape, checks)
    return ranks


def _warn_of_dropped_blocks(theory: dict[str, Any], unit: int, scrape: Scrape, checks: CheckList) -> None:
    hitting = theory.get("hit_requests")
    lost = None if hitting is None else hitting * unit
    message = dropped_blocks(scrape)
    if lost is not None:
        message += f"; {lost} of {theory['hit_tokens']} theoretical hit tokens will be missing"
    checks.warn("last_block", "DROPS_LAST_BLOCK", message, lost)


def dropped_blocks(scrape: Scrape) -> str:
    """What was seen, and its cause where the engine's own metrics do not speak against it."""
    seen = "the engine leaves out the last matched block of every request"
    if scrape.snapshot.speculative is False:
        return f"{seen}; its metrics show no speculation, which is the known reason to"
    return f"{seen}, as with EAGLE or MTP speculation"


Judgement = Literal["as_expected", "drops_last_block", "other", "not_checked"]


def judge_hits(probe: Probe, result: ProbeResult, unit: int, checks: CheckList) -> Judgement:
    """Whether the second sending of a probe found what it must: all of its whole units, or all but one.

    A probe that holds nothing to find proves nothing. Nothing found is never "all but one".
    """
    name, expected, hits = f"rank_{probe.rank}", probe.expected_hits(unit), result.hits
    if hits is None and result.not_counting is not None:
        checks.require(
            name,
            f"rank {probe.rank}: {result.not_counting}; and its answers do not report cached_tokens, so nothing could be "
            "measured: start vLLM with --enable-prompt-tokens-details",
        )
    if result.ledgers_differ:
        checks.warn(
            f"{name}_ledgers",
            "PROBE_LEDGERS_DIFFER",
            f"rank {probe.rank}: of one prompt of {probe.tokens} tokens, sent twice, its counters show "
            f"{result.counted_hits} hit tokens and the answer {result.cached_tokens}; its whole blocks are {expected}",
            abs((result.counted_hits or 0) - (result.cached_tokens or 0)),
        )
    if hits is None:
        checks.not_checked(
            name, f"answers; its counter moved by {probe.tokens} tokens, hits are not told in tokens"
        )
    elif expected == 0:
        checks.not_checked(
            name,
            f"answers; its probe of {probe.tokens} tokens holds no whole unit of {unit} before its last token, so "
            "there was nothing to find",
        )
    elif hits == expected or 0 < hits == expected - unit:
        counts = "answers" if result.not_counting else "counts for itself"
        checks.require(name, None, f"{counts}: {probe.tokens} tokens; sent again, {hits} of them are found")
        return "as_expected" if hits == expected else "drops_last_block"
    elif hits == 0 and expected == unit and result.scrape.snapshot.speculative:
        checks.not_checked(
            name,
            f"its probe of {probe.tokens} tokens holds one unit of {unit}, and an engine that speculates may leave the "
            "last one out: that its cache works cannot be told",
        )
    elif hits == 0:
        checks.require(name, _nothing_found(probe, result))
    else:
        checks.warn(
            name,
            "UNEXPECTED_HITS",
            f"rank {probe.rank} found {hits} tokens of a prompt sent twice where {expected} were expected; "
            f"its unit of a hit may not be {unit} tokens",
            abs(hits - expected),
        )
        return "other"
    return "not_checked"


def _nothing_found(probe: Probe, result: ProbeResult) -> str:
    """With the causes that no available ledger refutes."""
    config = result.scrape.snapshot.ranks[probe.rank].cache_config
    causes = ["its prefix cache does not work", "its unit of a hit is longer than that"]
    if config is None or config.enable_prefix_caching is None:
        causes.insert(0, "prefix caching is off")
    if result.cached_tokens is None:
        causes.append("its counters do not show hits (start vLLM with --enable-prompt-tokens-details)")
    told = (
        "counters and answer" if None not in (result.counted_hits, result.cached_tokens) else "its counters"
    )
    told = "the answer" if result.counted_hits is None else told
    return (
        f"rank {probe.rank} found no token of a prompt of {probe.tokens} tokens sent just before, by {told}: "
        f"{', or '.join(causes)}"
    )
