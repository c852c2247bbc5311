"""long-doc-qa: the same long documents are asked about again and again."""

import random
from typing import Annotated, Literal

from pydantic import Field

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

QUESTIONS = (
    "What is this text about, in two sentences?",
    "Which detail of it would be missed if it were left out?",
    "Which words come up more often than others?",
    "How would you title it?",
)


class LongDocQa(Parameters):
    ldqa_document_length: Annotated[
        int, Unit("TOKENS"), Field(ge=1, description="tokens of each document")
    ] = 10000
    ldqa_query_per_document: Annotated[int, Field(ge=1, description="questions about each document")] = 2
    ldqa_shuffle_policy: Annotated[
        Literal["random", "tile"],
        Field(description="order: random, or tile (every document once per round of questions)"),
    ] = "random"
    ldqa_num_inflight_requests: Annotated[int, Field(ge=1, description="most requests in flight")] = 3
    ldqa_max_output_length: Annotated[
        int, Unit("TOKENS"), Field(ge=1, description="most tokens of each answer")
    ] = 128


def plan(parameters: LongDocQa, resources: Resources) -> Plan:
    documents = max(1, int(resources.volume_tokens() / parameters.ldqa_document_length))
    texts = [Words(f"long-doc-qa/document/{i}", parameters.ldqa_document_length) for i in range(documents)]
    order = [(d, q) for q in range(parameters.ldqa_query_per_document) for d in range(documents)]
    if parameters.ldqa_shuffle_policy == "random":
        random.Random(resources.seed).shuffle(order)
    asked = [
        Request(
            f"doc{d}_q{q}",
            (Message("user", (texts[d], Fixed(f"Question {q}: {QUESTIONS[q % len(QUESTIONS)]}"))),),
            parameters.ldqa_max_output_length,
            group=f"doc{d}",
        )
        for d, q in order
    ]
    prefilled = [
        Request(f"warmup_doc{d}", (Message("user", (text,)),), 1, group=f"doc{d}")
        for d, text in enumerate(texts)
    ]
    return Plan(
        phases=(
            Phase("prefill every document", False, prefilled, InFlight(1)),
            Phase("questions", True, asked, InFlight(parameters.ldqa_num_inflight_requests)),
        ),
        facts={"Documents": documents, "Document length (tokens)": parameters.ldqa_document_length},
    )


LONG_DOC_QA = Workload(
    name="long-doc-qa",
    title="Repeated Q&A over long documents",
    prefix="ldqa_",
    parameters=LongDocQa,
    plan=plan,
    needs_size=True,
    uses_volume=True,
)
