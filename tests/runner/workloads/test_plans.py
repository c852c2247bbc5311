"""Each workload: counts, order, exact lengths, what is shared and what is not, and the same again from the same seed."""

import itertools
import math
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from contract.errors import ScenarioError
from runner.workloads import WORKLOADS
from runner.workloads.kv_tier_pressure import KvTierPressure, drawn_documents
from runner.workloads.long_doc_permutator import permutations
from runner.workloads.plan import AllAtOnce, FixedRate, InFlight, QaSample, Request
from runner.workloads.rag_qa_quality import template_pair
from tests.runner.workloads.conftest import BLOCK, Write

FRAME = 16
"""More tokens than ChatML puts around a message."""
SAMPLES = tuple(
    QaSample(
        f"q{i}",
        f"Which train of story {i} was late?",
        (
            f"Story {i}\nTwo trains left. The second one of number {i} was late.",
            "Common\nEvery train has a driver.",
        ),
        ("the second one",),
    )
    for i in range(3)
)
SMALL: dict[str, dict[str, Any]] = {
    "long-doc-qa": {"document_length": 700},
    "multi-round-chat": {"shared_prompt_length": 300, "chat_history_length": 500, "duration": 6.0},
    "long-doc-permutator": {"num_contexts": 4, "context_length": 120, "system_prompt_length": 64},
    "prefix-suffix-tuner": {"context_length": 800, "thrash": 0.5},
    "rag-qa-quality": {
        "dataset": "x",
        "num_samples": 3,
        "doc_align_tokens": 32,
        "samples": SAMPLES,
        "frame_tokens": 5,
    },
    "random-prefill": {"request_length": 300, "num_requests": 12},
    "kv-tier-pressure": {"pool_size": 10, "docs_per_request": 3, "context_length": 90, "num_requests": 20},
}


def ids(requests: Any) -> list[str]:
    return [request.request_id for request in requests]


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_is_reproducible_and_sound(write: Write, name: str) -> None:
    made, again, other = (
        write(name, **SMALL[name]),
        write(name, **SMALL[name]),
        write(name, seed=43, **SMALL[name]),
    )
    assert made.plan == again.plan
    requests = [request for phase in made.plan.phases for request in phase.requests]
    assert len(set(ids(requests))) == len(requests), "ids tell requests apart"
    assert [made.chat(r) for r in requests] == [again.chat(r) for r in requests]
    assert [made.chat(r) for r in requests] != [
        other.chat(r) for phase in other.plan.phases for r in phase.requests
    ]
    assert [phase.measured for phase in made.plan.phases] == [False] * (len(made.plan.phases) - 1) + [True]
    for phase in made.plan.phases[:-1]:
        assert {request.max_tokens for request in phase.requests} == {1}
        assert phase.requests


# ---- long-doc-qa


def test_long_doc_qa(write: Write) -> None:
    made = write("long-doc-qa", volume=0.5, document_length=700, query_per_document=3, shuffle_policy="tile")
    warm, asked = made.plan.phases
    assert ids(warm.requests) == [f"warmup_doc{d}" for d in range(4)], "int(0.5 * 6000 / 700)"
    assert warm.pace == InFlight(1)
    assert asked.pace == InFlight(3)
    assert ids(asked.requests) == [f"doc{d}_q{q}" for q in range(3) for d in range(4)]
    for request in asked.requests:
        assert made.tokens_of(request.messages[0])[0] == 700
        assert request.max_tokens == 128
        d = int(request.group.removeprefix("doc"))
        assert made.shared_tokens(request, warm.requests[d]) >= 700 - BLOCK
        assert made.shared_tokens(request, warm.requests[(d + 1) % 4]) == 0, "documents share nothing"


def test_long_doc_qa_shuffles_by_seed(write: Write) -> None:
    tiled = write("long-doc-qa", document_length=300, shuffle_policy="tile").plan.measured.requests
    shuffled = write("long-doc-qa", document_length=300).plan.measured.requests
    assert ids(tiled) != ids(shuffled)
    assert sorted(ids(tiled)) == sorted(ids(shuffled))
    assert ids(shuffled) != ids(write("long-doc-qa", document_length=300, seed=1).plan.measured.requests)


def test_there_is_always_one_document(write: Write) -> None:
    made = write("long-doc-qa", volume=0.001, document_length=5000)
    assert len(made.plan.phases[0].requests) == 1


# ---- multi-round-chat


