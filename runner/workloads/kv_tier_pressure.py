"""kv-tier-pressure: requests draw documents from a pool that is larger than a cache tier.

What one request costs and how large the pool is are set apart, so that the working set can be any multiple of the tier.
The warm phase sends every document once; the measured one draws them, evenly or with a Zipf skew.
"""

import math
import random
from typing import Annotated

from pydantic import Field

from contract.errors import ScenarioError
from contract.options import Unit
from runner.workloads.plan import (
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


class KvTierPressure(Parameters):
    ktp_overflow_factor: Annotated[
        float,
        Field(
            gt=0,
            allow_inf_nan=False,
            description="pool as a multiple of LMCache's L1 (without --lmcache-url: of the engine's own cache); not used "
            "with --ktp-pool-size",
        ),
    ] = 2.0
    ktp_pool_size: Annotated[
        int | None,
        Unit("DOCUMENTS"),
        Field(ge=1, description="documents in the pool; default: by the overflow factor"),
    ] = None
    ktp_docs_per_request: Annotated[int, Field(ge=1, description="documents of each request")] = 16
    ktp_context_length: Annotated[int, Unit("TOKENS"), Field(ge=1, description="tokens of each document")] = (
        2560
    )
    ktp_system_prompt_length: Annotated[
        int, Unit("TOKENS"), Field(ge=0, description="tokens of the shared system prompt; 0: none")
    ] = 256
    ktp_num_requests: Annotated[int, Field(ge=1, description="measured requests")] = 200
    ktp_access_skew: Annotated[
        float,
        Field(
            ge=0,
            allow_inf_nan=False,
            description="exponent of the Zipf law documents are drawn by; 0: evenly",
        ),
    ] = 0.0
    ktp_num_inflight_requests: Annotated[int, Field(ge=1, description="most requests in flight")] = 8
    ktp_max_output_length: Annotated[
        int, Unit("TOKENS"), Field(ge=1, description="most tokens of each answer")
    ] = 1


def plan(parameters: KvTierPressure, resources: Resources) -> Plan:
    pool, each = _pool_size(parameters, resources), parameters.ktp_docs_per_request
    if each > pool:
        raise ScenarioError(
            f"--ktp-docs-per-request {each}: the pool has only {pool} documents; ask for fewer or for a larger pool"
        )
    system = Words("kv-tier-pressure/system", parameters.ktp_system_prompt_length)
    front = (system,) if system.tokens else ()

    def request(name: str, documents: list[int], max_tokens: int) -> Request:
        texts = [Words(f"kv-tier-pressure/document/{i}", parameters.ktp_context_length) for i in documents]
        return Request(name, (Message("user", (*front, *texts)),), max_tokens, group=f"doc{documents[0]}")

    # The last request of the sweep is filled up from the beginning: every request has the same length.
    sweep = [
        request(f"warmup_sweep{start // each}", [i % pool for i in range(start, start + each)], 1)
        for start in range(0, pool, each)
    ]
    draws = drawn_documents(parameters, pool, resources.seed)
    measured = [
        request(f"req{number}", documents, parameters.ktp_max_output_length)
        for number, documents in enumerate(draws)
    ]
    pace = InFlight(parameters.ktp_num_inflight_requests)
    facts: dict[str, int | float | str] = {
        "Documents in the pool": pool,
        "Working set (tokens)": pool * parameters.ktp_context_length,
    }
    notes: list[str] = []
    if resources.tier_tokens:
        overflow = pool * parameters.ktp_context_length / resources.tier_tokens
        facts["Tier to overflow (tokens)"] = resources.tier_tokens
        facts["Overflow (x)"] = round(overflow, 3)
        if overflow <= 1:
            notes.append(
                f"the pool fills {overflow:.2f} of the tier: nothing overflows, and all of it may stay there; a larger "
                "--ktp-pool-size or --ktp-overflow-factor overflows it"
            )
    return Plan(
        phases=(Phase("sweep over the pool", False, sweep, pace), Phase("draws", True, measured, pace)),
        facts=facts,
        notes=tuple(notes),
        needs_blend=each > 1,
    )


def _pool_size(parameters: KvTierPressure, resources: Resources) -> int:
    if parameters.ktp_pool_size is not None:
        return parameters.ktp_pool_size
    if resources.tier_tokens is None:
        raise ScenarioError(
            "kv-tier-pressure: neither --lmcache-url nor the engine's metrics tell how large the cache is; "
            "give --ktp-pool-size"
        )
    return math.ceil(parameters.ktp_overflow_factor * resources.tier_tokens / parameters.ktp_context_length)


def drawn_documents(parameters: KvTierPressure, pool: int, seed: int) -> list[list[int]]:
    """Documents of each measured request, without repetition, document r with weight 1 / (r + 1)^skew."""
    rng = random.Random(seed)
    weights = [(rank + 1) ** -parameters.ktp_access_skew for rank in range(pool)]

    def draw() -> list[int]:
        # Weighted draws without replacement are the order of exponential waiting times (Efraimidis and Spirakis, 2006).
        waits = [rng.expovariate(1.0) / weight for weight in weights]
        return sorted(range(pool), key=waits.__getitem__)[: parameters.ktp_docs_per_request]

    return [draw() for _ in range(parameters.ktp_num_requests)]


KV_TIER_PRESSURE = Workload(
    name="kv-tier-pressure",
    title="Documents drawn from a pool larger than a cache tier",
    prefix="ktp_",
    parameters=KvTierPressure,
    plan=plan,
    needs_tokenizer=True,
)
