"""What is asked of `hitlab bench server`, checked before anything is opened."""

import math
from dataclasses import dataclass
from typing import Literal

from contract.errors import ScenarioError

DEFAULT_SPEC = "(2,1024,16,8,128):float16:32"
DEFAULT_URL = "http://localhost:8080"
RETRIEVE_SET = 8
"""Sequences that a retrieve phase goes round where `end` names none."""

Phase = Literal["pair", "store", "retrieve"]


@dataclass(frozen=True)
class ServerParameters:
    """`end` None runs until interrupted, unless `duration` (seconds) ends it. `seed` is drawn anew by every run."""

    rpc_url: str = "tcp://localhost:5555"
    url: str | None = None
    """HTTP API; None: the default address, and its absence is no error."""
    mode: Literal["gpu", "cpu"] = "gpu"
    transfer_mode: Literal["auto", "engine_driven", "lmcache_driven"] = "auto"
    tp_size: int = 1
    use_mla: bool = False
    num_tokens: int = 512
    num_blocks: int = 1024
    block_size: int = 16
    kvcache_shape_spec: str = DEFAULT_SPEC
    start: int = 0
    end: int | None = None
    interval: float = 0.5
    concurrency: int = 1
    block_allocation: Literal["sequential", "random"] = "sequential"
    """Which blocks a sequence is stored from: behind one another, or drawn."""
    phase: Phase = "pair"
    duration: float | None = None
    warmup: int = 1
    """Sequences per client that are run and checked before the clock starts."""
    timeout: float = 10.0
    keep: bool = False
    seed: int = 0

    @property
    def engine_driven(self) -> bool:
        """Who copies: the worker (engine-driven) or the server (LMCache-driven)."""
        return self.transfer_mode == "engine_driven" or (self.transfer_mode == "auto" and self.mode == "cpu")

    @property
    def resolved_transfer_mode(self) -> str:
        return "engine_driven" if self.engine_driven else "lmcache_driven"

    @property
    def bounded(self) -> bool:
        return self.end is not None or self.duration is not None


def checked(parameters: ServerParameters) -> ServerParameters:
    """The same parameters. Raises ScenarioError with one line per problem."""
    p = parameters
    problems = [
        f"{option} {value}: must be at least {least}"
        for option, value, least in (
            ("--tp-size", p.tp_size, 1),
            ("--num-tokens", p.num_tokens, 1),
            ("--num-blocks", p.num_blocks, 1),
            ("--block-size", p.block_size, 1),
            ("--concurrency", p.concurrency, 1),
            ("--start", p.start, 0),
            ("--warmup", p.warmup, 0),
        )
        if value < least
    ]
    for option, value in (("--timeout", p.timeout), ("--duration", p.duration)):
        if value is not None and not 0 < value < math.inf:
            problems.append(f"{option} {value:g}: must be more than 0 and finite")
    if not 0 <= p.interval < math.inf:
        problems.append(f"--interval {p.interval:g}: must be 0 or more and finite")
    if p.end is not None and p.end <= p.start:
        problems.append(f"--end {p.end}: must be more than --start {p.start}")
    for word, allowed, option in (
        (p.mode, ("gpu", "cpu"), "--mode"),
        (p.transfer_mode, ("auto", "engine_driven", "lmcache_driven"), "--transfer-mode"),
        (p.block_allocation, ("sequential", "random"), "--block-allocation"),
        (p.phase, ("pair", "store", "retrieve"), "--phase"),
    ):
        if word not in allowed:
            problems.append(f"{option} {word}: must be one of {', '.join(allowed)}")
    if problems:
        raise ScenarioError("\n".join(problems))
    return parameters
