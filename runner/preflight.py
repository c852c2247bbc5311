"""Checks before the load: is this the engine that the data was made for, and does every rank count its own?

Each check leaves its finding. A failed one ends the run with the field to change and the value to set; a warning says
what is going to differ; one that cannot be made is "not checked" with the reason, and stops nothing.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from contract.errors import ServiceError
from contract.manifest import Manifest
from contract.measurement import Check, Finding
from contract.scenario import Scenario
from prompts.tokenizer import Tokenizer
from runner.control import ControlClient, Scrape, engine_version, named, refusal, served_models
from runner.engine_cache import EngineCache, engine_cache
from runner.probe import Probe, ProbeResult, make_probe, send_probe
from runner.settle import quiet_scrape
from runner.tokenizer_check import sample_prompts, tokens_differ


@dataclass(frozen=True)
class Preflight:
    """Findings of all checks, what the engine told about itself, and the probes that it now has in its cache.

    `leftover_tokens` are hits of the probes' first sending: something of an earlier run is still in the cache.
    """

    checks: tuple[Check, ...]
    findings: tuple[Finding, ...]
    version: str | None
    max_model_len: int | None
    scrape: Scrape
    probes: tuple[Probe, ...]
    leftover_tokens: int


class PreflightError(ServiceError):
    """A check failed. The findings made so far are kept."""

    def __init__(self, message: str, checks: Sequence[Check]) -> None:
        self.checks = tuple(checks)
        super().__init__(message)


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


def preflight(
    client: ControlClient, scenario: Scenario, manifest: Manifest, tokenizer: Tokenizer, stop: threading.Event
) -> Preflight:
    """Run all checks. Nothing of the prepared data is sent."""
    checks = CheckList()
    requests = manifest.document["requests"]
    version = engine_version(client)
    max_model_len = check_model(client, checks)
    check_length(requests["longest_request_tokens"], max_model_len, checks)
    before = quiet_scrape(client, stop)
    if not before.settled:
        checks.require("idle", before.finding.message if before.finding else "the engine is not idle")
    checks.require("idle", None, "no request is running or waiting, counters stand still")
    cache = engine_cache(before.scrape.snapshot)
    check_prefix_caching(cache, checks)
    _check_block_size(cache, scenario, requests["input_length_summary"]["max"], checks)
    _check_capacity(cache, scenario, manifest.document, checks)
    samples = sample_prompts(manifest)
    _check_tokens(client, scenario, tokenizer, samples, checks)
    unit = cache.match_unit or scenario.tokenizer.block_size
    probes = [
        make_probe(rank, tokenizer, samples, unit, max_model_len) for rank in range(scenario.service.dp_size)
    ]
    after, leftover = _check_ranks(client, manifest.document, probes, unit, before.scrape, stop, checks)
    return Preflight(
        checks=tuple(checks.checks),
        findings=tuple(checks.findings),
        version=version,
        max_model_len=max_model_len,
        scrape=after,
        probes=tuple(probes),
        leftover_tokens=leftover,
    )


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
        f"service.model {model!r} is not served; set it to {named(served, ' or ') or 'the one that is'}"
        if model not in served
        else None,
        f"{model!r} is served",
    )
    return served[model]


def check_length(longest_request: int, max_model_len: int | None, checks: CheckList) -> None:
    """Input and output of every request must fit; vLLM would cut max_tokens without a word."""
    if max_model_len is None:
        checks.not_checked("longest_request", "the engine does not tell its max_model_len")
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
        checks.not_checked("prefix_caching", cache.reason or "the engine does not tell")
        return
    checks.require(
        "prefix_caching",
        None if cache.enabled else "prefix caching is off; start the engine with --enable-prefix-caching",
        "on, on every rank",
    )


def _check_block_size(cache: EngineCache, scenario: Scenario, longest_input: int, checks: CheckList) -> None:
    """The unit of a hit must be the block that the data is built on."""
    if cache.match_unit is None:
        checks.not_checked("block_size", cache.reason or "the engine does not tell")
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


def _check_capacity(
    cache: EngineCache, scenario: Scenario, manifest: dict[str, Any], checks: CheckList
) -> None:
    """All group prefixes of a rank must stay beside the requests that run there, else they evict one another."""
    if cache.tokens_per_rank is None:
        checks.not_checked("kv_capacity", cache.reason or "the engine does not tell the size of its KV cache")
        return
    prefixes = sum(group["max_shared_prefix_tokens"] for group in manifest["groups"].values())
    running = -(-scenario.concurrency // scenario.service.dp_size)
    needed = prefixes + running * manifest["requests"]["longest_request_tokens"]
    detail = (
        f"prefixes of {prefixes} tokens and {running} running requests of up to "
        f"{manifest['requests']['longest_request_tokens']} need {needed} of {cache.tokens_per_rank} tokens per rank"
    )
    if needed <= cache.tokens_per_rank:
        checks.require("kv_capacity", None, detail)
        return
    missing = needed - cache.tokens_per_rank
    checks.warn(
        "kv_capacity",
        "KV_CAPACITY",
        f"{detail}: {missing} too many, so prefixes may be evicted before they are used; lower concurrency, "
        "groups or lengths, or give the engine more KV cache",
        missing,
    )


def _check_tokens(
    client: ControlClient, scenario: Scenario, tokenizer: Tokenizer, samples: list[str], checks: CheckList
) -> None:
    asked, difference = tokens_differ(client, tokenizer, samples)
    if not asked:
        checks.not_checked("tokenizer", "the engine has no /tokenize; the probes' token counts are compared")
        return
    checks.require(
        "tokenizer",
        f"{difference}; set tokenizer.path ({scenario.tokenizer.path}) to the engine's own tokenizer and prepare again"
        if difference
        else None,
        f"the same token ids for {len(samples)} prompts",
    )


def _check_ranks(
    client: ControlClient,
    manifest: dict[str, Any],
    probes: Sequence[Probe],
    unit: int,
    before: Scrape,
    stop: threading.Event,
    checks: CheckList,
) -> tuple[Scrape, int]:
    """Every rank answers, counts for itself, and finds a text that it has seen. Returns the last scrape and leftovers."""
    scrape, leftover = before, 0
    dropped: list[int] = []
    for probe in probes:
        name = f"rank_{probe.rank}"
        try:
            first = send_probe(client, probe, scrape, stop)
            second = send_probe(client, probe, first.scrape, stop)
        except PreflightError:
            raise
        except ServiceError as error:
            checks.require(name, str(error))
            raise
        scrape = second.scrape
        leftover += first.hits or 0
        expected = probe.expected_hits(unit)
        if second.hits == expected - unit:
            dropped.append(probe.rank)
        judge_hits(name, probe, second, expected, unit, checks)
    if dropped:
        _warn_of_dropped_blocks(manifest["theory"], unit, checks)
    return scrape, leftover


def _warn_of_dropped_blocks(theory: dict[str, Any], unit: int, checks: CheckList) -> None:
    hitting = theory.get("hit_requests")
    lost = None if hitting is None else hitting * unit
    message = (
        "the engine leaves out the last matched block of every request, as with EAGLE or MTP speculation"
    )
    if lost is not None:
        message += f"; {lost} of {theory['hit_tokens']} theoretical hit tokens will be missing"
    checks.warn("last_block", "DROPS_LAST_BLOCK", message, lost)


def judge_hits(
    name: str, probe: Probe, result: ProbeResult, expected: int, unit: int, checks: CheckList
) -> None:
    """Whether the second sending of a probe found what it must: all of its whole units, or all but one."""
    detail = f"counts for itself: {probe.tokens} tokens; sent again, {expected} of them are found"
    if result.hits is None:
        checks.not_checked(
            name, f"answers; its counter moved by {probe.tokens} tokens, hits are not told in tokens"
        )
    elif result.hits in (expected, expected - unit):
        checks.require(name, None, detail.replace(str(expected), str(result.hits)))
    elif result.hits == 0:
        checks.require(
            name,
            f"rank {probe.rank} found nothing of a prompt of {probe.tokens} tokens that it had just seen; its prefix "
            f"cache does not work, or hits begin above {unit} tokens (tokenizer.block_size)",
        )
    else:
        checks.warn(
            name,
            "UNEXPECTED_HITS",
            f"rank {probe.rank} found {result.hits} tokens of a prompt sent twice where {expected} were expected; "
            f"its unit of a hit may not be {unit} tokens",
            abs(result.hits - expected),
        )
