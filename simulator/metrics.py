"""The Prometheus metrics of vLLM 0.32 with one API server: same names, types, labels and buckets.

The names are those of `vllm/v1/metrics/loggers.py`. Series whose cause a simulator does not have (external cache,
sleep) exist and stay at zero, as on an engine that does not use them.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from simulator.config import SimulatorConfig

_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_PER_TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_FINISHED = ("stop", "length", "abort", "error", "repetition")
_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
_REJECTED = ("max_num_queued_reqs", "max_num_queued_tokens")
_TIERS = ("device", "host", "p2p", "disk", "external_unspecified")

Metric = TypeVar("Metric", Counter, Gauge, Histogram)


def token_buckets(longest: int) -> list[int]:
    """1, 2, 5, 10, 20, 50 and so on, up to `longest`."""
    buckets: list[int] = []
    scale = 1
    while True:
        for digit in (1, 2, 5):
            if digit * scale > longest:
                return buckets
            buckets.append(digit * scale)
        scale *= 10


class RankMetrics:
    """The series of one rank that the engine moves, resolved once so that moving them is cheap."""

    queries: Counter
    hits: Counter
    device_hits: Counter
    prompt_tokens: Counter
    computed: Counter
    cached: Counter
    cached_total: Counter
    generation_tokens: Counter
    mm_queries: Counter
    mm_hits: Counter
    preemptions: Counter
    finished: Counter
    step_tokens: Histogram
    first_token: Histogram
    between_tokens: Histogram
    per_output_token: Histogram
    end_to_end: Histogram
    queue_time: Histogram
    inference_time: Histogram
    prefill_time: Histogram
    decode_time: Histogram
    request_preemptions: Histogram
    request_computed: Histogram
    request_prompt: Histogram
    request_generation: Histogram
    longest_generation: Histogram
    params_n: Histogram
    params_max_tokens: Histogram


class EngineMetrics:
    """All metrics of one simulated engine in a registry of their own.

    Args:
        config: the engine.
        gauges: for each rank, functions that give the requests running, the requests waiting and the share of
            the pool in use, read at every scrape.
    """

    def __init__(
        self,
        config: SimulatorConfig,
        gauges: Sequence[tuple[Callable[[], float], Callable[[], float], Callable[[], float]]],
    ) -> None:
        self.registry = CollectorRegistry()
        GCCollector(self.registry)
        PlatformCollector(self.registry)
        ProcessCollector(registry=self.registry)
        self._model = config.model_name
        self._ranks = range(config.ranks)
        self.ranks = [RankMetrics() for _ in self._ranks]
        self._add_gauges(gauges)
        self._add_counters()
        self._add_histograms(token_buckets(config.max_model_len))
        self._add_cache_config(config)

    def text(self) -> bytes:
        """The exposition, Prometheus text format 1.0.0."""
        return generate_latest(self.registry)

    def _series(
        self, kind: type[Metric], name: str, text: str, labels: Sequence[str] = (), **more: Any
    ) -> Metric:
        return kind(name, text, ["model_name", "engine", *labels], registry=self.registry, **more)

    def _per_rank(self, metric: Metric, **labels: str) -> list[Metric]:
        return [metric.labels(model_name=self._model, engine=str(rank), **labels) for rank in self._ranks]

    def _attach(self, field: str, series: Sequence[Counter] | Sequence[Histogram]) -> None:
        for rank, child in zip(self.ranks, series, strict=True):
            setattr(rank, field, child)

    def _add_gauges(
        self, gauges: Sequence[tuple[Callable[[], float], Callable[[], float], Callable[[], float]]]
    ) -> None:
        for name, text in (
            ("flops", "floating point operations"),
            ("read_bytes", "bytes read from memory"),
            ("write_bytes", "bytes written to memory"),
        ):
            ending = " (for Model Flops Utilization calculations)."
            for_gpu = f"Estimated number of {text} per GPU{ending}"
            self._per_rank(self._series(Counter, f"vllm:estimated_{name}_per_gpu", for_gpu))
        running = self._series(
            Gauge, "vllm:num_requests_running", "Number of requests in model execution batches."
        )
        waiting = self._series(
            Gauge, "vllm:num_requests_waiting", "Number of requests waiting to be processed."
        )
        reasons = self._series(
            Gauge,
            "vllm:num_requests_waiting_by_reason",
            "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; "
            "'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). "
            "Sum of all reasons equals vllm:num_requests_waiting.",
            ["reason"],
        )
        sleep = self._series(
            Gauge,
            "vllm:engine_sleep_state",
            "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
            "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
            ["sleep_state"],
        )
        usage = self._series(Gauge, "vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.")
        for rank, read in enumerate(gauges):
            self._per_rank(running)[rank].set_function(read[0])
            self._per_rank(waiting)[rank].set_function(read[1])
            self._per_rank(reasons, reason="capacity")[rank].set_function(read[1])
            self._per_rank(usage)[rank].set_function(read[2])
        self._per_rank(reasons, reason="deferred")
        for state in ("awake", "weights_offloaded", "discard_all"):
            for child in self._per_rank(sleep, sleep_state=state):
                child.set(1 if state == "awake" else 0)

    def _add_counters(self) -> None:
        def add(field: str | None, name: str, text: str) -> None:
            series = self._per_rank(self._series(Counter, name, text))
            if field is not None:
                self._attach(field, series)

        ext = (
            "prefix cache {} from KV connector cross-instance cache sharing, in terms of number of {} tokens."
        )
        add(
            "queries",
            "vllm:prefix_cache_queries",
            "Prefix cache queries, in terms of number of queried tokens.",
        )
        add("hits", "vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.")
        add(None, "vllm:external_prefix_cache_queries", "External " + ext.format("queries", "queried"))
        add(None, "vllm:external_prefix_cache_hits", "External " + ext.format("hits", "cached"))
        add(
            "mm_queries",
            "vllm:mm_cache_queries",
            "Multi-modal cache queries, in terms of number of queried items.",
        )
        add("mm_hits", "vllm:mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items.")
        add("preemptions", "vllm:num_preemptions", "Cumulative number of preemption from the engine.")
        add("prompt_tokens", "vllm:prompt_tokens", "Number of prefill tokens processed.")
        sources = self._series(
            Counter, "vllm:prompt_tokens_by_source", "Number of prompt tokens by source.", ["source"]
        )
        for source, field in zip(_SOURCES, ("computed", "cached", None), strict=True):
            series = self._per_rank(sources, source=source)
            if field is not None:
                self._attach(field, series)
        add(
            "cached_total",
            "vllm:prompt_tokens_cached",
            "Number of cached prompt tokens (local + external).",
        )
        tiers = self._series(
            Counter,
            "vllm:prompt_tokens_cached_by_source",
            "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to "
            "DRAM), disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at "
            "admission; sums to vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.",
            ["source"],
        )
        for tier in _TIERS:
            series = self._per_rank(tiers, source=tier)
            if tier == "device":
                self._attach("device_hits", series)
        add("generation_tokens", "vllm:generation_tokens", "Number of generation tokens processed.")
        finished = self._series(
            Counter, "vllm:request_success", "Count of successfully processed requests.", ["finished_reason"]
        )
        for reason in _FINISHED:
            series = self._per_rank(finished, finished_reason=reason)
            if reason == "length":
                self._attach("finished", series)

        rejected = Counter(
            "vllm:admission_rejections",
            "Number of admission attempts rejected by a queue limit, by reason.",
            ["model_name", "reason"],
            registry=self.registry,
        )
        for reason in _REJECTED:
            rejected.labels(model_name=self._model, reason=reason)

    def _add_histograms(self, tokens: Sequence[float]) -> None:
        def add(field: str, name: str, text: str, buckets: Sequence[float]) -> None:
            metric = self._series(Histogram, name, text, buckets=tuple(buckets))
            self._attach(field, self._per_rank(metric))

        add("request_prompt", "vllm:request_prompt_tokens", "Number of prefill tokens processed.", tokens)
        add(
            "request_generation",
            "vllm:request_generation_tokens",
            "Number of generation tokens processed.",
            tokens,
        )
        add(
            "step_tokens",
            "vllm:iteration_tokens_total",
            "Histogram of number of tokens per engine_step.",
            _STEP_TOKENS,
        )
        add(
            "longest_generation",
            "vllm:request_max_num_generation_tokens",
            "Histogram of maximum number of requested generation tokens.",
            tokens,
        )
        add("params_n", "vllm:request_params_n", "Histogram of the n request parameter.", (1, 2, 5, 10, 20))
        add(
            "params_max_tokens",
            "vllm:request_params_max_tokens",
            "Histogram of the max_tokens request parameter.",
            tokens,
        )
        add(
            "first_token",
            "vllm:time_to_first_token_seconds",
            "Histogram of time to first token in seconds.",
            _FIRST_TOKEN,
        )
        add(
            "between_tokens",
            "vllm:inter_token_latency_seconds",
            "Histogram of inter-token latency in seconds.",
            _PER_TOKEN,
        )
        add(
            "per_output_token",
            "vllm:request_time_per_output_token_seconds",
            "Histogram of time_per_output_token_seconds per request.",
            _PER_TOKEN,
        )
        add(
            "end_to_end",
            "vllm:e2e_request_latency_seconds",
            "Histogram of e2e request latency in seconds.",
            _LATENCY,
        )
        for field, phase, word in (
            ("queue_time", "queue", "WAITING"),
            ("inference_time", "inference", "RUNNING"),
            ("prefill_time", "prefill", "PREFILL"),
            ("decode_time", "decode", "DECODE"),
        ):
            add(
                field,
                f"vllm:request_{phase}_time_seconds",
                f"Histogram of time spent in {word} phase for request.",
                _LATENCY,
            )
        add(
            "request_preemptions",
            "vllm:request_num_preemptions",
            "Histogram of the number of times a request was preempted.",
            (1, 2, 3, 4, 5, 10, 20),
        )
        add(
            "request_computed",
            "vllm:request_prefill_kv_computed_tokens",
            "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
            tokens,
        )

    def _add_cache_config(self, config: SimulatorConfig) -> None:
        per_rank_tokens = config.blocks_per_rank * config.block_size
        # Every field of the release's CacheConfig is a label; what a simulator does not have has its default.
        fields = {
            "_block_size_resolved": True,
            "block_size": config.block_size,
            "cache_dtype": "auto",
            "cache_hit_alignment_tokens": None,
            "effective_attention_block_size": config.block_size,
            "enable_mamba_shared_prefix_checkpoint": False,
            "enable_prefix_caching": config.prefix_caching,
            "gpu_memory_utilization": 0.92,
            "hash_block_size": None,
            "is_attention_free": False,
            "kv_cache_dtype_skip_layers": [],
            "kv_cache_layout": None,
            "kv_cache_max_concurrency": per_rank_tokens / config.max_model_len,
            "kv_cache_memory_bytes": None,
            # One rank's tokens, but the blocks of all ranks: so says the real engine behind one API server or several.
            "kv_cache_size_tokens": per_rank_tokens,
            "kv_offloading_backend": "native",
            "kv_offloading_size": None,
            "kv_sharing_fast_prefill": False,
            "mamba_block_size": None,
            "mamba_cache_dtype": "auto",
            "mamba_cache_mode": "none",
            "mamba_page_size_padded": None,
            "mamba_ssm_cache_dtype": "auto",
            "num_cpu_blocks": None,
            "num_gpu_blocks": config.blocks_per_rank * config.ranks,
            "num_gpu_blocks_override": config.blocks_per_rank,
            "prefix_cache_retention_interval": 0,
            "prefix_caching_hash_algo": "sha256",
            "prefix_match_unit": None,
            "replayssm_buffer_len": 16,
            "skip_page_size_padded": None,
            "sliding_window": None,
            "swa_bounded_replay": True,
            "use_kda_recoverssm": False,
            "use_replayssm": False,
            "user_specified_block_size": True,
        }
        info = Gauge(
            "vllm:cache_config_info",
            "Information of the LLMEngine CacheConfig",
            [*fields, "engine"],
            registry=self.registry,
        )
        for rank in self._ranks:
            info.labels(**{name: str(value) for name, value in fields.items()}, engine=str(rank)).set(1)
