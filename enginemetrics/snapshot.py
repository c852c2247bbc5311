"""What an engine's metrics say at one moment, per data-parallel rank."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client.samples import Sample

from contract.errors import NotThisEngineError, ServiceError, UnusablePageError
from contract.foreign import LARGEST_COUNT, LARGEST_TOKENS, counted, decimal_number, finite, shown
from contract.foreign_text import presentable
from enginemetrics.exposition import parse_exposition
from enginemetrics.names import (
    BREAKDOWNS,
    CACHE_CONFIG_INFO,
    COUNTERS,
    GAUGES,
    KV_OFFLOADING,
    MATCH_UNIT_LABELS,
    PREFIX_CACHE_COUNTERS,
    PROCESS_START_TIME,
    ROUTERS,
    SPECULATION,
    CacheCounterNames,
    Unit,
    newest,
)

MOST_SHOWN: Final = 200
MOST_NAMED: Final = 20


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """One rank's KV cache as `vllm:cache_config_info` describes it. None: the engine does not say.

    Attributes:
        block_size: tokens per block; of several KV groups the smallest.
        num_gpu_blocks: as exposed, which is the blocks of all ranks that the front end drives, added up
            (vLLM 0.32 `v1/engine/core_client.py`): two ranks behind one or two API servers both show twice a rank's
            pool, a rank behind a port of its own (external load balancing) shows its own.
        blocks_per_rank: blocks in one rank's pool, the placeholder block included: `--num-gpu-blocks-override` where
            it was given, which each rank takes for itself, else `num_gpu_blocks` by the ranks of the page. None when
            that leaves a remainder: then the pools differ.
        kv_cache_size_tokens: capacity of one rank in tokens, all KV groups considered; never added up. It is the
            requests of max_model_len that fit, times max_model_len, so a little less than blocks times block size
            where max_model_len ends within a block. Not exposed by older versions.
        match_unit: tokens that a hit is a multiple of, from the most to the least telling label:
            `cache_hit_alignment_tokens` (what 0.32's coordinator aligns hits to, but its front end never learns it),
            `prefix_match_unit` (the finest unit asked for; a KV group that cannot look up within a block makes it
            coarser), `effective_attention_block_size` (full attention, context parallelism included), `block_size`.
            Exact with one KV group; with several the engine may align to a multiple of it.
        prefix_match_unit: what `--prefix-match-unit` was set to.
        labels: every label of the series, as text.
    """

    block_size: int | None
    num_gpu_blocks: int | None
    blocks_per_rank: int | None
    kv_cache_size_tokens: int | None
    enable_prefix_caching: bool | None
    prefix_caching_hash_algo: str | None
    prefix_match_unit: int | None
    match_unit: int | None
    labels: Mapping[str, str]

    @property
    def capacity_tokens(self) -> int | None:
        """Tokens that one rank can hold, without the placeholder block, which the engine counts in."""
        if self.block_size is None:
            return None
        if self.kv_cache_size_tokens is not None:
            return self.kv_cache_size_tokens - self.block_size
        return None if self.blocks_per_rank is None else (self.blocks_per_rank - 1) * self.block_size

    @property
    def not_one_pool(self) -> str | None:
        """Why a pool of blocks of one kind does not describe this cache; None when it does."""
        if self.block_size is not None and self.match_unit not in (None, self.block_size):
            return f"the engine matches prefixes in units of {self.match_unit} tokens, not in blocks of {self.block_size}"
        if self.labels.get("mamba_block_size", "None") not in ("", "None"):
            return (
                f"the engine has several kinds of blocks (mamba_block_size {self.labels['mamba_block_size']})"
            )
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledgers:
    """Counters beside queries and hits that the same traffic must agree with. None: see `unavailable`.

    `mm_cache_*` count images and other items, not tokens. They are the front end's, which shows them at the rank whose
    answer it handles next; so only their sum over ranks is exact (vLLM 0.32 `v1/engine/async_llm.py`).
    """

    prompt_tokens: int | None = None
    prompt_tokens_cached: int | None = None
    prompt_tokens_by_source: Mapping[str, int] | None = None
    prompt_tokens_cached_by_source: Mapping[str, int] | None = None
    generation_tokens: int | None = None
    preemptions: int | None = None
    external_queries: int | None = None
    external_hits: int | None = None
    mm_cache_queries: int | None = None
    mm_cache_hits: int | None = None
    prefill_kv_computed_tokens_sum: int | None = None
    request_prompt_tokens_sum: int | None = None
    request_success: Mapping[str, int] | None = None
    unavailable: Mapping[str, str] = field(default_factory=dict)
    """Field -> why it is None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMetrics(Ledgers):
    """One rank. `queries` and `hits` are in the snapshot's unit; `kv_cache_usage` is 0..1."""

    rank: int
    queries: int
    hits: int
    kv_cache_usage: float | None = None
    requests_running: int | None = None
    requests_waiting: int | None = None
    cache_config: CacheConfig | None = None
    counters_created: float | None = None
    """Epoch seconds at which the queries counter began, where the engine exposes it."""
    model: str | None = None
    """Label of the series of queries and hits; None: they have none."""
    series: frozenset[tuple[str, str]] = frozenset()
    """Which series queries and hits were added up from: name, and the other labels as text."""


@dataclass(frozen=True, slots=True)
class MetricNames:
    """The names that were read, as exposed."""

    queries: str
    hits: str
    kv_cache_usage: str | None
    ledgers: Mapping[str, str | None] = field(default_factory=dict)
    """Field of `Ledgers` -> the metric it was read from; None: the engine exposes none."""


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """All ranks at one moment, in order of rank.

    Attributes:
        unit: what queries and hits count: tokens, or full blocks (vLLM 0.8.x).
        process_start_times: epoch seconds per scraped text; None where there is none (several API servers).
        notes: what was seen and left out, for the log.
        speculative: whether the engine decodes speculatively. Of its methods EAGLE and MTP take one match unit from every
            hit, n-grams and draft models none; the metrics do not report which method it is.
        external_tier: whether a KV cache beyond the GPU's answers lookups (a KV connector, offloading).
        unavailable: field -> why it is None.
    """

    ranks: tuple[RankMetrics, ...]
    unit: Unit
    metric_names: MetricNames
    process_start_times: tuple[float | None, ...]
    notes: tuple[str, ...]
    speculative: bool | None = None
    external_tier: bool | None = None
    unavailable: Mapping[str, str] = field(default_factory=dict)

    @property
    def queries(self) -> int:
        return sum(rank.queries for rank in self.ranks)

    @property
    def hits(self) -> int:
        return sum(rank.hits for rank in self.ranks)


@dataclass(frozen=True, slots=True)
class _Scrape:
    """One text, by metric name, with what is needed to say where a sample came from."""

    source: str
    series: Mapping[str, Sequence[Sample]]
    engine_label_map: Mapping[str, int]
    dp_size: int

    def rank_of(self, sample: Sample) -> int:
        label = sample.labels.get("engine")
        if label is not None and label in self.engine_label_map:
            rank = self.engine_label_map[label]
        elif label:
            digits = label[len(label.rstrip("0123456789")) :]
            if digits:
                number = decimal_number(digits)
                rank = LARGEST_COUNT if number is None else number
            elif self.dp_size == 1:
                rank = 0
            else:
                raise ServiceError(
                    f'{self.source}: {sample.name} has engine="{_short(label)}", which names no rank; '
                    f'add "{_short(label)}" to service.engine_label_map'
                )
        elif self.dp_size == 1:
            rank = 0
        else:
            raise ServiceError(
                f"{self.source}: {sample.name} has no label engine, so its {self.dp_size} ranks cannot be told "
                "apart; use an engine that labels its metrics, or service.dp_size 1"
            )
        if not 0 <= rank < self.dp_size:
            raise ServiceError(
                f"{self.source}: {sample.name} shows rank {rank} (engine={_short(label)!r}), outside "
                f"0..{self.dp_size - 1}; correct service.dp_size or service.engine_label_map"
            )
        return rank

    def by_rank(self, name: str) -> dict[int, list[Sample]]:
        """The samples of a metric per rank; several when processes (label pid) report apart."""
        found: dict[int, list[Sample]] = defaultdict(list)
        for sample in self.series.get(name, ()):
            found[self.rank_of(sample)].append(sample)
        return found


def read_snapshot(
    texts: Sequence[str],
    *,
    model: str,
    dp_size: int,
    engine_label_map: Mapping[str, int],
    sources: Sequence[str] | None = None,
) -> EngineSnapshot:
    """Read the metrics of an engine from the text of each of its metrics URLs.

    Within one text, series that differ only in labels other than rank and model are summed for counters (API
    server processes); gauges of such series must agree, else they are None. Between texts, ranks must differ.

    Args:
        texts: one exposition per metrics URL; together they must show ranks 0..dp_size-1.
        model: the served model; series of other models are left out and noted.
        engine_label_map: value of label `engine` -> rank, for engines whose label does not end in the rank.
        sources: a name per text (URL or file) for messages.

    Raises:
        NotThisEngineError: a router's own page.
        UnusablePageError: a text that does not end in a newline or shows a series twice, a counter of the prefix cache
            that is not a whole number, or more hits than queries.
        ServiceError: broken text, no prefix-cache counters, ranks missing, doubled or out of range.
    """
    names = list(sources) if sources is not None else [f"metrics {i + 1}" for i in range(len(texts))]
    if not texts or len(names) != len(texts):
        raise ValueError("read_snapshot needs at least one text, and as many sources as texts")
    notes: list[str] = []
    scrapes = []
    for source, text in zip(names, texts, strict=True):
        _require_end(text, source)
        samples = parse_exposition(text, source=source, buckets=False)
        _require_once(samples, source)
        series = _of_model(samples, model, source, notes)
        _require_no_router(series, source)
        scrapes.append(_Scrape(source, series, engine_label_map, dp_size))

    counters = _choose_counters(scrapes, model)
    home = _home_of_ranks(scrapes, counters, dp_size)
    chosen = {
        name: next((n for n in candidates if any(n in s.series for s in scrapes)), None)
        for name, candidates in (
            *COUNTERS.items(),
            *((k, v[0]) for k, v in BREAKDOWNS.items()),
            *GAUGES.items(),
        )
    }
    ranks = tuple(_read_rank(rank, home[rank], counters, chosen) for rank in range(dp_size))
    speculative, no_speculative = _speculative(scrapes, counters.unit)
    external_tier, no_external_tier = _external_tier(scrapes, ranks)
    if counters.unit == "blocks":
        notes.append(f"{counters.queries} counts full blocks, not tokens (vLLM 0.8.x)")
    return EngineSnapshot(
        ranks=ranks,
        unit=counters.unit,
        metric_names=MetricNames(
            counters.queries,
            counters.hits,
            chosen["kv_cache_usage"],
            ledgers={name: chosen[name] for name in (*COUNTERS, *BREAKDOWNS)},
        ),
        process_start_times=tuple(_process_start_time(scrape) for scrape in scrapes),
        notes=tuple(notes),
        speculative=speculative,
        external_tier=external_tier,
        unavailable={
            name: reason
            for name, reason in (("speculative", no_speculative), ("external_tier", no_external_tier))
            if reason is not None
        },
    )


def _require_end(text: str, source: str) -> None:
    if text and not text.endswith("\n"):
        raise UnusablePageError(
            f"{source}: does not end in a newline, so its end is missing and its last number may be; take the whole page"
        )


def _require_once(samples: Iterable[Sample], source: str) -> None:
    """The format forbids a series to stand in a page twice; adding both up would count its tokens twice."""
    seen = set()
    for sample in samples:
        series = (sample.name, frozenset(sample.labels.items()))
        if series in seen:
            raise UnusablePageError(
                f"{source}: {_short(sample.name)} stands in it twice with the same labels; it is not one page of one "
                "process: scrape or save each page by itself"
            )
        seen.add(series)


def _require_no_router(series: Iterable[str], source: str) -> None:
    for name in series:
        for prefix, router in ROUTERS.items():
            if name.startswith(prefix):
                raise NotThisEngineError(
                    f"{source}: shows {name}, so it is the page of {router}, not that of an engine; name the "
                    "engine's own page"
                )


def _of_model(
    samples: Iterable[Sample], model: str, source: str, notes: list[str]
) -> dict[str, list[Sample]]:
    """Samples by name, without those that belong to another model."""
    by_model: dict[str | None, dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        by_model[sample.labels.get("model_name")][sample.name].append(sample)
    unlabelled = by_model.pop(None, {})
    others = sorted(_short(name) for name in by_model if name != model)
    others = [*others[:MOST_NAMED], *["..."] * (len(others) > MOST_NAMED)]
    if model in by_model:
        if others:
            notes.append(f"{source}: series of other models left out: {', '.join(others)}")
        labelled = by_model[model]
    elif len(others) == 1:
        # With several --served-model-name, vLLM labels its metrics with the first and serves all.
        notes.append(f"{source}: metrics are labelled {others[0]!r}, not {model!r}; read as the same model")
        labelled = next(found for name, found in by_model.items() if name != model)
    elif others:
        raise ServiceError(
            f"{source}: no series of model {model!r}, but of {', '.join(others)}; set service.model to the one served"
        )
    else:
        labelled = {}
    merged = {name: list(found) for name, found in unlabelled.items()}
    for name, found in labelled.items():
        merged.setdefault(name, []).extend(found)
    return merged


def _choose_counters(scrapes: Sequence[_Scrape], model: str) -> CacheCounterNames:
    present = set().union(*(scrape.series for scrape in scrapes))
    for names in PREFIX_CACHE_COUNTERS:
        if names.queries in present and names.hits in present:
            return names
    where = ", ".join(scrape.source for scrape in scrapes)
    missing = [
        kind
        for kind in ("queries", "hits")
        if not any(getattr(names, kind) in present for names in PREFIX_CACHE_COUNTERS)
    ]
    raise ServiceError(
        f"{where}: no prefix-cache {' and '.join(missing) or 'queries and hits of one kind'} counter for model "
        f"{model!r} (vllm:prefix_cache_queries_total, vllm:prefix_cache_hits_total or an older name); the engine "
        "must be vLLM V1 with metrics on (no --disable-log-stats)"
    )


def _home_of_ranks(
    scrapes: Sequence[_Scrape], counters: CacheCounterNames, dp_size: int
) -> dict[int, _Scrape]:
    """The text that shows each rank."""
    home: dict[int, _Scrape] = {}
    for scrape in scrapes:
        for rank in scrape.by_rank(counters.queries):
            if rank in home:
                raise ServiceError(
                    f"{scrape.source} and {home[rank].source} both show rank {rank}; "
                    f"{_advice_on_one_rank(home[rank], scrape, rank, counters.queries)}"
                )
            home[rank] = scrape
    missing = [rank for rank in range(dp_size) if rank not in home]
    if missing:
        where = ", ".join(scrape.source for scrape in scrapes)
        raise ServiceError(
            f"{where}: missing DP ranks: {', '.join(map(str, missing))} (seen: "
            f"{', '.join(map(str, sorted(home))) or 'none'}); correct service.dp_size, or name the pages of "
            "all ranks in service.metrics_urls"
        )
    return home


def _advice_on_one_rank(one: _Scrape, other: _Scrape, rank: int, counter: str) -> str:
    """What can be done about two pages that show the same rank: only labels that differ can be mapped apart."""
    if one.dp_size == 1:
        return "one rank has one page: name one in service.metrics_urls, or correct service.dp_size"
    first, second = (
        {sample.labels.get("engine") for sample in scrape.by_rank(counter)[rank]} for scrape in (one, other)
    )
    shared = first & second
    if shared:
        return (
            f"both label it engine={_short(shared.pop() or '')!r}, so nothing tells them apart: name each page once in "
            "service.metrics_urls, and start each engine with a --data-parallel-rank of its own"
        )
    labels = sorted(label or "" for label in first | second)
    return (
        f"give {' and '.join(map(repr, map(_short, labels)))} ranks of their own in service.engine_label_map"
    )


def _read_rank(
    rank: int, scrape: _Scrape, counters: CacheCounterNames, chosen: Mapping[str, str | None]
) -> RankMetrics:
    unavailable: dict[str, str] = {}
    values: dict[str, Any] = {}

    def samples_of(name: str, candidates: Sequence[str]) -> list[Sample] | None:
        metric = chosen[name]
        if metric is None:
            unavailable[name] = f"the engine exposes no series of {newest(candidates)}"
            return None
        found = scrape.by_rank(metric).get(rank)
        if not found:
            unavailable[name] = f"{metric} has no series for rank {rank} yet"
        return found

    for name, candidates in COUNTERS.items():
        if found := samples_of(name, candidates):
            values[name] = _optional(name, unavailable, _count(found, scrape.source))
    for name, (candidates, label) in BREAKDOWNS.items():
        if found := samples_of(name, candidates):
            parts: dict[str, list[Sample]] = defaultdict(list)
            for sample in found:
                parts[sample.labels.get(label, "")].append(sample)
            counted = {key: _count(part, scrape.source) for key, part in sorted(parts.items())}
            bad = next((value for value in counted.values() if isinstance(value, str)), None)
            values[name] = _optional(name, unavailable, bad if bad is not None else counted)
    for name, candidates in GAUGES.items():
        if found := samples_of(name, candidates):
            values[name] = _optional(name, unavailable, _gauge(found, whole=name != "kv_cache_usage"))

    queries = _required(_count(scrape.by_rank(counters.queries)[rank], scrape.source))
    hit_samples = scrape.by_rank(counters.hits).get(rank)
    if not hit_samples:
        raise ServiceError(
            f"{scrape.source}: rank {rank} has {counters.queries} but no {counters.hits}; the text is incomplete"
        )
    hits = _required(_count(hit_samples, scrape.source))
    if hits > queries:
        raise UnusablePageError(
            f"{scrape.source}: rank {rank} shows more hits ({hits}) than queries ({queries}) in "
            f"{counters.hits}; this engine's counters cannot be used"
        )
    config, reason = _cache_config(scrape, rank, counters.queries)
    if reason is not None:
        unavailable["cache_config"] = reason
    created = scrape.by_rank(f"{counters.queries.removesuffix('_total')}_created").get(rank, [])
    return RankMetrics(
        rank=rank,
        queries=queries,
        hits=hits,
        cache_config=config,
        counters_created=min((told for s in created if (told := finite(s.value)) is not None), default=None),
        model=_model_of(hit_samples),
        series=frozenset(map(_identity, (*scrape.by_rank(counters.queries)[rank], *hit_samples))),
        unavailable=unavailable,
        **values,
    )


def _count(samples: Sequence[Sample], source: str) -> int | str:
    """The sum of a counter's series, or why there is none."""
    total = 0
    for sample in samples:
        value = counted(sample.value)
        if value is None:
            labels = _short(str(sample.labels or ""))
            return f"{source}: {sample.name}{labels} is {shown(sample.value)}, which is no count"
        total += value
    if total > LARGEST_COUNT:
        return f"{source}: {samples[0].name} adds up to {shown(total)}, which is no count"
    return total


def _gauge(samples: Sequence[Sample], *, whole: bool) -> float | str:
    values = {sample.value for sample in samples}
    if len(values) > 1:
        return f"{len(samples)} processes report different values of {samples[0].name}"
    told = values.pop()
    value = counted(told) if whole else finite(told)
    return f"{samples[0].name} is {shown(told)}" if value is None else value


def _model_of(samples: Sequence[Sample]) -> str | None:
    return next((sample.labels["model_name"] for sample in samples if "model_name" in sample.labels), None)


def _identity(sample: Sample) -> tuple[str, str]:
    labels = sorted((name, value) for name, value in sample.labels.items() if name != "model_name")
    return sample.name, ",".join(f"{name}={value!r}" for name, value in labels)


def _required(count: int | str) -> int:
    if isinstance(count, str):
        raise UnusablePageError(f"{count}; the prefix-cache counters cannot be used")
    return count


def _optional(name: str, unavailable: dict[str, str], value: Any) -> Any:
    """The value, or None with the reason kept."""
    if isinstance(value, str):
        unavailable[name] = value
        return None
    return value


def _cache_config(scrape: _Scrape, rank: int, queries: str) -> tuple[CacheConfig | None, str | None]:
    samples = scrape.series.get(CACHE_CONFIG_INFO, ())
    if not samples:
        return None, f"the engine exposes no series of {CACHE_CONFIG_INFO}"
    # Without the label one series speaks for all ranks of its server.
    mine = [s for s in samples if "engine" not in s.labels or scrape.rank_of(s) == rank]
    if not mine:
        return None, f"{CACHE_CONFIG_INFO} has no series for rank {rank}"
    kept = [{k: v for k, v in s.labels.items() if k not in ("engine", "pid")} for s in mine]
    if any(labels != kept[0] for labels in kept):
        return None, f"{CACHE_CONFIG_INFO} has {len(kept)} different series for rank {rank}"
    labels = kept[0]
    counted = samples if "engine" in samples[0].labels else scrape.series[queries]
    ranks_of_page = len({scrape.rank_of(sample) for sample in counted})
    prefix_caching = labels.get("enable_prefix_caching")
    return CacheConfig(
        block_size=_label_int(labels, "block_size"),
        num_gpu_blocks=_label_int(labels, "num_gpu_blocks"),
        blocks_per_rank=_blocks_per_rank(labels, ranks_of_page),
        kv_cache_size_tokens=_label_int(labels, "kv_cache_size_tokens", LARGEST_COUNT),
        enable_prefix_caching={"True": True, "False": False}.get(prefix_caching or ""),
        prefix_caching_hash_algo=_label_text(labels, "prefix_caching_hash_algo"),
        prefix_match_unit=_label_int(labels, "prefix_match_unit"),
        match_unit=next(filter(None, (_label_int(labels, name) for name in MATCH_UNIT_LABELS)), None),
        labels=labels,
    ), None


def _blocks_per_rank(labels: Mapping[str, str], ranks_of_page: int) -> int | None:
    override = _label_int(labels, "num_gpu_blocks_override")
    if override is not None:
        return override
    together = _label_int(labels, "num_gpu_blocks")
    if together is None or together % ranks_of_page:
        return None
    return together // ranks_of_page


def _speculative(scrapes: Sequence[_Scrape], unit: Unit) -> tuple[bool | None, str | None]:
    """The families exist only where speculation is on (vLLM 0.32 `v1/spec_decode/metrics.py`)."""
    if any(name.startswith(SPECULATION) for scrape in scrapes for name in scrape.series):
        return True, None
    if unit == "blocks":
        return None, "vLLM 0.8.x does not report whether it decodes speculatively"
    return False, None


def _external_tier(
    scrapes: Sequence[_Scrape], ranks: Sequence[RankMetrics]
) -> tuple[bool | None, str | None]:
    """A connector is asked for what every lookup left over, so its counter moves with the first request."""
    offloads = any(name.startswith(KV_OFFLOADING) for scrape in scrapes for name in scrape.series)
    sizes = (rank.cache_config.labels.get("kv_offloading_size") for rank in ranks if rank.cache_config)
    asked = [rank.external_queries for rank in ranks]
    if offloads or any(size not in (None, "", "None") for size in sizes) or any(asked):
        return True, None
    if None in asked:
        return None, ranks[asked.index(None)].unavailable["external_queries"]
    if not any(rank.queries for rank in ranks):
        return None, "no request has been looked up yet"
    return False, None


def _short(text: str | None) -> str:
    """A label as a message shows it."""
    return presentable(text or "", MOST_SHOWN)


def _label_text(labels: Mapping[str, str], name: str) -> str | None:
    """A label's text; vLLM writes Python's None as the word."""
    value = labels.get(name)
    return None if value in (None, "", "None") else value


def _label_int(labels: Mapping[str, str], name: str, most: int = LARGEST_TOKENS) -> int | None:
    """A size of at least 1; None for all else: nothing is counted in blocks of 0 tokens."""
    return decimal_number(_label_text(labels, name), most) or None


def _process_start_time(scrape: _Scrape) -> float | None:
    values = {finite(sample.value) for sample in scrape.series.get(PROCESS_START_TIME, ())}
    return values.pop() if len(values) == 1 else None
