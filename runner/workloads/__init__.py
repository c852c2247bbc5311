"""Workloads of `hitlab bench engine`: a small file for each, with its parameters and its plan."""

from runner.workloads.kv_tier_pressure import KV_TIER_PRESSURE
from runner.workloads.long_doc_permutator import LONG_DOC_PERMUTATOR
from runner.workloads.long_doc_qa import LONG_DOC_QA
from runner.workloads.multi_round_chat import MULTI_ROUND_CHAT
from runner.workloads.plan import Workload
from runner.workloads.prefix_suffix_tuner import PREFIX_SUFFIX_TUNER
from runner.workloads.rag_qa_quality import RAG_QA_QUALITY
from runner.workloads.random_prefill import RANDOM_PREFILL

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        LONG_DOC_QA,
        MULTI_ROUND_CHAT,
        LONG_DOC_PERMUTATOR,
        PREFIX_SUFFIX_TUNER,
        RAG_QA_QUALITY,
        RANDOM_PREFILL,
        KV_TIER_PRESSURE,
    )
}
"""By name, in the order of menus."""
