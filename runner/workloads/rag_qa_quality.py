"""rag-qa-quality: are the answers as good when documents are reused at places where they were never cached?

Every passage is prefilled alone behind the system block; the measured requests then put passages behind one another:
[system][doc a][doc b]...[question]. System block and passages are filled up with words to a multiple of the cache's
chunk, so that a passage covers the same chunks wherever it stands.
"""

import hashlib
import re
from collections.abc import Iterable
from typing import Annotated

from pydantic import Field, field_validator

from contract.errors import ScenarioError
from contract.options import Unit
from runner.workloads.plan import (
    Fixed,
    InFlight,
    Message,
    Parameters,
    Phase,
    Plan,
    QaSample,
    Request,
    Resources,
    Workload,
)

SYSTEM = (
    "You answer a question from the passages below and from nothing else. The passages are followed by words without "
    "meaning; take no notice of those."
)
QUESTION = (
    "Question: {question}\nGive the shortest answer that is complete, between these tags and once only: "
    "<final_answer>answer</final_answer>"
)
END = "\n\n"
ROUNDS = 8

TemplateValue = bool | int | str


class RagQaQuality(Parameters):
    rag_dataset: Annotated[
        str,
        Unit("NAME|FILE"),
        Field(
            min_length=1, description="musique, hotpotqa, or a .json, .jsonl or .parquet file of questions"
        ),
    ]
    rag_num_samples: Annotated[int, Field(ge=1, description="questions, in the order of the data set")] = 50
    rag_max_output_length: Annotated[
        int,
        Unit("TOKENS"),
        Field(ge=1, description="most tokens of an answer; reasoning and the tags must fit in"),
    ] = 1024
    rag_doc_align_tokens: Annotated[
        int,
        Unit("TOKENS"),
        Field(ge=1, description="passages are filled up to a multiple of this (LMCache's chunk size)"),
    ] = 256
    rag_template_kwargs: Annotated[
        dict[str, TemplateValue],
        Unit("KEY=VALUE"),
        Field(
            default_factory=dict,
            description="variable of the chat template, KEY=VALUE; may be given several times",
        ),
    ]

    @field_validator("rag_template_kwargs", mode="before")
    @classmethod
    def _read_pairs(cls, value: object) -> object:
        return dict(map(template_pair, value)) if isinstance(value, list) else value


def template_pair(text: object) -> tuple[str, TemplateValue]:
    """KEY=VALUE: true and false are booleans, digits a number, everything else a text."""
    name, found, value = str(text).partition("=")
    if not found or not name.strip():
        raise ValueError(f"expected KEY=VALUE, found {text!r}")
    if value.lower() in ("true", "false"):
        return name.strip(), value.lower() == "true"
    return name.strip(), int(value) if re.fullmatch(r"-?\d+", value) else value


def plan(parameters: RagQaQuality, resources: Resources) -> Plan:
    if not resources.samples:
        raise ScenarioError(f"--rag-dataset {parameters.rag_dataset}: has no usable question")
    align = parameters.rag_doc_align_tokens
    frame = resources.frame_tokens or 0
    system, system_fits = _aligned(SYSTEM, "", frame, align, resources)
    blocks: dict[str, str] = {}
    off = 0 if system_fits else 1
    for passage in distinct(resources.samples):
        blocks[passage], fits = _aligned(passage, system, 0, align, resources)
        off += not fits

    def message(*texts: str) -> tuple[Message, ...]:
        return (Message("user", tuple(Fixed(text) for text in texts), separator=""),)

    prefills = [
        Request(f"prefill_doc{i}", message(system, block), 1, group=f"doc{i}")
        for i, block in enumerate(blocks.values())
    ]
    questions = [
        Request(
            f"sample{i}",
            message(
                system,
                *(blocks[passage] for passage in sample.passages),
                QUESTION.format(question=sample.question),
            ),
            parameters.rag_max_output_length,
            group=f"sample{i}",
        )
        for i, sample in enumerate(resources.samples)
    ]
    notes = (
        [f"{off} of {len(blocks) + 1} blocks could not be filled up to a multiple of {align} tokens"]
        if off
        else []
    )
    if len(questions) < parameters.rag_num_samples:
        notes.append(
            f"{parameters.rag_num_samples} questions were asked for, the data set has {len(questions)}"
        )
    if resources.frame_tokens is None:
        notes.append(
            "the chat template's length is not known, so the blocks' places are aligned approximately"
        )
    return Plan(
        phases=(
            Phase("prefill every passage", False, prefills, InFlight(1)),
            Phase("questions", True, questions, InFlight(1)),
        ),
        facts={
            "Samples": len(questions),
            "Records skipped": resources.skipped_records,
            "Passages": len(blocks),
            "Passages aligned to (tokens)": align,
        },
        template_kwargs=dict(parameters.rag_template_kwargs),
        samples={
            request.request_id: sample for request, sample in zip(questions, resources.samples, strict=True)
        },
        notes=tuple(notes),
    )


def distinct(samples: Iterable[QaSample]) -> list[str]:
    """Every passage once, in the order in which they come up."""
    return list(dict.fromkeys(passage for sample in samples for passage in sample.passages))


def _aligned(text: str, before: str, offset: int, align: int, resources: Resources) -> tuple[str, bool]:
    """The text behind `before`, filled up with words until it ends at a multiple of `align` after `offset` tokens.

    Returns the block and whether it fits; a tokenizer that merges across its end may make that impossible.
    """
    start = resources.count(before) if before else 0
    key = f"rag-qa-quality/filler/{hashlib.sha256(text.encode()).hexdigest()}"
    words, block = 0, ""
    for _ in range(ROUNDS):
        block = text + (" " + resources.filler(key, words) if words else "") + END
        over = (offset + resources.count(before + block) - start) % align
        if not over:
            return block, True
        words += align - over
    return block, False


RAG_QA_QUALITY = Workload(
    name="rag-qa-quality",
    title="Answer quality (F1) on real QA data",
    prefix="rag_",
    parameters=RagQaQuality,
    plan=plan,
    needs_tokenizer=True,
)
