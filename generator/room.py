"""Is there room for a plan and its data? Asked before they are made, of sizes that they have at least.

What is refused here cannot fit; what passes may still turn out too large, and then the write fails with its own line.
"""

import resource
import shutil
from pathlib import Path

from contract.errors import ArtifactError, ScenarioError
from contract.files import read_text
from contract.scenario import Scenario
from contract.scenario.model import InputLength

PLAN_BYTES = {"warmup": 170, "cold": 850}
"""Memory of a plan for each request, as measured (`benchmarks/planning.py`); cold plans have up to 1,100."""

TEXT_BYTES_PER_TOKEN = 1
"""Tokenizers of bytes have so few, English has 4 to 5; every text stands in full.jsonl and in requests.jsonl."""

TOKEN_ID_BYTES = 4
ROW_BYTES = 800
"""Of a row's other keys, in full.jsonl."""

LONG_PLAN = 10_000
"""A plan of so many requests may take seconds, with thousands of lanes minutes: what goes on is said before it."""

_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def check_memory(scenario: Scenario) -> None:
    """Raises ScenarioError where the plan of so many requests does not fit the memory that is available."""
    count, free = scenario.requests.count, available_memory()
    needed = count * PLAN_BYTES[scenario.prefix_cache.mode]
    if free is not None and needed > free:
        raise ScenarioError(
            f"requests.count: a plan of {count:,} requests takes about {_size(needed)} of memory, and "
            f"{_size(free)} are available; use fewer requests or more memory"
        )


def check_disk(scenario: Scenario, total_tokens: int) -> None:
    """Raises ArtifactError where the data of that many input tokens does not fit the disk of run.output_dir."""
    count = scenario.requests.count
    needed = count * ROW_BYTES + total_tokens * (2 * TEXT_BYTES_PER_TOKEN + TOKEN_ID_BYTES)
    folder = _existing(Path(scenario.run.output_dir))
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ArtifactError(
            f"requests.count: the data of {count:,} requests with at least {total_tokens:,} input tokens takes at least "
            f"{_size(needed)}, and {folder} has {_size(free)} free; use fewer or shorter requests, or "
            "another run.output_dir"
        )


def _size(bytes_: int) -> str:
    unit, name = next(((unit, name) for unit, name in _UNITS if bytes_ >= unit), _UNITS[-1])
    return f"{bytes_ / unit:,.1f} {name}"


def least_tokens(scenario: Scenario) -> int:
    """Input tokens that the requests have at least, before any is drawn."""
    lengths = [scenario.requests.input_length] + [
        override.input_length
        for override in scenario.prefix_cache.groups.overrides.values()
        if override.input_length is not None
    ]
    return scenario.requests.count * min(map(_shortest, lengths))


def _shortest(length: InputLength) -> int:
    if length.mode == "fixed":
        return length.value
    if length.mode == "truncated_normal" and length.min is not None:
        return length.min
    return 1  # modes that list their lengths; what they add up to is known when they have been read


def available_memory() -> int | None:
    """Bytes this process may still take: of the machine, its control group and its own limit; None: not known."""
    known = [bytes_ for bytes_ in (_of_machine(), _of_control_group(), _of_limit()) if bytes_ is not None]
    return max(0, min(known)) if known else None


def _of_machine() -> int | None:
    for line in _lines(Path("/proc/meminfo")):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _of_control_group(folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What files leave in the cache counts as used there, and is given up when memory is wanted."""
    limit, used, details = (_lines(folder / name) for name in ("memory.max", "memory.current", "memory.stat"))
    if not limit or not used or not limit[0].isdigit():
        return None
    cached = sum(
        int(line.split()[1]) for line in details if line.startswith(("active_file ", "inactive_file "))
    )
    return int(limit[0]) - int(used[0]) + cached


def _of_limit() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    in_use = _lines(Path("/proc/self/statm"))
    if limit == resource.RLIM_INFINITY or not in_use:
        return None
    return limit - int(in_use[0].split()[0]) * resource.getpagesize()


def _lines(path: Path) -> list[str]:
    """Of a file of the kernel; none where this system does not have it."""
    try:
        return read_text(path).splitlines()
    except OSError:
        return []


def _existing(folder: Path) -> Path:
    """The nearest folder above that exists."""
    folder = folder.absolute()
    return next(one for one in (folder, *folder.parents) if one.is_dir())
