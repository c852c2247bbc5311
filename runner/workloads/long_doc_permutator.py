"""long-doc-permutator: the same documents behind one another in many different orders.

A prefix cache finds the system prompt and what two orders have in common at their beginning; a cache that reuses
documents wherever they stand finds all of them.
"""

import itertools
import math
import random
from typing import Annotated

from pydantic import Field

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

MOST_LISTED = 10
"""Beyond this many orders per wanted one they are drawn; up to it the first in lexicographic order are taken."""


class LongDocPermutator(Parameters):
    ldp_num_contexts: Annotated[int, Field(ge=1, description="different documents")] = 5
    ldp_context_length: Annotated[int, Unit("TOKENS"), Field(ge=1, description="tokens of each document")] = (
        5000
    )
    ldp_system_prompt_length: Annotated[
        int, Unit("TOKENS"), Field(ge=0, description="tokens of the shared system prompt; 0: none")
    ] = 1000
    ldp_num_permutations: Annotated[
        int, Field(ge=1, description="different orders to send; at most the factorial of the documents")
    ] = 10
    ldp_num_inflight_requests: Annotated[int, Field(ge=1, description="most requests in flight")] = 1
    ldp_max_output_length: Annotated[
        int, Unit("TOKENS"), Field(ge=1, description="most tokens of each answer; 1: prefill alone")
    ] = 128


def plan(parameters: LongDocPermutator, resources: Resources) -> Plan:
    orders = permutations(parameters.ldp_num_contexts, parameters.ldp_num_permutations, resources.seed)
    system = Words("long-doc-permutator/system", parameters.ldp_system_prompt_length)
    front = (system,) if system.tokens else ()
    documents = [
        Words(f"long-doc-permutator/document/{i}", parameters.ldp_context_length)
        for i in range(parameters.ldp_num_contexts)
    ]
    requests = [
        Request(
            f"perm{number}_req{number}",
            (Message("user", (*front, *(documents[i] for i in order))),),
            parameters.ldp_max_output_length,
            group="-".join(map(str, order)),
        )
        for number, order in enumerate(orders)
    ]
    hello = Request(
        "warmup_dummy", (Message("user", (Words("long-doc-permutator/dummy", 500),)),), 1, group="dummy"
    )
    return Plan(
        phases=(
            Phase("one dummy request", False, [hello], InFlight(1)),
            Phase("permutations", True, requests, InFlight(parameters.ldp_num_inflight_requests)),
        ),
        facts={
            "Documents": parameters.ldp_num_contexts,
            "Permutations": len(orders),
            "Working set (tokens)": system.tokens
            + parameters.ldp_num_contexts * parameters.ldp_context_length,
        },
    )


def permutations(items: int, wanted: int, seed: int) -> list[tuple[int, ...]]:
    """Different orders of `items` things: all of them, the first ones, or a random set in lexicographic order."""
    total = math.factorial(items)
    if total <= wanted * MOST_LISTED:
        return list(itertools.islice(itertools.permutations(range(items)), min(wanted, total)))
    rng = random.Random(seed)
    chosen: set[tuple[int, ...]] = set()
    while len(chosen) < wanted:
        chosen.add(tuple(rng.sample(range(items), items)))
    return sorted(chosen)


LONG_DOC_PERMUTATOR = Workload(
    name="long-doc-permutator",
    title="Permutations of context documents",
    prefix="ldp_",
    parameters=LongDocPermutator,
    plan=plan,
    needs_tokenizer=True,
)
