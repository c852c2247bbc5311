"""Continuous batching on one rank, in steps and without a clock.

The order of things is vLLM's: running requests first, in the order they were admitted; when the pool is exhausted
the youngest of them is preempted; then waiting requests are admitted first come, first served, until one does not fit.
Whatever has slots counts as cached at once, before it is computed.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from cachemodel.block_hashes import HashChain
from cachemodel.block_pool import BlockPool


@dataclass(eq=False, slots=True)
class EngineRequest:
    """One sequence on its way through a rank.

    Attributes:
        prompt_tokens: prompt length.
        chain: hash chain over the prompt and, while decoding, the answer.
        max_tokens: answer length, at least 1; prompt and answer fit the pool.
        answer: gives the n-th token of the answer.
        cached_tokens: prompt tokens found in the cache at the first admission; None before it.
    """

    request_id: int
    prompt_tokens: int
    chain: HashChain
    max_tokens: int
    answer: Callable[[int], int]
    cached_tokens: int | None = None
    computed_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0


@dataclass(slots=True)
class Step:
    """What one step computes.

    Attributes:
        chunks: each request with the number of its preemptions so far, which tells whether it was preempted
            while the step ran.
        admitted: requests admitted for the first time, with their hits in `cached_tokens`.
    """

    chunks: list[tuple[EngineRequest, int]] = field(default_factory=list)
    admitted: list[EngineRequest] = field(default_factory=list)
    prefill_tokens: int = 0
    decoding: bool = False
    preempted: int = 0


@dataclass(frozen=True, slots=True)
class Token:
    """One token that a step produced; `last` says that the request is done."""

    request: EngineRequest
    token_id: int
    last: bool


class Scheduler:
    """The requests of one rank: `schedule` starts a step, `complete` ends it."""

    def __init__(self, pool: BlockPool, *, max_num_batched_tokens: int, max_num_seqs: int) -> None:
        self.pool = pool
        self._budget = max_num_batched_tokens
        self._max_running = max_num_seqs
        self._waiting: deque[EngineRequest] = deque()
        # Insertion order is the order of admission.
        self._running: dict[int, EngineRequest] = {}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    def add(self, request: EngineRequest) -> None:
        self._waiting.append(request)

    def abort(self, request: EngineRequest) -> None:
        """Forget a request and free its blocks; nothing happens when it is done already."""
        if self._running.pop(request.request_id, None) is not None:
            self.pool.finish(request.request_id)
        elif request in self._waiting:
            self._waiting.remove(request)

    def preempt_all(self) -> int:
        """Send every running request back to the queue, in order; returns how many."""
        running = list(self._running.values())
        for request in reversed(running):
            self._preempt(request)
        return len(running)

    def schedule(self) -> Step:
        """Decide what the next step computes and give it slots."""
        step = Step()
        budget = self._continue_running(step, self._budget)
        if not step.preempted:
            self._admit_waiting(step, budget)
        return step

    def complete(self, step: Step) -> list[Token]:
        """End a step: requests whose tokens are all computed get their next one."""
        tokens = []
        for request, preemptions in step.chunks:
            if request.preemptions != preemptions or request.request_id not in self._running:
                continue
            if request.computed_tokens < request.chain.token_count:
                continue
            token_id = request.answer(request.generated_tokens)
            request.generated_tokens += 1
            last = request.generated_tokens == request.max_tokens
            if last:
                # The last token is never computed, so it takes no slot and enters no block.
                del self._running[request.request_id]
                self.pool.finish(request.request_id)
            else:
                request.chain.append(token_id)
            tokens.append(Token(request, token_id, last))
        return tokens

    def _continue_running(self, step: Step, budget: int) -> int:
        for request in list(self._running.values()):
            if budget == 0:
                break
            if request.request_id not in self._running:
                continue
            tokens = min(request.chain.token_count - request.computed_tokens, budget)
            while not self.pool.extend(request.request_id, request.computed_tokens + tokens):
                youngest = next(reversed(self._running.values()))
                self._preempt(youngest)
                step.preempted += 1
                if youngest is request:
                    return budget
            self._compute(step, request, tokens)
            budget -= tokens
        return budget

    def _admit_waiting(self, step: Step, budget: int) -> None:
        while self._waiting and budget and len(self._running) < self._max_running:
            request = self._waiting[0]
            admission = self.pool.admit(request.request_id, request.chain, budget)
            if admission is None:
                return
            self._waiting.popleft()
            self._running[request.request_id] = request
            request.computed_tokens = admission.cached_tokens
            if request.cached_tokens is None:
                request.cached_tokens = admission.cached_tokens
                step.admitted.append(request)
            tokens = admission.computed_tokens - admission.cached_tokens
            self._compute(step, request, tokens)
            budget -= tokens

    def _compute(self, step: Step, request: EngineRequest, tokens: int) -> None:
        if request.generated_tokens and tokens == 1:
            step.decoding = True
        else:
            step.prefill_tokens += tokens
        request.computed_tokens += tokens
        step.chunks.append((request, request.preemptions))

    def _preempt(self, request: EngineRequest) -> None:
        del self._running[request.request_id]
        self.pool.finish(request.request_id)
        request.computed_tokens = 0
        request.preemptions += 1
        self._waiting.appendleft(request)
