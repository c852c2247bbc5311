"""Everything that has to be known before a bench sends its first request."""

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from contract.errors import ScenarioError, ServiceError
from contract.progress import Progress, silent
from runner.bench.engine import BenchEngine, find_engine, proved
from runner.bench.lmcache import LmCache
from runner.bench.qa_datasets import load_samples
from runner.bench.script import Script
from runner.bench.settings import Settings
from runner.bench.sizing import Size, tier_tokens, tokens_per_gb
from runner.bench.tokens import EngineTokens, find_counting
from runner.lock import engine_lock
from runner.workloads.plan import Plan, Request, Resources
from runner.workloads.rag_qa_quality import RagQaQuality

LOGGER = logging.getLogger("hitlab.runner")


@dataclass(frozen=True)
class PreparedBench:
    """A bench that can begin.

    Attributes:
        plan: with the phases that are going to be sent; without warm ones where they are skipped.
        tokens: the engine's own counting; None where it offers none.
        skipped: names of skipped phases.
        reuse_expected: texts of the measured phase are sent in a warm one.
    """

    settings: Settings
    engine: BenchEngine
    size: Size
    plan: Plan
    script: Script
    tokenizer: str
    tokens: EngineTokens | None
    lmcache: LmCache | None
    skipped: tuple[str, ...]
    reuse_expected: bool

    @property
    def exported(self) -> dict[str, Any]:
        return found_out(self.settings, self.engine, self.size)


def find_out(settings: Settings, *, api_key: str) -> tuple[BenchEngine, Size]:
    """Ask the engine, and LMCache where it is named, for what was not given."""
    general = settings.general
    engine = find_engine(general.engine_url, general.model, api_key=api_key, trust=general.trust)
    return engine, tokens_per_gb(settings, engine)


def found_out(settings: Settings, engine: BenchEngine, size: Size) -> dict[str, Any]:
    """The settings as a config file holds them."""
    return settings.exported(model=engine.model, tokens_per_gb_kvcache=size.tokens_per_gb)


def prepare_bench(
    settings: Settings, *, api_key: str, stop: threading.Event, progress: Progress = silent
) -> PreparedBench:
    """Find the engine, prove its metrics page, size the workload, and make its texts.

    Raises:
        ScenarioError: a setting does not fit this engine. ServiceError: the engine, or LMCache, cannot be asked.
    """
    progress("Ask the engine", 0, None)
    general = settings.general
    engine = find_engine(general.engine_url, general.model, api_key=api_key, trust=general.trust)
    exact = settings.workload.name if settings.workload.needs_tokenizer else None
    # What is sent here would be somebody else's traffic to another run on this engine.
    with engine_lock(engine.client.engine, general.output_dir.absolute(), f"bench-{settings.workload.name}"):
        progress("Prove the metrics page", 0, None)
        engine = proved(engine, stop)
        size = tokens_per_gb(settings, engine)
        progress("Find how tokens are counted", 0, None)
        counting = find_counting(engine, general.tokenizer, general.seed, exact=exact)
    texts, tokens = counting.texts, counting.tokens
    progress("Make the texts", 0, None)
    parameters = settings.parameters
    rag = parameters if isinstance(parameters, RagQaQuality) else None
    samples, skipped_records = ((), 0) if rag is None else load_samples(rag.rag_dataset, rag.rag_num_samples)
    resources = Resources(
        seed=general.seed,
        kv_cache_volume=general.kv_cache_volume,
        tokens_per_gb=size.tokens_per_gb,
        tier_tokens=tier_tokens(settings, engine, size),
        count=texts.count,
        filler=texts.text,
        samples=samples,
        skipped_records=skipped_records,
        frame_tokens=None if rag is None else _frame_tokens(tokens, rag.rag_template_kwargs),
    )
    plan = settings.workload.plan(parameters, resources)
    if counting.note is not None:
        plan = replace(plan, notes=(*plan.notes, counting.note))
    sent = tuple(phase for phase in plan.phases if phase.measured or not general.no_warmup)
    skipped = tuple(phase.name for phase in plan.phases if phase not in sent)
    fixed: dict[str, Any] = {
        "model": engine.model,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if general.ignore_eos:
        fixed["ignore_eos"] = True
    if plan.template_kwargs:
        fixed["chat_template_kwargs"] = dict(plan.template_kwargs)
    script = Script(plan, texts, fixed)
    for phase in sent:
        script.write(phase)
    prepared = PreparedBench(
        settings=settings,
        engine=engine,
        size=size,
        plan=replace(plan, phases=sent),
        script=script,
        tokenizer=counting.tokenizer,
        tokens=tokens,
        lmcache=None if general.lmcache_url is None else LmCache(general.lmcache_url, general.trust),
        skipped=skipped,
        reuse_expected=reuse_expected(plan),
    )
    _require_fit(prepared)
    return prepared


def reuse_expected(plan: Plan) -> bool:
    """Whether the measured requests begin with something that warm ones have sent."""
    warm = {request.session or request.messages[0].parts[0] for request in _warm(plan)}
    return any(
        (request.session or request.messages[0].parts[0]) in warm for request in plan.measured.requests
    )


def _warm(plan: Plan) -> list[Request]:
    return list(chain.from_iterable(phase.requests for phase in plan.phases if not phase.measured))


def _frame_tokens(tokens: EngineTokens | None, template_kwargs: Mapping[str, Any]) -> int | None:
    return None if tokens is None else tokens.frame_tokens(template_kwargs)


def _require_fit(prepared: PreparedBench) -> None:
    """The longest prompt and its answer must fit; an engine would refuse it, or cut the answer without a word."""
    limit = prepared.engine.max_model_len
    if limit is None or prepared.tokens is None:
        return
    for phase in prepared.plan.phases:
        longest = max(phase.requests, key=lambda request: _characters(prepared.script, request))
        try:
            prompt = prepared.tokens.conversation(
                prepared.script.sent(longest), prepared.plan.template_kwargs
            )
        except ServiceError as error:
            raise ServiceError(
                f"{error}; has the model a chat template? These workloads are conversations, and sent as such"
            ) from error
        needed = len(prompt) + longest.max_tokens
        if needed > limit:
            least = "at least " if len(prompt) > limit else ""  # vLLM stops counting there
            flags = f"--{prepared.settings.workload.prefix.rstrip('_')}-..."
            raise ScenarioError(
                f"{longest.request_id} has {least}{len(prompt)} tokens and may answer {longest.max_tokens}, the engine "
                f"takes {limit}; ask for less ({flags}), or start it with a --max-model-len of {least}{needed}"
            )


def _characters(script: Script, request: Request) -> int:
    return sum(len(message["content"]) for message in script.sent(request))
