"""How planning grows with the number of requests: `.venv-dev/bin/python -m benchmarks.planning`.

Prints seconds for 10,000 requests of 8,192 tokens, and how much longer ten times as many take (10 = linear).
"""

import time
from typing import Any

from contract.scenario import parse_scenario
from generator.plan.plan import build_plan

CASES: dict[str, dict[str, Any]] = {
    "warmup, fixed 8192": {"mode": "warmup"},
    "cold, fixed 8192, 4 groups x 2 ranks": {"mode": "cold", "groups": {"count": 4}},
    "cold, mixed 512..16384, ascending": {
        "mode": "cold",
        "groups": {"count": 4, "assignment": {"mode": "zipf"}},
        "order": {"strategy": "input_len_asc"},
    },
}
MIXED = {"mode": "truncated_normal", "min": 512, "max": 16384}
FIXED = {"mode": "fixed", "value": 8192}


def seconds(count: int, name: str, prefix_cache: dict[str, Any]) -> float:
    scenario = parse_scenario(
        {
            "requests": {"count": count, "input_length": MIXED if "mixed" in name else FIXED},
            "prefix_cache": prefix_cache,
        }
    )
    begun = time.perf_counter()
    build_plan(scenario)
    return time.perf_counter() - begun


def main() -> None:
    for name, prefix_cache in CASES.items():
        few, many = (seconds(count, name, prefix_cache) for count in (10_000, 100_000))
        print(
            f"{name}: 10,000 requests in {few:.2f} s; ten times as many take {many / few:.1f} times as long"
        )


if __name__ == "__main__":
    main()
