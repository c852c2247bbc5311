"""Whatever an engine answers to control calls: a ServiceError of one line, or a value in our bounds. Never a fault."""

import json
from dataclasses import replace

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contract.errors import ServiceError
from contract.foreign import LARGEST_TOKENS, LONGEST_NAME, ForeignDocumentError, json_document
from contract.http_call import Reply
from contract.scenario.model import Service
from contract.usage import read_usage
from enginemetrics.snapshot import read_snapshot
from runner import control
from runner.bench import lmcache
from runner.bench.tokens import EngineTokens
from runner.control import (
    Answer,
    ControlClient,
    answered_tokens,
    engine_version,
    named,
    refusal,
    served_models,
)
from runner.engines.external import external_engine
from runner.multimodal.layout import find_texts
from runner.probe import usage_of
from runner.reset import reset_problem

NUMBERS = (
    st.sampled_from([2**31, 2**53, 2**63, 2**63 - 1, 2**64, -1, 0, 10**400, 1e308, 0.5, -0.0])
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
)
TEXTS = st.sampled_from(["", "9" * 5000, "0", "None", "\x1b[31m", "m" * 70_000, "\u202e", "1_0"]) | st.text(
    max_size=9
)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS
NAMES = st.sampled_from(
    [
        *("data", "id", "max_model_len", "version", "tokens", "usage", "error", "message", "success"),
        *(
            "prompt_tokens",
            "completion_tokens",
            "prompt_tokens_details",
            "cached_tokens",
            "multimodal_tokens",
        ),
        *("image", "storage_manager", "l1_manager", "memory_total_bytes", "cache_context_meta", "model_name"),
        *("kv_cache_layout", "cache_size_per_token", "world_size"),
    ]
)
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=20,
)
TEXT_OF = DOCUMENTS.map(lambda value: json.dumps(value).encode()) | st.sampled_from(
    [
        b"[" * 100_000,
        b'{"a":' * 900 + b"1" + b"}" * 900,
        b'{"data":"\\ud800"}',
        b'{"version":1e999}',
        b"\xff",
        b"",
    ]
)
FEW = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def client(monkeypatch):
    """A client whose engine answers `replies` in turn, the last one again and again."""
    engine = replace(external_engine(Service()), model="m")
    made = ControlClient(engine, api_key="", timeout_seconds=1, engine_label_map={})
    made.replies = []

    def answer(method, url, **options):
        return made.replies.pop(0) if len(made.replies) > 1 else made.replies[0]

    monkeypatch.setattr(control, "call", answer)
    monkeypatch.setattr(lmcache, "call", answer)
    monkeypatch.setattr("runner.reset.PAUSE_SECONDS", 0)
    return made


def reply(content, status=200):
    return Reply(status, {}, content)


def told(question):
    """What the question gives, or None where the engine is refused in one line."""
    try:
        return question()
    except ServiceError as error:
        line = str(error)
    assert "\n" not in line
    assert len(line) < 3 * LONGEST_NAME
    return None


@FEW
@given(content=TEXT_OF, status=st.sampled_from([200, 200, 200, 404, 302]))
def test_control_calls(client, content, status):
    client.replies = [reply(content, status)]
    version = told(lambda: engine_version(client))
    assert version is None or 0 < len(version) <= LONGEST_NAME
    models = told(lambda: served_models(client.get("/v1/models")))
    for name, length in (models or {}).items():
        assert 0 < len(name) <= LONGEST_NAME
        assert length is None or 1 <= length <= LARGEST_TOKENS
    assert len(named(models or {}, ", ")) < 40 * LONGEST_NAME
    usage = told(lambda: usage_of(client.get("/x")))
    for count in (usage or ())[:4]:
        assert count is None or 0 <= count <= LARGEST_TOKENS
    ids = told(lambda: answered_tokens(client.get("/tokenize")))
    assert ids is None or all(0 <= i <= LARGEST_TOKENS for i in ids)
    assert len(refusal(client.get("/x"))) < 400


class Never:
    def is_set(self):
        return False

    def wait(self, seconds):
        return False


@FEW
@given(contents=st.lists(TEXT_OF, min_size=1, max_size=4))
def test_questions_of_several_answers(client, contents):
    for question in (
        lambda: reset_problem(client, Never()),
        lambda: find_texts(client, [], ["a", "b", "c"]),
        lambda: EngineTokens(client, "m").frame_tokens({}),
        lambda: EngineTokens(client, "m").conversation([], {}),
        lambda: lmcache.LmCache("http://x").tokens_per_gb("m"),
        lambda: lmcache.LmCache("http://x").memory_bytes(),
    ):
        client.replies = [reply(content) for content in contents]
        told(question)