def test_multi_round_chat(write: Write) -> None:
    made = write("multi-round-chat", shared_prompt_length=300, chat_history_length=500, qps=3.0, duration=3.0)
    warm, queries = made.plan.phases
    assert len(made.plan.sessions) == 7, "int(6000 / 800)"
    assert queries.pace == FixedRate(3.0, 3.0)
    assert len(queries.requests) == 9, "offsets 0, 1/3, ... 8/3"
    assert [request.session for request in queries.requests] == [f"session{k % 7}" for k in range(9)]
    assert all(request.remember for request in queries.requests)
    assert not any(request.remember for request in warm.requests)
    first, second = warm.requests[:2]
    chat = made.chat(first)
    assert [message["role"] for message in chat] == ["system", "user", "assistant", "user"]
    lengths = [len(made.tokenizer.encode(message["content"])) for message in chat]
    assert lengths[:2] == [300, 500]
    shared = made.shared_tokens(first, second)
    assert 300 - BLOCK < shared <= 300 + FRAME, "the system prompt is shared by all users, the history is not"
    for request in queries.requests:
        assert made.tokens_of(request.messages[0]) == [50]
        own = warm.requests[int(request.group.removeprefix("session"))]
        assert made.shared_tokens(request, own) >= 800 - BLOCK
    texts = {made.chat(request)[-1]["content"] for request in queries.requests}
    assert len(texts) == 9, "every query is another"


def test_sessions_remember_answers_and_forget_failures(write: Write) -> None:
    made = write(
        "multi-round-chat", shared_prompt_length=30, chat_history_length=50, volume=0.01, duration=3.0
    )
    phase = made.plan.measured
    sent = list(made.script.outgoing(phase, 0))
    assert {request.lane for request in sent} == {"session0"}
    sent[0].body()  # type: ignore[operator]
    assert sent[0].on_answer is not None
    sent[0].on_answer("Certainly.")
    sent[1].body()  # type: ignore[operator] # fails: no answer is told
    sent[2].body()  # type: ignore[operator]
    queries = [made.chat(request)[-1]["content"] for request in phase.requests]
    contents = [message["content"] for message in made.chat(phase.requests[2])]
    assert contents[-3:] == [queries[0], "Certainly.", queries[2]]
    assert queries[1] not in contents
    assert len(made.chat(phase.requests[0])) == 4, "what was sent first is still told as it was sent"


@pytest.mark.parametrize(
    ("qps", "duration", "count"), [(1.0, 60.0, 60), (0.3, 10.0, 3), (2.5, 3.0, 8), (10.0, 0.05, 1)]
)
def test_number_of_queries(write: Write, qps: float, duration: float, count: int) -> None:
    made = write("multi-round-chat", volume=0.01, chat_history_length=10, qps=qps, duration=duration)
    offsets = [k / qps for k in range(1000)]
    assert len(made.plan.measured.requests) == count == sum(offset < duration - 1e-9 for offset in offsets)


# ---- long-doc-permutator


def test_long_doc_permutator(write: Write) -> None:
    made = write(
        "long-doc-permutator", **SMALL["long-doc-permutator"], num_permutations=24, num_inflight_requests=2
    )
    warm, requests = made.plan.phases
    assert ids(warm.requests) == ["warmup_dummy"]
    assert requests.pace == InFlight(2)
    assert len(requests.requests) == 24
    for request in requests.requests:
        assert made.tokens_of(request.messages[0]) == [64, 120, 120, 120, 120]
        assert made.shared_tokens(request, warm.requests[0]) == 0
    bodies = [made.chat(request)[0]["content"].split("\n\n") for request in requests.requests]
    assert len({tuple(parts) for parts in bodies}) == 24, "orders differ"
    assert len({frozenset(parts) for parts in bodies}) == 1, "documents do not"
    shared = made.shared_tokens(requests.requests[0], requests.requests[-1])
    assert 64 - BLOCK < shared <= 64 + FRAME, (
        "of orders that begin differently only the system prompt is shared"
    )


def test_permutator_without_a_system_prompt(write: Write) -> None:
    made = write("long-doc-permutator", num_contexts=3, context_length=50, system_prompt_length=0)
    assert len(made.plan.measured.requests) == 6, "3! are all there are"
    assert made.tokens_of(made.plan.measured.requests[0].messages[0]) == [50, 50, 50]


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 60), st.integers(0, 5))
def test_permutations_are_different_and_as_many_as_asked(items: int, wanted: int, seed: int) -> None:
    found = permutations(items, wanted, seed)
    assert len(found) == len(set(found)) == min(wanted, math.factorial(items))
    assert all(sorted(order) == list(range(items)) for order in found)
    assert found == sorted(found)
    if math.factorial(items) <= 10 * wanted:
        assert found == list(itertools.islice(itertools.permutations(range(items)), len(found)))


# ---- prefix-suffix-tuner


