"""The ranks of one engine at work: routing, steps in time, tokens to whoever asked, and the metrics of it all."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import numpy.typing as npt

from cachemodel.block_hashes import ExtraKeys, HashChain
from cachemodel.block_pool import BlockPool
from simulator.config import SimulatorConfig
from simulator.images import Span, name_images
from simulator.metrics import EngineMetrics, RankMetrics
from simulator.scheduler import EngineRequest, Scheduler, Step, Token
from simulator.vocabulary import Vocabulary

# vLLM's balancer: waiting requests weigh more on a rank whose cache is more than half in use.
_PRESSURE_WEIGHT = 6.0
_PRESSURE_FROM = 0.5


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt to complete: token ids of shape (n,), images in it, and what salts its hashes."""

    token_ids: npt.NDArray[np.int32]
    extra_keys: ExtraKeys = ()
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Emission:
    """One token of the sequence `index` (prompt times n, plus the choice); `last` ends the sequence."""

    index: int
    token_id: int
    last: bool
    cached_tokens: int


@dataclass(eq=False, slots=True)
class _Choices:
    """The n sequences of one prompt: the engine counts them together when the last one ends."""

    n: int
    left: int
    longest: int = 0


@dataclass(eq=False, slots=True)
class _Sequence:
    request: EngineRequest
    index: int
    choices: _Choices
    deliver: Callable[[Emission], None]
    arrived: float
    scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0


class Rank:
    """One data-parallel rank: a scheduler, and a task that runs its steps one after another."""

    def __init__(self, config: SimulatorConfig) -> None:
        self.pool = BlockPool(config.blocks_per_rank, config.block_size, enable_caching=config.prefix_caching)
        self.scheduler = Scheduler(
            self.pool,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_seqs=config.max_num_seqs,
        )
        self.metrics: RankMetrics
        self._config = config
        self._sequences: dict[int, _Sequence] = {}
        self._work = asyncio.Event()

    @property
    def load(self) -> float:
        """What the balancer compares."""
        waiting = self.scheduler.waiting
        return len(self._sequences) + waiting * _PRESSURE_WEIGHT * max(0.0, self.pool.usage - _PRESSURE_FROM)

    def add(self, sequence: _Sequence) -> None:
        self._sequences[sequence.request.request_id] = sequence
        self.scheduler.add(sequence.request)
        self._work.set()

    def abort(self, request: EngineRequest) -> None:
        # The real engine counts an aborted request in none of the per-request metrics.
        if self._sequences.pop(request.request_id, None) is not None:
            self.scheduler.abort(request)

    def reset(self, *, reset_running: bool) -> bool:
        if reset_running:
            self.metrics.preemptions.inc(self.scheduler.preempt_all())
        return self.pool.reset()

    async def run(self) -> None:
        """Run steps for ever, each as long as the configured rates say."""
        clock = time.perf_counter()
        while True:
            if not self._sequences:
                self._work.clear()
                await self._work.wait()
            clock = max(clock, time.perf_counter() - 0.05) if self.scheduler.running else time.perf_counter()
            step = self.scheduler.schedule()
            self._count_admissions(step)
            # Steps end on a grid of their own, so that the loop's lateness does not add up.
            clock += self._config.step_seconds(step.prefill_tokens, step.decoding)
            await asyncio.sleep(max(0.0, clock - time.perf_counter()))
            self._emit(self.scheduler.complete(step))

    def _count_admissions(self, step: Step) -> None:
        now = time.perf_counter()
        if step.preempted:
            self.metrics.preemptions.inc(step.preempted)
        for request in step.admitted:
            self._sequences[request.request_id].scheduled = now
            hits = request.cached_tokens or 0
            if self._config.prefix_caching:
                self.metrics.queries.inc(request.prompt_tokens)
                self.metrics.hits.inc(hits)
                self.metrics.device_hits.inc(hits)

    def _emit(self, tokens: Sequence[Token]) -> None:
        if not tokens:
            return
        now = time.perf_counter()
        metrics = self.metrics
        metrics.generation_tokens.inc(len(tokens))
        computed = 0
        for token in tokens:
            request = token.request
            sequence = self._sequences[request.request_id]
            cached = request.cached_tokens or 0
            if request.generated_tokens == 1:
                computed += request.prompt_tokens - cached
                metrics.prompt_tokens.inc(request.prompt_tokens)
                metrics.computed.inc(request.prompt_tokens - cached)
                metrics.cached.inc(cached)
                metrics.cached_total.inc(cached)
                metrics.first_token.observe(now - sequence.arrived)
                sequence.first_token = now
            else:
                metrics.between_tokens.observe(now - sequence.last_token)
            sequence.last_token = now
            if token.last:
                del self._sequences[request.request_id]
                self._count_finished(sequence, cached)
            sequence.deliver(Emission(sequence.index, token.token_id, token.last, cached))
        metrics.step_tokens.observe(computed + len(tokens))

    def _count_finished(self, sequence: _Sequence, cached: int) -> None:
        metrics, request, choices = self.metrics, sequence.request, sequence.choices
        metrics.finished.inc()
        metrics.request_prompt.observe(request.prompt_tokens)
        metrics.request_generation.observe(request.generated_tokens)
        metrics.request_computed.observe(request.prompt_tokens - cached)
        metrics.request_preemptions.observe(request.preemptions)
        metrics.params_max_tokens.observe(request.max_tokens)
        metrics.end_to_end.observe(sequence.last_token - sequence.arrived)
        metrics.queue_time.observe(sequence.scheduled - sequence.arrived)
        metrics.inference_time.observe(sequence.last_token - sequence.scheduled)
        metrics.prefill_time.observe(sequence.first_token - sequence.scheduled)
        decode_time = sequence.last_token - sequence.first_token
        metrics.decode_time.observe(decode_time)
        metrics.per_output_token.observe(decode_time / max(1, request.generated_tokens - 1))
        choices.left -= 1
        choices.longest = max(choices.longest, request.generated_tokens)
        if not choices.left:
            metrics.longest_generation.observe(choices.longest)
            metrics.params_n.observe(choices.n)


