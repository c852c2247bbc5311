"""Checks before a load with images, and what they learn: how many tokens an image costs, and how many all requests share.

Every rank gets the image three times: with a text, with the same text (all but its last token is found), and with
another text (what stands before the text is found). That is the theory of the load, tried out.
"""

import threading
from dataclasses import dataclass, replace
from uuid import uuid4

from cachemodel.releases import pool_rules
from contract.engine_version import parse_version
from contract.errors import ServiceError
from contract.manifest import Manifest
from contract.measurement import ImageRecord
from contract.multimodal import ImageDataset, image_dataset
from contract.rows import read_rows
from contract.scenario import Scenario
from prompts.tokenizer import Tokenizer
from runner.capacity import EqualPrompts, Loss, demand, equal_requests, modelled_loss
from runner.control import ControlClient, engine_version
from runner.engine_cache import EngineCache, engine_cache
from runner.multimodal.layout import TextPlaces, find_texts
from runner.preflight import (
    CheckList,
    Preflight,
    RankChecks,
    check_length,
    check_model,
    check_page,
    check_prefix_caching,
    dropped_blocks,
    judge_capacity,
    judge_hits,
    until_stopped,
)
from runner.probe import Probe, ProbeResult, ask, send_probe, usage_of
from runner.settle import quiet_scrape
from runner.tokenizer_check import tokenizer_advice, tokens_differ

PROBE_TEXT = "prefix-cache-capability-probe-0"


def other_text() -> str:
    """Has nothing in common with the probe's text at either end, nor begins like one of an earlier attempt, which may
    still be cached."""
    return f"{uuid4().hex[:8]}: how many are shown, and where?"


@dataclass(frozen=True)
class ImagePreflight:
    """As for text, and what a request with images looks like to this engine."""

    checked: Preflight
    images: ImageRecord


def image_preflight(
    client: ControlClient, scenario: Scenario, manifest: Manifest, tokenizer: Tokenizer, stop: threading.Event
) -> ImagePreflight:
    """Run all checks. The image is sent; of the prepared texts one is tokenized, none is sent."""
    checks = CheckList()
    with checks.of_one_engine():
        return _image_preflight(client, scenario, manifest, tokenizer, stop, checks)


def _image_preflight(
    client: ControlClient,
    scenario: Scenario,
    manifest: Manifest,
    tokenizer: Tokenizer,
    stop: threading.Event,
    checks: CheckList,
) -> ImagePreflight:
    dataset = image_dataset(manifest)
    urls = (dataset.data_url,) * dataset.images_per_request
    version = engine_version(client)
    max_model_len = check_model(client, checks)
    page = check_page(client, stop, checks)
    cache = engine_cache(page.scrape.snapshot)
    check_prefix_caching(cache, checks)
    sample = str(next(read_rows(dataset.requests))["question"])
    _check_tokenizer(client, tokenizer, sample, checks)

    opening = _opening(client, urls, checks)
    other = other_text()
    places = find_texts(client, urls, [PROBE_TEXT, other, sample])
    record = _image_record(dataset, cache, opening, places, tokenizer, sample)
    _check_text(places, record, tokenizer, sample, checks)
    longest = record.prompt_tokens + int(manifest.document["output_tokens"])
    check_length(longest, max_model_len, checks)
    _check_capacity(cache, scenario, manifest, record, version, stop, checks)
    ranks, record = _check_ranks(
        client, urls, opening, other, places, record, page.not_counting, stop, checks
    )
    probes = [
        Probe(rank, PROBE_TEXT, opening.prompt_tokens, urls) for rank in range(scenario.service.dp_size)
    ]
    checked = Preflight(
        checks=tuple(checks.checks),
        findings=tuple(checks.findings),
        version=version,
        max_model_len=max_model_len,
        probes=tuple(probes),
        ranks=ranks,
    )
    return ImagePreflight(checked, record)


@dataclass(frozen=True)
class _Opening:
    """What the first request with the image said."""

    prompt_tokens: int
    cached_tokens: int | None
    image_tokens: int | None


def _opening(client: ControlClient, urls: tuple[str, ...], checks: CheckList) -> _Opening:
    """Send the image for the first time, to rank 0."""
    try:
        usage = usage_of(ask(client, Probe(0, PROBE_TEXT, 0, urls)))
    except ServiceError as error:
        checks.require("image", str(error))
        raise
    prompt = usage.prompt_tokens
    problem = None if prompt is not None else "the engine's answer to an image has no usage.prompt_tokens"
    checks.require("image", problem, f"{len(urls)} of it and a short text are {prompt} tokens")
    return _Opening(prompt or 0, usage.cached_tokens, usage.image_tokens)


def _image_record(
    dataset: ImageDataset,
    cache: EngineCache,
    opening: _Opening,
    places: TextPlaces | str,
    tokenizer: Tokenizer,
    sample: str,
) -> ImageRecord:
    before = after = shared = None
    text, reason = len(tokenizer.encode(sample)), None
    around = opening.prompt_tokens - len(tokenizer.encode(PROBE_TEXT))
    if isinstance(places, str):
        reason = places
    else:
        after, text = places.tokens_after, len(places.texts[2])
        around = opening.prompt_tokens - len(places.texts[0])
        before = around - after
        if cache.match_unit is None:
            reason = cache.reason or "the engine does not report its block size"
        else:
            shared = before // cache.match_unit * cache.match_unit
    return ImageRecord(
        scenario=dataset.name,
        images_per_request=dataset.images_per_request,
        prompt_tokens=around + text,
        image_tokens=opening.image_tokens,
        tokens_before_text=before,
        tokens_after_text=after,
        match_unit=cache.match_unit,
        shared_tokens=shared,
        reason=reason,
    )


