"""An engine in memory for the runner's control calls, with every way of being wrong that a test may ask for.

Built on the block pool, not on the simulator: it speaks the client's methods, not HTTP.
"""

import threading
from dataclasses import dataclass, field, replace
from typing import Any

from cachemodel.block_hashes import HashChain
from cachemodel.block_pool import BlockPool
from contract.errors import ServiceError
from enginemetrics.snapshot import read_snapshot
from prompts.tokenizer import Tokenizer
from runner.control import Answer, Scrape
from runner.engines.engine import Engine


@dataclass
class FakeEngine:
    """Stands in for `runner.control.ControlClient`."""

    tokenizer: Tokenizer
    ranks: int = 2
    block_size: int = 16
    blocks: int = 4096
    told_block_size: int | None = None
    prefix_caching: str = "True"
    cache_config: bool = True
    max_model_len: int | None = 8192
    tokenize: bool = True
    extra_tokens: int = 0
    ignores_rank_header: bool = False
    drops_last_block: bool = False
    broken_cache: bool = False
    tells_cached_tokens: bool = True
    tells_prompt_tokens: bool = False
    counts_queries: bool = True
    counts_hits: bool = True
    speculative: bool = False
    reset_answers: list[Any] = field(default_factory=list)
    reset_does_nothing: bool = False
    external_tier: bool = False
    foreign_tokens_per_scrape: int = 0
    running: int = 0
    reset_calls: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = Engine(
            kind="external",
            inference_url="http://engine/v1/completions",
            metrics_urls=("http://engine/metrics",),
            reset_url="http://engine/reset_prefix_cache",
            model="m",
            ranks=self.ranks,
        )
        self._one_at_a_time = threading.Lock()
        self.queries, self.hits, self.prompts = ([0] * self.ranks for _ in range(3))
        self.served = 0
        self.tier: set[tuple[int, ...]] = set()
        self._empty()

    def _empty(self) -> None:
        self.pools = [BlockPool(self.blocks, self.block_size) for _ in range(self.ranks)]

    def without_reset(self) -> None:
        self.engine = replace(self.engine, reset_url=None)

    def scrape(self, *, session: str | None = None) -> Scrape:
        self.queries[0] += self.foreign_tokens_per_scrape
        lines = []
        for rank in range(self.ranks):
            labels = f'engine="{rank}",model_name="m"'
            lines += [
                f"vllm:prefix_cache_queries_total{{{labels}}} {self.queries[rank]}",
                f"vllm:prefix_cache_hits_total{{{labels}}} {self.hits[rank]}",
                f"vllm:num_requests_running{{{labels}}} {self.running}",
                f"vllm:num_requests_waiting{{{labels}}} 0",
            ]
            if self.tells_prompt_tokens:
                lines.append(f"vllm:prompt_tokens_total{{{labels}}} {self.prompts[rank]}")
            if self.speculative:
                lines.append(f"vllm:spec_decode_num_drafts_total{{{labels}}} 1")
            if self.cache_config:
                size = self.told_block_size or self.block_size
                lines.append(
                    f'vllm:cache_config_info{{engine="{rank}",block_size="{size}",'
                    f'num_gpu_blocks="{self.blocks * self.ranks}",'
                    f'kv_cache_size_tokens="{self.blocks * size}",enable_prefix_caching="{self.prefix_caching}"}} 1'
                )
        text = "\n".join(lines) + "\n"
        return Scrape(text, read_snapshot([text], model="m", dp_size=self.ranks, engine_label_map={}))

    def short_prompt(self, text: str, *, session: str) -> Answer:
        with self._one_at_a_time:
            return self.complete({"prompt": text}, None)

    def complete(self, body: dict[str, Any], rank: int | None) -> Answer:
        home = 0 if rank is None or self.ignores_rank_header else rank
        ids = self.tokenizer.encode_for_server(body["prompt"]) + [0] * self.extra_tokens
        chain = HashChain(self.block_size)
        chain.extend(ids)
        self.served += 1
        admission = self.pools[home].admit(self.served, chain)
        assert admission is not None
        self.pools[home].extend(self.served, len(ids))
        self.pools[home].finish(self.served)
        cached = 0 if self.broken_cache else admission.cached_tokens
        kept = len(ids) // self.block_size * self.block_size if tuple(ids) in self.tier else 0
        if self.external_tier:
            self.tier.add(tuple(ids))
        if self.drops_last_block:
            cached = max(0, cached - self.block_size)
        self.queries[home] += len(ids) * self.counts_queries
        self.hits[home] += cached * self.counts_hits
        self.prompts[home] += len(ids)
        details = {"cached_tokens": max(cached, kept)} if self.tells_cached_tokens else None
        usage = {"prompt_tokens": len(ids), "completion_tokens": 1, "prompt_tokens_details": details}
        return Answer(200, {"usage": usage}, "")

    def get(self, path: str) -> Answer:
        if path == "/version":
            return Answer(200, {"version": "0.32.0"}, "")
        model = {"id": "m"} | ({"max_model_len": self.max_model_len} if self.max_model_len else {})
        return Answer(200, {"data": [model]}, "")

    def call(self, method: str, url: str, **options: Any) -> Answer:
        if url.endswith("/tokenize"):
            if not self.tokenize:
                return Answer(404, None, "Not Found")
            ids = self.tokenizer.encode_for_server(options["json"]["prompt"])
            return Answer(200, {"tokens": ids + [0] * self.extra_tokens}, "")
        self.reset_calls.append(options)
        answer = self.reset_answers.pop(0) if self.reset_answers else {"success": True}
        if isinstance(answer, ServiceError):
            raise answer
        if isinstance(answer, int):
            return Answer(answer, None, "no such route")
        if isinstance(answer, dict) and answer.get("success") is not False and not self.reset_does_nothing:
            self._empty()
        return Answer(200, answer, "")