@dataclass(eq=False, slots=True)
class Submission:
    """Requests in flight for one call; `abort` takes back what is not done."""

    _owners: list[tuple[Rank, EngineRequest]] = field(default_factory=list)

    def abort(self) -> None:
        for rank, request in self._owners:
            rank.abort(request)


class Engine:
    """All ranks, and the balancer in front of them."""

    def __init__(self, config: SimulatorConfig, vocabulary: Vocabulary) -> None:
        self.config = config
        self.vocabulary = vocabulary
        self.ranks = [Rank(config) for _ in range(config.ranks)]
        self.metrics = EngineMetrics(
            config,
            [
                (
                    lambda rank=rank: rank.scheduler.running,  # type: ignore[misc]
                    lambda rank=rank: rank.scheduler.waiting,  # type: ignore[misc]
                    lambda rank=rank: rank.pool.usage,  # type: ignore[misc]
                )
                for rank in self.ranks
            ],
        )
        for rank, metrics in zip(self.ranks, self.metrics.ranks, strict=True):
            rank.metrics = metrics
        self._scan_from = 0
        self._ids = count()
        self._processed_images: set[bytes] = set()

    async def run(self) -> None:
        """Run all ranks until cancelled."""
        async with asyncio.TaskGroup() as group:
            for rank in self.ranks:
                group.create_task(rank.run())

    def submit(
        self,
        prompts: Sequence[Prompt],
        *,
        n: int,
        max_tokens: Sequence[int],
        rank: int | None,
        deliver: Callable[[Emission], None],
    ) -> Submission:
        """Start `n` sequences for each prompt, of `max_tokens[i]` tokens for the i-th.

        `deliver` is called from the event loop with every token. A rank that is given must exist.
        """
        submission = Submission()
        arrived = time.perf_counter()
        for number, (prompt, length) in enumerate(zip(prompts, max_tokens, strict=True)):
            choices = _Choices(n, n)
            for choice in range(n):
                chain = HashChain(self.config.block_size, prompt.extra_keys)
                named = name_images(prompt.token_ids, prompt.spans)
                chain.extend(named)
                request = EngineRequest(
                    next(self._ids),
                    len(prompt.token_ids),
                    chain,
                    length,
                    self.vocabulary.answer_to(named),
                )
                owner = self.ranks[self._least_loaded() if rank is None else rank]
                if choice == 0:
                    self._look_up_images(prompt.spans, owner)
                owner.add(_Sequence(request, number * n + choice, choices, deliver, arrived))
                submission._owners.append((owner, request))
        return submission

    def _look_up_images(self, spans: tuple[Span, ...], owner: Rank) -> None:
        """The front end keeps processed images, for all ranks; vLLM shows what it finds at the rank that answers."""
        for span in spans:
            owner.metrics.mm_queries.inc()
            owner.metrics.mm_hits.inc(span.image.identity in self._processed_images)
            self._processed_images.add(span.image.identity)

    def reset_images(self) -> None:
        """Forget the processed images."""
        self._processed_images.clear()

    def reset(self, *, reset_running: bool) -> bool:
        """Forget the cached blocks of every rank; False when one of them still holds blocks."""
        done = [rank.reset(reset_running=reset_running) for rank in self.ranks]
        return all(done)

    def _least_loaded(self) -> int:
        """The rank vLLM's balancer takes: least load, ties going round."""
        total = len(self.ranks)
        order = [(self._scan_from + offset) % total for offset in range(total)]
        self._scan_from = (self._scan_from + 1) % total
        return min(order, key=lambda index: self.ranks[index].load)