def _check_tokenizer(client: ControlClient, tokenizer: Tokenizer, sample: str, checks: CheckList) -> None:
    asked, difference = tokens_differ(client, tokenizer, [sample])
    if not asked:
        checks.not_checked("tokenizer", "the engine has no /tokenize")
        return
    checks.require(
        "tokenizer",
        f"{difference}; {tokenizer_advice(client, tokenizer)}" if difference else None,
        "the same token ids for a text of the data",
    )


def _check_text(
    places: TextPlaces | str, record: ImageRecord, tokenizer: Tokenizer, sample: str, checks: CheckList
) -> None:
    """Whether a text is as long behind an image as it is alone."""
    if isinstance(places, str):
        checks.not_checked("text_tokens", places)
    elif len(places.texts[2]) == len(tokenizer.encode(sample)):
        checks.require(
            "text_tokens",
            None,
            f"{record.tokens_before_text} tokens, the text, {record.tokens_after_text} tokens",
        )
    else:
        checks.warn(
            "text_tokens",
            "TEXT_TOKENS_DIFFER",
            f"a text of {len(tokenizer.encode(sample))} tokens has {len(places.texts[2])} in the engine's chat template",
        )


def _check_capacity(
    cache: EngineCache,
    scenario: Scenario,
    manifest: Manifest,
    record: ImageRecord,
    version: str | None,
    stop: threading.Event,
    checks: CheckList,
) -> None:
    """As for text: the image's blocks once, and what each request that runs adds to them."""
    unit, shared = record.match_unit, record.shared_tokens
    if unit is None or shared is None:
        checks.not_checked("kv_capacity", record.reason or "what requests share is not known")
        return
    ranks = scenario.service.dp_size
    prompts = EqualPrompts(shared, record.prompt_tokens)
    plan = equal_requests(manifest.request_count, prompts, int(manifest.document["output_tokens"]), ranks)

    def loss(blocks: int) -> Loss:
        return modelled_loss(
            plan,
            prompts,
            [[] for _ in range(ranks)],
            concurrency=scenario.concurrency,
            blocks=blocks,
            block_size=unit,
            rules=pool_rules(parse_version(version)),
            on_step=until_stopped(stop),
        )

    need = demand(plan, concurrency=scenario.concurrency, ranks=ranks, block_size=unit)
    judge_capacity(cache, need, plan, unit=unit, ranks=ranks, loss=loss, checks=checks)


def _check_ranks(
    client: ControlClient,
    urls: tuple[str, ...],
    opening: _Opening,
    other_text: str,
    places: TextPlaces | str,
    record: ImageRecord,
    not_counting: str | None,
    stop: threading.Event,
    checks: CheckList,
) -> tuple[RankChecks, ImageRecord]:
    """Every rank answers, counts for itself, finds what it has seen, and shares the image between different texts."""
    scrape, dropped = quiet_scrape(client, stop).scrape, False
    ranks = RankChecks(scrape, opening.cached_tokens or 0, not_counting=not_counting)
    unit = record.match_unit
    for rank in range(client.engine.ranks):
        probe = Probe(rank, PROBE_TEXT, opening.prompt_tokens, urls)
        first = other = None
        with checks.of_rank(rank):
            if rank > 0:  # rank 0 has had the opening
                first = send_probe(client, probe, ranks.scrape, stop, ranks.not_counting)
            again = send_probe(
                client, probe, first.scrape if first else ranks.scrape, stop, ranks.not_counting
            )
            ranks = ranks.after(first, again, rank)
            if not isinstance(places, str):
                tokens = opening.prompt_tokens - len(places.texts[0]) + len(places.texts[1])
                different = Probe(rank, other_text, tokens, urls)
                other = send_probe(client, different, ranks.scrape, stop, ranks.not_counting)
                ranks = replace(ranks, scrape=other.scrape)
        if unit is None:
            checks.not_checked(f"rank_{rank}", record.reason or "the engine does not report its block size")
            continue
        drops = judge_hits(probe, again, unit, checks) == "drops_last_block"
        dropped = dropped or drops
        if other is not None and record.shared_tokens is not None:
            _judge_shared(rank, other, max(0, record.shared_tokens - unit * drops), checks)
    if ranks.not_counting is not None:
        checks.not_checked("counters", ranks.not_counting)
    if dropped and record.shared_tokens is not None and unit is not None:
        checks.warn("last_block", "DROPS_LAST_BLOCK", dropped_blocks(ranks.scrape))
        shared = max(0, record.shared_tokens - unit)
        record = record.model_copy(update={"shared_tokens": shared, "drops_last_block": True})
    return ranks, record


def _judge_shared(rank: int, result: ProbeResult, shared: int, checks: CheckList) -> None:
    name = f"shared_{rank}"
    if result.hits is None:
        checks.not_checked(name, "hits are not told in tokens")
    elif shared == 0:
        checks.not_checked(
            name, "what stands before the text is shorter than a block, so there was nothing to find"
        )
    elif result.hits == shared:
        checks.require(name, None, f"another text behind the same images finds {shared} tokens")
    else:
        checks.warn(
            name,
            "UNEXPECTED_HITS",
            f"rank {rank} found {result.hits} tokens of another text behind the same images where {shared} were expected",
            abs(result.hits - shared),
        )
