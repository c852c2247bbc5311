"""What the rest of HitLab takes for granted about vLLM, checked on a real one."""

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families
from tokenizers import Tokenizer

from tests.real.engine import RunningEngine
from tests.real.job import GSM8K

QUERIES = "vllm:prefix_cache_queries_total"
HITS = "vllm:prefix_cache_hits_total"

TEXTS = [
    "Tom has 12 apples and gives 5 to Ann. How many apples does he have left?\nHe has 12-5=<<12-5=7>>7.\n#### 7",
    "A train leaves at 08:45 and rides 1,234.5 km at 98 km/h; it's late by 20% - don't you think?",
    "  leading and trailing blanks, tabs\tand\r\nline ends \n\n\n  ",
    "def f(x):\n    return {'a': x**2, \"b\": [x, -x]}  # comment",
    "一列火车以每小时120公里的速度行驶，3小时后它走了多远？答案：360公里。",
    "e\u0301 combining, \u00e9 composed, ﬁ ligature, 👩‍👩‍👧 family, \u200b zero width",
    "x",
]


class Client:
    """The few requests of this walk, at one engine."""

    def __init__(self, engine: RunningEngine) -> None:
        self.engine = engine
        self.session = requests.Session()
        self.session.trust_env = False

    def post(self, path: str, body: dict[str, Any] | None = None, **headers: str) -> requests.Response:
        return self.session.post(f"{self.engine.url}{path}", json=body, headers=headers, timeout=60)

    def complete(self, prompt: list[int], rank: int | str) -> requests.Response:
        body = {"model": self.engine.model, "prompt": prompt, "max_tokens": 2, "ignore_eos": True}
        return self.post("/v1/completions", body, **{"X-data-parallel-rank": str(rank)})

    def cached_tokens(self, prompt: list[int], rank: int) -> int:
        response = self.complete(prompt, rank)
        assert response.status_code == 200, response.text
        usage = response.json()["usage"]
        assert usage["prompt_tokens"] == len(prompt)
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    def samples(self, name: str) -> list[tuple[dict[str, str], float]]:
        text = self.session.get(f"{self.engine.url}/metrics", timeout=60).text
        return [
            (dict(sample.labels), sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name
        ]

    def per_rank(self, name: str) -> list[float]:
        values: dict[int, float] = {}
        for labels, value in self.samples(name):
            values[int(labels["engine"])] = values.get(int(labels["engine"]), 0) + value
        return [values[rank] for rank in range(self.engine.ranks)]

    def settled_queries(self, expected: list[float]) -> list[float]:
        """Queries per rank, waiting a little for the counters, which come after the response."""
        deadline = time.monotonic() + 5
        while (seen := self.per_rank(QUERIES)) != expected and time.monotonic() < deadline:
            time.sleep(0.05)
        return seen


@pytest.fixture(scope="module")
def client(vllm_engine: RunningEngine) -> Iterator[Client]:
    client = Client(vllm_engine)
    yield client
    client.session.close()


@pytest.fixture(scope="module")
def tokenizer(qwen_directory: Path) -> Tokenizer:
    return Tokenizer.from_file(str(qwen_directory / "tokenizer.json"))


@pytest.fixture
def prompt(request: pytest.FixtureRequest) -> list[int]:
    """256 token ids that no other test sends."""
    draw = random.Random(request.node.name)
    return [draw.randrange(100_000) for _ in range(256)]


def test_the_last_block_is_computed_again_and_ranks_share_no_cache(client: Client, prompt: list[int]) -> None:
    assert client.cached_tokens(prompt, rank=0) == 0
    assert client.cached_tokens(prompt, rank=0) == 224
    assert client.cached_tokens([*prompt, 7], rank=0) == 256
    assert client.cached_tokens(prompt, rank=1) == 0
    assert client.cached_tokens(prompt, rank=1) == 224


@pytest.mark.parametrize("rank", [0, 1])
def test_the_rank_header_moves_the_counters_of_that_rank_only(
    client: Client, prompt: list[int], rank: int
) -> None:
    queries, hits = client.per_rank(QUERIES), client.per_rank(HITS)
    cached = client.cached_tokens(prompt, rank) + client.cached_tokens(prompt, rank)
    queries[rank] += 2 * len(prompt)
    hits[rank] += cached
    assert client.settled_queries(queries) == queries
    assert client.per_rank(HITS) == hits


def test_a_rank_out_of_range_is_refused(client: Client, prompt: list[int]) -> None:
    response = client.complete(prompt, rank=2)
    assert response.status_code == 400
    assert "data_parallel_rank 2 is out of range [0, 2)" in response.text


def test_reset_empties_the_cache_and_leaves_the_counters(client: Client, prompt: list[int]) -> None:
    before = client.per_rank(QUERIES)
    client.cached_tokens(prompt, rank=0)
    client.cached_tokens(prompt, rank=1)
    expected = [value + len(prompt) for value in before]
    assert client.settled_queries(expected) == expected

    response = client.post("/reset_prefix_cache")

    assert response.status_code == 200
    assert response.json() == {"success": True}
    assert client.per_rank(QUERIES) == expected
    assert client.cached_tokens(prompt, rank=0) == 0
    assert client.cached_tokens(prompt, rank=1) == 0


@pytest.mark.parametrize("text", TEXTS)
def test_the_server_tokenizes_like_tokenizers(client: Client, tokenizer: Tokenizer, text: str) -> None:
    ours = tokenizer.encode(text, add_special_tokens=True).ids
    body = client.post("/tokenize", {"model": client.engine.model, "prompt": text}).json()
    assert body["tokens"] == ours
    assert body["count"] == len(ours)


@pytest.mark.skipif(not GSM8K.is_file(), reason="no GSM8K beside the checkout")
def test_the_server_tokenizes_every_question_of_gsm8k_like_tokenizers(
    client: Client, tokenizer: Tokenizer
) -> None:
    questions = [json.loads(line)["question"] for line in GSM8K.read_text(encoding="utf-8").splitlines()]
    assert len(questions) == 1319
    ours = [encoding.ids for encoding in tokenizer.encode_batch(questions, add_special_tokens=True)]
    differing = [
        question
        for question, ids in zip(questions, ours, strict=True)
        if client.post("/tokenize", {"model": client.engine.model, "prompt": question}).json()["tokens"]
        != ids
    ]
    assert differing == []


def test_a_token_id_outside_the_vocabulary_is_refused(client: Client, prompt: list[int]) -> None:
    assert client.complete([*prompt, 200_000], rank=0).status_code == 400


def test_every_rank_states_its_cache(client: Client) -> None:
    described = {int(labels["engine"]): labels for labels, _ in client.samples("vllm:cache_config_info")}
    assert sorted(described) == list(range(client.engine.ranks))
    for labels in described.values():
        assert labels["block_size"] == str(client.engine.block_size)
        assert labels["enable_prefix_caching"] == "True"
        assert int(labels["num_gpu_blocks"]) > 0
        # Room for the longest request that the engine takes, or the pool would be what the tests measure.
        assert float(labels["kv_cache_size_tokens"]) > 8192