@FEW
@given(usage=DOCUMENTS, most=st.none() | st.integers(0, 100))
def test_usage_is_counts_that_fit_together(usage, most):
    found = read_usage(usage, most)
    for count in found[:4]:
        assert count is None or 0 <= count <= LARGEST_TOKENS
    if most is not None and found.completion_tokens is not None:
        assert found.completion_tokens <= most
    for part in (found.cached_tokens, found.image_tokens):
        assert None in (part, found.prompt_tokens) or part <= found.prompt_tokens
    assert found.impossible is None or len(found.impossible) < 200


@pytest.mark.parametrize(
    ("usage", "words"),
    [
        ({"completion_tokens": 1_000_000}, "1000000 completion_tokens, 4 were allowed"),
        ({"completion_tokens": 2**63}, "more than any request has"),
        ({"prompt_tokens": 2**64}, "more than any request has"),
        ({"prompt_tokens": 24, "prompt_tokens_details": {"cached_tokens": 96}}, "96 cached_tokens of 24"),
        (
            {"prompt_tokens": 24, "prompt_tokens_details": {"cached_tokens": 2**62}},
            "more than any request has",
        ),
    ],
)
def test_impossible_counts_are_told(usage, words):
    found = read_usage(orjson.loads(json.dumps(usage)), 4)
    assert words in (found.impossible or "")


VALUES = st.sampled_from(
    ["1e308", "NaN", "+Inf", "-1", "0.5", "9" * 5000, "1_0", "٣", "9007199254740993", "7", "0"]
)
LABELS = st.sampled_from(["0", "1", "9" * 5000, "", "x", "core_0", "٣", '\\"', "m" * 70_000, "0_0"])
SERIES = st.sampled_from(
    [
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:prompt_tokens_total",
        "vllm:prompt_tokens_by_source_total",
        "vllm:kv_cache_usage_perc",
        "vllm:num_requests_running",
        "vllm:prefix_cache_queries_created",
        "vllm:cache_config_info",
        "process_start_time_seconds",
    ]
)
NAMES_OF_LABELS = st.sampled_from(
    [
        "engine",
        "model_name",
        "source",
        "pid",
        "block_size",
        "num_gpu_blocks",
        "prefix_match_unit",
        "kv_cache_size_tokens",
    ]
)


def sample(name, labels, value):
    written = ",".join(f'{key}="{label}"' for key, label in labels.items())
    return f"{name}{{{written}}} {value}"


LINE = st.builds(
    sample,
    SERIES,
    st.dictionaries(NAMES_OF_LABELS, LABELS, max_size=4),
    VALUES,
)
HONEST = [
    'vllm:prefix_cache_queries_total{engine="0",model_name="m"} 10',
    'vllm:prefix_cache_hits_total{engine="0",model_name="m"} 4',
]


@FEW
@given(lines=st.lists(LINE, max_size=4), honest=st.booleans(), dp_size=st.sampled_from([1, 2]))
def test_metrics_pages(lines, honest, dp_size):
    text = "\n".join([*(HONEST if honest else ()), *lines, ""])
    found = told(lambda: read_snapshot([text], model="m", dp_size=dp_size, engine_label_map={}))
    if found is None:
        return
    for rank in found.ranks:
        numbers = (rank.queries, rank.hits, rank.prompt_tokens, rank.requests_running, rank.counters_created)
        assert orjson.dumps(numbers)
        assert 0 <= rank.hits <= rank.queries <= 2**53
        if rank.cache_config is not None:
            assert rank.cache_config.match_unit is None or rank.cache_config.match_unit >= 1
            assert rank.cache_config.capacity_tokens is None or abs(rank.cache_config.capacity_tokens) < 2**63


def test_a_page_of_one_endless_line_is_refused_at_once():
    with pytest.raises(ServiceError, match="line 1 is not Prometheus text"):
        read_snapshot(['x{a="' + "y" * 2**24 + '"} 1\n'], model="m", dp_size=1, engine_label_map={})
    assert isinstance(Answer(200, None, ""), Answer)
    with pytest.raises(ForeignDocumentError):
        json_document(b"[" * 2**20)