def test_prefix_suffix_tuner(write: Write) -> None:
    made = write("prefix-suffix-tuner", context_length=800, prefix_ratio=0.8, thrash=0.5)
    hello, first, second = made.plan.phases
    assert ids(hello.requests) == ["warmup_hello"]
    count = int(0.5 * 6000 * 1.05 / 640)
    assert count == 4, "by prefix tokens, as the guide says"
    assert ids(first.requests) == [f"pass1_p{i}" for i in range(count)]
    assert ids(second.requests) == [f"pass2_p{i}" for i in range(count)]
    assert first.pause_after_seconds == 5.0
    assert {phase.pace for phase in made.plan.phases} == {InFlight(1)}
    texts = []
    for one, two in zip(first.requests, second.requests, strict=True):
        assert made.tokens_of(one.messages[0]) == [640, 32, 128]
        assert len(made.tokenizer.encode(made.chat(one)[0]["content"])) == 800
        assert one.max_tokens == two.max_tokens == 1
        shared = made.shared_tokens(one, two)
        assert 640 - BLOCK < shared <= 640 + FRAME, "the prefix, and nothing of the breaker"
        texts += [made.chat(one)[0]["content"], made.chat(two)[0]["content"]]
    assert all(re.match(r"PREFIX_[0-9a-f]{8} ", text) for text in texts)
    assert len({text[:15] for text in texts}) == count
    breakers = [re.search(r" BR_[0-9a-f]{8} ", text) for text in texts]
    assert len({found.group() for found in breakers if found}) == len(texts), "a new breaker in every request"
    assert len({text.rpartition(" SUFFIX ")[2] for text in texts}) == 1, "one suffix"
    assert made.plan.facts["Overflow by prefixes (x)"] == round(count * 640 / 3000, 3)
    assert made.plan.facts["Overflow by whole requests (x)"] == round(count * 800 / 3000, 3)
    assert "not meaningful" in (made.plan.meaningless_without_warmup or "")


@pytest.mark.parametrize(
    ("thrash", "note"),
    [
        (
            0.5,
            "the prefixes fill 0.85 of the tier: they overflow it only with breakers and suffixes (1.07 of it)",
        ),
        (0.2, "the prefixes fill 0.53 of the tier: nothing overflows"),
        (0.3166, None),
    ],
)
def test_prefix_suffix_tuner_says_when_nothing_overflows(
    write: Write, thrash: float, note: str | None
) -> None:
    """4 prefixes of 640 tokens in 3,000, 1 in 1,200, 3 in 1,899."""
    notes = write("prefix-suffix-tuner", context_length=800, prefix_ratio=0.8, thrash=thrash).plan.notes
    assert len(notes) == (note is not None)
    assert note is None or notes[0].startswith(note)


def test_prefix_suffix_tuner_ignores_the_volume(write: Write) -> None:
    one, other = (
        write("prefix-suffix-tuner", context_length=800, thrash=0.5, volume=v) for v in (1.0, 500.0)
    )
    assert one.plan == other.plan


