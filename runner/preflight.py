"""Checks before the load: is this the engine that the data was made for, and does every rank count its own?

Each check leaves its finding. A failed one ends the run with the field to change and the value to set; one that cannot be
made is "not checked" with the reason, and stops nothing.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from contract.errors import ServiceError
from contract.measurement import Check
from contract.scenario import Scenario
from enginemetrics.difference import subtract
from prompts.tokenizer import Tokenizer
from runner.control import ControlClient, Scrape, refusal
from runner.settle import POLL_SECONDS, quiet_scrape
from runner.tokenizer_check import probe_text, tokens_differ

PROBE_WAIT_SECONDS = 10.0


@dataclass(frozen=True)
class Preflight:
    """Findings of all checks, and what the engine told about itself."""

    checks: tuple[Check, ...]
    version: str | None
    max_model_len: int | None
    scrape: Scrape


class PreflightError(ServiceError):
    """A check failed. The findings made so far are kept."""

    def __init__(self, message: str, checks: Sequence[Check]) -> None:
        self.checks = tuple(checks)
        super().__init__(message)


class CheckList:
    """Collects findings; the first failed check ends it."""

    def __init__(self) -> None:
        self.checks: list[Check] = []

    def require(self, name: str, problem: str | None, detail: str = "") -> None:
        """The check passed, with `detail`, or `problem` says why not and raises PreflightError."""
        self.checks.append(Check(name=name, status="failed" if problem else "ok", detail=problem or detail))
        if problem:
            raise PreflightError(problem, self.checks)

    def not_checked(self, name: str, reason: str) -> None:
        self.checks.append(Check(name=name, status="not_checked", detail=reason))


def preflight(
    client: ControlClient,
    scenario: Scenario,
    tokenizer: Tokenizer,
    samples: list[str],
    longest_request: int,
    stop: threading.Event,
) -> Preflight:
    """Run all checks.

    `samples` are prompts that will be sent, `longest_request` is the largest input + output length, in tokens.
    """
    checks = CheckList()
    version = _version(client)
    max_model_len = _check_model(client, checks)
    if max_model_len is None:
        checks.not_checked("longest_request", "the engine does not tell its max_model_len")
    else:
        checks.require(
            "longest_request",
            f"the longest request has {longest_request} tokens, the engine takes {max_model_len}; "
            f"shorten requests.input_length/output_length or start the engine with --max-model-len {longest_request}"
            if longest_request > max_model_len
            else None,
            f"{longest_request} tokens fit max_model_len {max_model_len}",
        )
    before = quiet_scrape(client, stop)
    if not before.settled:
        checks.require("idle", before.finding.message if before.finding else "the engine is not idle")
    checks.require("idle", None, "no request is running or waiting, counters stand still")
    _check_cache_config(before.scrape, scenario, checks)
    _check_tokens(client, scenario, tokenizer, samples, checks)
    after = _check_ranks(client, scenario, tokenizer, samples, before.scrape, stop, checks)
    return Preflight(tuple(checks.checks), version, max_model_len, after)


def _version(client: ControlClient) -> str | None:
    answer = client.get("/version")
    return str(answer.body["version"]) if isinstance(answer.body, dict) and "version" in answer.body else None


def _check_model(client: ControlClient, checks: CheckList) -> int | None:
    model = client.engine.model
    answer = client.get("/v1/models")
    models = answer.body.get("data") if isinstance(answer.body, dict) else None
    if answer.status in (401, 403):
        checks.require("model", f"{refusal(answer)}; set service.api_key or OPENAI_API_KEY")
    if answer.status != 200 or not isinstance(models, list):
        checks.not_checked("model", f"/v1/models: {refusal(answer)}")
        return None
    served = {entry.get("id"): entry for entry in models if isinstance(entry, dict)}
    checks.require(
        "model",
        f"service.model {model!r} is not served; set it to {' or '.join(repr(name) for name in served)}"
        if model not in served
        else None,
        f"{model!r} is served",
    )
    length = served[model].get("max_model_len")
    return length if isinstance(length, int) else None


def _check_cache_config(scrape: Scrape, scenario: Scenario, checks: CheckList) -> None:
    configs = [rank.cache_config for rank in scrape.snapshot.ranks]
    if any(config is None for config in configs):
        reason = "the engine does not expose vllm:cache_config_info"
        checks.not_checked("prefix_caching", reason)
        checks.not_checked("block_size", reason)
        return
    enabled = {config.enable_prefix_caching for config in configs if config}
    if enabled == {True}:
        checks.require("prefix_caching", None, "on, on every rank")
    elif False in enabled:
        checks.require(
            "prefix_caching", "prefix caching is off; start the engine with --enable-prefix-caching"
        )
    else:
        checks.not_checked("prefix_caching", "the engine does not tell")
    sizes = sorted({config.prefix_match_unit or config.block_size or 0 for config in configs if config})
    expected = scenario.tokenizer.block_size
    if sizes == [0]:
        checks.not_checked("block_size", "the engine does not tell")
        return
    checks.require(
        "block_size",
        f"tokenizer.block_size is {expected}, the engine's is {' and '.join(map(str, sizes))}; "
        f"set tokenizer.block_size to {sizes[-1]} and prepare again"
        if sizes != [expected]
        else None,
        f"{expected} tokens, on every rank",
    )


def _check_tokens(
    client: ControlClient,
    scenario: Scenario,
    tokenizer: Tokenizer,
    samples: list[str],
    checks: CheckList,
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
    scenario: Scenario,
    tokenizer: Tokenizer,
    samples: list[str],
    before: Scrape,
    stop: threading.Event,
    checks: CheckList,
) -> Scrape:
    """Send a known text to every rank: it must be counted there, and with as many tokens as ours."""
    ranks = scenario.service.dp_size
    scrape = before
    for rank in range(ranks):
        text = probe_text(rank, samples)
        expected = len(tokenizer.encode_for_server(text))
        body = {"model": client.engine.model, "prompt": text, "max_tokens": 1, "temperature": 0}
        answer = client.complete(body, rank if ranks > 1 else None)
        usage = answer.body.get("usage") if isinstance(answer.body, dict) else None
        counted = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        checks.require(
            f"probe_rank_{rank}",
            f"{client.engine.inference_url}: rank {rank}: {refusal(answer)}" + _dp_hint(answer.text)
            if answer.status != 200
            else None,
            "answers",
        )
        checks.require(
            f"tokenizer_rank_{rank}",
            f"the engine counts {counted} tokens where tokenizer.path {scenario.tokenizer.path} makes {expected}; "
            "set tokenizer.path to the engine's own tokenizer and prepare again"
            if counted != expected
            else None,
            f"the probe has {expected} tokens on both sides",
        )
        scrape, problem = _counted_on(client, scrape, rank, expected, stop)
        checks.require(
            f"counter_rank_{rank}",
            problem,
            f"the counter of rank {rank} moved by the probe's {expected} tokens",
        )
    return scrape


def _dp_hint(text: str) -> str:
    return "; correct service.dp_size" if "data_parallel_rank" in text else ""


def _counted_on(
    client: ControlClient, before: Scrape, rank: int, tokens: int, stop: threading.Event
) -> tuple[Scrape, str | None]:
    """Wait until `rank`, and no other, has counted the probe. Returns the last scrape and what is wrong."""
    deadline = time.monotonic() + PROBE_WAIT_SECONDS
    while True:
        after = client.scrape()
        difference = subtract(before.snapshot, after.snapshot)
        moved = {change.rank: change.queries for change in difference.ranks if change.queries != 0}
        if moved == {rank: tokens} or (difference.unit == "blocks" and set(moved) <= {rank}):
            return after, None
        if difference.findings:
            return after, difference.findings[0].message
        if set(moved) - {rank}:
            return after, (
                f"the probe for rank {rank} was counted on rank {min(set(moved) - {rank})} ({moved}); the engine "
                "ignores X-data-parallel-rank, its labels need service.engine_label_map, or other traffic is there"
            )
        if time.monotonic() > deadline or stop.is_set():
            seen = moved.get(rank, 0)
            return after, (
                f"rank {rank} counted {seen} of the probe's {tokens} tokens within {PROBE_WAIT_SECONDS:g} s; is "
                "prefix caching on, and does service.metrics_url belong to this engine?"
            )
        stop.wait(POLL_SECONDS)
