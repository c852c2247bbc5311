"""prefix-suffix-tuner: a pool of prefixes just larger than a cache tier, sent twice in the same order.

With LRU the second pass finds nothing in the tier that overflows, and everything in the tier below. Each request is
[prefix][breaker, new in each request][suffix, the same in all]: the breaker ends what a prefix cache can find, so only a
cache that reuses text wherever it stands finds the suffix.
"""

import random
from typing import Annotated

from pydantic import Field, model_validator

from contract.errors import ScenarioError
from contract.options import Unit
from runner.workloads.plan import (
    Fixed,
    InFlight,
    Message,
    Parameters,
    Phase,
    Plan,
    Request,
    Resources,
    Words,
    Workload,
)

BREAKER_TOKENS = 32
FEWEST_SUFFIX_TOKENS = 100
OVERFLOW = 1.05
PAUSE_SECONDS = 5.0
"""LMCache evicts in a loop of its own, once a second; a fast pass would otherwise be over before it does."""


class PrefixSuffixTuner(Parameters):
    psf_context_length: Annotated[
        int, Unit("TOKENS"), Field(ge=1, description="tokens of each request: prefix, breaker, suffix")
    ] = 8000
    psf_prefix_ratio: Annotated[
        float, Field(gt=0, lt=1, description="share of the prefix in it, between 0 and 1")
    ] = 0.8
    psf_thrash: Annotated[
        float,
        Unit("GB"),
        Field(gt=0, allow_inf_nan=False, description="size of the cache tier to overflow, GB"),
    ] = 20.0

    @property
    def prefix_tokens(self) -> int:
        return round(self.psf_context_length * self.psf_prefix_ratio)

    @property
    def suffix_tokens(self) -> int:
        return self.psf_context_length - self.prefix_tokens - BREAKER_TOKENS

    @model_validator(mode="after")
    def _room_for_a_suffix(self) -> "PrefixSuffixTuner":
        if self.suffix_tokens < FEWEST_SUFFIX_TOKENS or self.prefix_tokens < 1:
            raise ValueError(
                f"psf_context_length {self.psf_context_length} and psf_prefix_ratio {self.psf_prefix_ratio:g} leave "
                f"{self.suffix_tokens} tokens for the suffix; it needs {FEWEST_SUFFIX_TOKENS}"
            )
        return self


def plan(parameters: PrefixSuffixTuner, resources: Resources) -> Plan:
    if resources.tokens_per_gb is None:
        raise ScenarioError("prefix-suffix-tuner is sized by --tokens-per-gb-kvcache")
    tier = parameters.psf_thrash * resources.tokens_per_gb
    prefixes = max(1, int(tier * OVERFLOW / parameters.prefix_tokens))
    rng = random.Random(resources.seed)
    openings = rng.sample(range(1 << 32), prefixes)
    breakers = rng.sample(range(1 << 32), 2 * prefixes)
    suffix = Words("prefix-suffix-tuner/suffix", parameters.suffix_tokens, opening="SUFFIX")

    def request(pass_number: int, i: int) -> Request:
        number = (pass_number - 1) * prefixes + i
        parts = (
            Words(f"prefix-suffix-tuner/prefix/{i}", parameters.prefix_tokens, f"PREFIX_{openings[i]:08x}"),
            Words(f"prefix-suffix-tuner/breaker/{number}", BREAKER_TOKENS, f"BR_{breakers[number]:08x}"),
            suffix,
        )
        name = f"pass{pass_number}_p{i}"
        return Request(name, (Message("user", parts, separator=" "),), 1, group=f"prefix{i}")

    hello = Request("warmup_hello", (Message("user", (Fixed("Hello"),)),), 1, group="hello")
    return Plan(
        phases=(
            Phase("one request for the engine's first costs", False, [hello], InFlight(1)),
            Phase(
                "pass 1",
                False,
                [request(1, i) for i in range(prefixes)],
                InFlight(1),
                pause_after_seconds=PAUSE_SECONDS,
            ),
            Phase("pass 2", True, [request(2, i) for i in range(prefixes)], InFlight(1)),
        ),
        facts={
            "Prefixes": prefixes,
            "Prefix length (tokens)": parameters.prefix_tokens,
            "Suffix length (tokens)": parameters.suffix_tokens,
            "Tier to overflow (tokens)": round(tier),
            "Overflow by prefixes (x)": round(prefixes * parameters.prefix_tokens / tier, 3),
            "Overflow by whole requests (x)": round(prefixes * parameters.psf_context_length / tier, 3),
        },
        notes=_notes(prefixes, parameters, tier),
        meaningless_without_warmup=(
            "pass 2 measures what pass 1 left in the cache, and pass 1 was not sent: these numbers are not meaningful"
        ),
    )


def _notes(prefixes: int, parameters: PrefixSuffixTuner, tier: float) -> tuple[str, ...]:
    """Whole prefixes may fill less than the tier, above all when it holds few of them."""
    by_prefixes = prefixes * parameters.prefix_tokens / tier
    if by_prefixes > 1:
        return ()
    by_requests = prefixes * parameters.psf_context_length / tier
    what = (
        "nothing overflows, and pass 2 finds in it what pass 1 left"
        if by_requests <= 1
        else f"they overflow it only with breakers and suffixes ({by_requests:.2f} of it), which a cache may not keep"
    )
    return (
        f"the prefixes fill {by_prefixes:.2f} of the tier: {what}; a smaller --psf-context-length overflows it",
    )


PREFIX_SUFFIX_TUNER = Workload(
    name="prefix-suffix-tuner",
    title="Two-pass tiered KV-cache demonstrator",
    prefix="psf_",
    parameters=PrefixSuffixTuner,
    plan=plan,
    needs_size=True,
)
