"""What is asked of `hitlab bench l2`, checked before anything is opened."""

import math
from dataclasses import dataclass
from typing import Literal

from contract.errors import ScenarioError

Only = Literal["store", "lookup", "load", "mixed"]
MAX_ARENA_BYTES = 64 << 30


@dataclass(frozen=True)
class L2Parameters:
    """`data_size_kb` (KiB) and `in_flight` are axes of a matrix: every pair of them is a cell of its own.

    `seed` decides names and data of all objects. A run of all operations draws a fresh one, so that nothing from an
    earlier run can be taken for its own; with `only` it is 0 unless given, so that runs meet the same objects.
    """

    num_keys: int = 32
    in_flight: tuple[int, ...] = (1,)
    data_size_kb: tuple[int, ...] = (256,)
    l1_align_bytes: int = 1
    l1_use_hugepages: bool = False
    rounds: int = 1
    warmup_rounds: int = 1
    lookup_max_hit_rate: float = 0.0
    skip_verify: bool = False
    only: Only | None = None
    mixed: float | None = None
    """Share of loads among the tasks of a mixed round; None: no mixed rounds."""
    page_cache: Literal["keep", "drop"] = "keep"
    task_timeout: float = 30.0
    deadline: float = 3600.0
    continue_after_timeout: bool = False
    keep: bool = False
    clean: bool = False
    seed: int = 0

    @property
    def operations(self) -> tuple[str, ...]:
        if self.only is not None:
            return (self.only,)
        return ("store", "lookup", "load") + (("mixed",) if self.mixed is not None else ())

    @property
    def total_rounds(self) -> int:
        return self.warmup_rounds + self.rounds


def checked(parameters: L2Parameters) -> L2Parameters:
    """The same parameters. Raises ScenarioError with one line per problem."""
    p = parameters
    problems = [
        f"{option} {value}: must be at least {least}"
        for option, value, least in (
            ("--num-keys", p.num_keys, 1),
            ("--rounds", p.rounds, 1),
            ("--warmup-rounds", p.warmup_rounds, 0),
            ("--l1-align-bytes", p.l1_align_bytes, 1),
            ("--seed", p.seed, 0),
            *(("--in-flight", depth, 1) for depth in p.in_flight),
            *(("--data-size-kb", size, 1) for size in p.data_size_kb),
        )
        if value < least
    ]
    problems += [
        f"{option} {value:g}: must be more than 0 and finite"
        for option, value in (("--task-timeout", p.task_timeout), ("--deadline", p.deadline))
        if not (0 < value < math.inf)
    ]
    if not 0 <= p.lookup_max_hit_rate <= 1:
        problems.append(f"--lookup-max-hit-rate {p.lookup_max_hit_rate:g}: must be between 0 and 1")
    if p.l1_align_bytes > 1:
        problems += [
            f"--l1-align-bytes {p.l1_align_bytes}: {size} KiB per key is not a multiple of it"
            for size in p.data_size_kb
            if size * 1024 % p.l1_align_bytes
        ]
    share = 0.5 if p.mixed is None and p.only == "mixed" else p.mixed
    if share is not None:
        problems += [
            f"--mixed {share:g}: with --in-flight {depth} it leaves no task for "
            f"{'loads' if round(depth * share) < 1 else 'stores'}"
            for depth in p.in_flight
            if not 1 <= round(depth * share) < depth
        ]
    if p.keep and p.only is not None:
        problems.append(f"--keep: --only {p.only} keeps its objects anyway; --clean removes them")
    if not problems:
        largest = max(p.data_size_kb) * 1024 * max(p.in_flight) * p.num_keys * 2
        if largest > MAX_ARENA_BYTES:
            problems.append(
                f"--num-keys x --in-flight x --data-size-kb: {largest / 2**30:.0f} GiB of buffers are more than "
                f"{MAX_ARENA_BYTES >> 30} GiB"
            )
    if problems:
        raise ScenarioError("\n".join(problems))
    return parameters
