"""What decides about the prompts of a bench, and a digest of it: only benches that agree can be compared.

Contents count and names do not: the same data set under another path gives the same fingerprint. Whether the cache was
warmed is not part of it; a comparison looks at that by itself.
"""

import hashlib
from typing import Any

from contract.documents import canonical_sha256
from runner.bench.prepare import PreparedBench

DIGITS = 16
NOT_CONTENT = ("rag_dataset",)


def fingerprint_parts(prepared: PreparedBench) -> dict[str, Any]:
    """Name -> value or digest; what differs between two benches can be named by it."""
    settings, plan = prepared.settings, prepared.plan
    parameters = settings.parameters.model_dump(mode="json", exclude=set(NOT_CONTENT))
    texts = hashlib.sha256()
    for request in plan.measured.requests:
        for message in prepared.script.sent(request):
            for text in (message["role"], message["content"]):
                texts.update(hashlib.sha256(text.encode()).digest())
    parts: dict[str, Any] = {
        "workload": settings.workload.name,
        "model": prepared.engine.model,
        "seed": settings.general.seed,
        "ignore_eos": settings.general.ignore_eos,
        **parameters,
        "requests": len(plan.measured.requests),
        "prompts_sha256": texts.hexdigest(),
    }
    if plan.samples:
        parts["sample_ids"] = canonical_sha256([sample.sample_id for sample in plan.samples.values()])
        parts["gold_answers"] = canonical_sha256([list(sample.answers) for sample in plan.samples.values()])
    return parts


def fingerprint(parts: dict[str, Any]) -> str:
    return canonical_sha256(parts)[:DIGITS]