@pytest.mark.parametrize(
    "options",
    [
        {"context_length": 600, "prefix_ratio": 0.9},
        {"prefix_ratio": 0.0},
        {"prefix_ratio": 1.0},
        {"thrash": 0},
    ],
)
def test_prefix_suffix_tuner_needs_room_for_its_suffix(write: Write, options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        write("prefix-suffix-tuner", **options)


# ---- random-prefill


def test_random_prefill(write: Write) -> None:
    made = write("random-prefill", per_gb=None, request_length=300, num_requests=12)
    (phase,) = made.plan.phases
    assert phase.pace == AllAtOnce()
    assert ids(phase.requests) == [f"req{i}" for i in range(12)]
    assert all(made.tokens_of(request.messages[0]) == [300] for request in phase.requests)
    assert {request.max_tokens for request in phase.requests} == {1}
    for one, other in itertools.combinations(phase.requests, 2):
        assert made.shared_tokens(one, other) == 0, "random means that nothing is shared"


# ---- kv-tier-pressure


def test_kv_tier_pressure(write: Write) -> None:
    made = write(
        "kv-tier-pressure", **SMALL["kv-tier-pressure"], system_prompt_length=48, num_inflight_requests=2
    )
    sweep, draws = made.plan.phases
    assert sweep.pace == draws.pace == InFlight(2)
    assert len(sweep.requests) == 4, "ceil(10 / 3)"
    seen = Counter(part.key for request in sweep.requests for part in request.messages[0].parts[1:])
    assert len(seen) == 10, "every document is sent"
    assert sum(seen.values()) == 12
    assert len(draws.requests) == 20
    for request in (*sweep.requests, *draws.requests):
        assert made.tokens_of(request.messages[0]) == [48, 90, 90, 90]
        assert len({part.key for part in request.messages[0].parts}) == 4, "no document twice in a request"
    assert made.plan.needs_blend
    assert not write("kv-tier-pressure", pool_size=3, docs_per_request=1, context_length=20).plan.needs_blend


@pytest.mark.parametrize(
    ("pool", "note"), [(9, "the pool fills 0.90 of the tier: nothing overflows"), (11, None)]
)
def test_kv_tier_pressure_says_when_nothing_overflows(write: Write, pool: int, note: str | None) -> None:
    options = {"docs_per_request": 2, "context_length": 100, "num_requests": 1, "tier_tokens": 1000}
    notes = write("kv-tier-pressure", pool_size=pool, **options).plan.notes
    assert [text[: len(note or "")] for text in notes] == ([] if note is None else [note])


def test_kv_tier_pressure_is_sized_by_the_tier(write: Write) -> None:
    made = write("kv-tier-pressure", docs_per_request=2, context_length=100, num_requests=1, tier_tokens=1030)
    assert made.plan.facts["Documents in the pool"] == 21, "ceil(2 * 1030 / 100)"
    assert made.plan.facts["Overflow (x)"] == round(2100 / 1030, 3)
    with pytest.raises(ScenarioError, match="--ktp-pool-size"):
        write("kv-tier-pressure", num_requests=1)
    with pytest.raises(ScenarioError, match="the pool has only 3 documents"):
        write("kv-tier-pressure", pool_size=3)


@pytest.mark.parametrize("skew", [0.0, 1.2])
def test_documents_are_drawn_by_their_weights(skew: float) -> None:
    parameters = KvTierPressure(ktp_docs_per_request=1, ktp_num_requests=20_000, ktp_access_skew=skew)
    counts = Counter(draw[0] for draw in drawn_documents(parameters, 5, 7))
    weights = [(rank + 1) ** -skew for rank in range(5)]
    for rank, weight in enumerate(weights):
        assert counts[rank] / 20_000 == pytest.approx(weight / sum(weights), abs=0.015)


# ---- rag-qa-quality


def test_rag_qa_quality(write: Write) -> None:
    made = write("rag-qa-quality", **SMALL["rag-qa-quality"])
    warm, asked = made.plan.phases
    assert ids(warm.requests) == [f"prefill_doc{i}" for i in range(4)], (
        "a passage that comes up again is prefilled once"
    )
    assert ids(asked.requests) == ["sample0", "sample1", "sample2"]
    assert asked.pace == InFlight(1)
    assert not made.plan.notes
    assert made.plan.samples["sample1"].sample_id == "q1"

    def places(request: Request) -> list[int]:
        """Tokens before each part after the first, the frame counted."""
        content = ""
        found = []
        for part in request.messages[0].parts:
            content += part.text  # type: ignore[union-attr]
            found.append(5 + len(made.tokenizer.encode(content)))
        return found

    for request in (*warm.requests, *asked.requests):
        assert all(place % 32 == 0 for place in places(request)[:3][: len(request.messages[0].parts) - 1])
    text = made.chat(asked.requests[0])[0]["content"]
    assert (
        text.index("Story 0") < text.index("Every train has a driver.") < text.index("Which train of story 0")
    )
    assert "<final_answer>" in text
    assert {request.max_tokens for request in asked.requests} == {1024}


def test_rag_without_the_template_is_aligned_approximately(write: Write) -> None:
    options = SMALL["rag-qa-quality"] | {"frame_tokens": None}
    assert "approximately" in write("rag-qa-quality", **options).plan.notes[0]


def test_a_data_set_with_fewer_questions_than_asked_for_says_so(write: Write) -> None:
    made = write("rag-qa-quality", **SMALL["rag-qa-quality"] | {"num_samples": 7}, skipped_records=2)
    assert made.plan.notes == ("7 questions were asked for, the data set has 3",)
    assert made.plan.facts["Records skipped"] == 2


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("enable_thinking=true", ("enable_thinking", True)),
        ("a=False", ("a", False)),
        ("n=12", ("n", 12)),
        ("reasoning_effort=high", ("reasoning_effort", "high")),
        ("x=a=b", ("x", "a=b")),
    ],
)
def test_template_variables(text: str, pair: tuple[str, object]) -> None:
    assert template_pair(text) == pair


@pytest.mark.parametrize("text", ["nothing", "=1", " =1"])
def test_template_variables_need_a_name(text: str) -> None:
    with pytest.raises(ValueError, match="KEY=VALUE"):
        template_pair(text)
