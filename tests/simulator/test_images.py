"""Images in conversations: placeholders, what names a block, the counters. Seen on a real vLLM 0.32 (tests/real)."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from simulator.config import SimulatorConfig
from simulator.process import start_simulator
from tests.mmmu import picture

BLOCK = 32
SMALL = picture((280, 140), seed=1)
OTHER = picture((280, 140), seed=2)
SMALL_TOKENS = 50  # patches of 28 pixels: 10 x 5


def data_url(content: bytes, mime: str = "image/png") -> str:
    return f"data:{mime};base64,{base64.b64encode(content).decode()}"


def messages(text: str, *images: bytes) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": data_url(i)}} for i in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


class Client:
    def __init__(self, url: str) -> None:
        self.url = url

    def post(self, path: str, body: Any = None, rank: int = 0) -> requests.Response:
        return requests.post(
            self.url + path, json=body, headers={"X-data-parallel-rank": str(rank)}, timeout=20
        )

    def usage(self, text: str, *images: bytes, rank: int = 0) -> dict[str, Any]:
        answer = self.post(
            "/v1/chat/completions", {"messages": messages(text, *images), "max_tokens": 1}, rank
        )
        assert answer.status_code == 200, answer.text
        usage: dict[str, Any] = answer.json()["usage"]
        return usage

    def cached(self, text: str, *images: bytes, rank: int = 0) -> int:
        return int(self.usage(text, *images, rank=rank)["prompt_tokens_details"]["cached_tokens"])

    def counter(self, name: str, rank: int = 0) -> float:
        text = requests.get(self.url + "/metrics", timeout=20).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == f"vllm:{name}_total" and sample.labels["engine"] == str(rank)
        )


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with start_simulator(SimulatorConfig(multimodal=True, block_size=BLOCK)) as simulator:
        yield simulator.url


@pytest.fixture
def client(url: str) -> Client:
    client = Client(url)
    client.post("/reset_prefix_cache")
    client.post("/reset_mm_cache")
    return client


def test_an_image_costs_one_token_per_started_patch(client: Client) -> None:
    alone = client.usage("what is this")["prompt_tokens"]
    one = client.usage("what is this", SMALL)
    assert one["prompt_tokens_details"]["multimodal_tokens"] == {"image": SMALL_TOKENS}
    five = client.usage("what is this", *[SMALL] * 5)
    assert five["prompt_tokens"] - one["prompt_tokens"] == 4 * SMALL_TOKENS
    assert five["prompt_tokens_details"]["multimodal_tokens"] == {"image": 5 * SMALL_TOKENS}
    # In ChatML as plain text a word may join the mark behind it, so the text alone may cost a token more or less.
    assert abs(one["prompt_tokens"] - SMALL_TOKENS - alone) <= 3
    # A part of a patch is a patch: 281 x 141 pixels are 11 x 6.
    odd = client.usage("what is this", picture((281, 141)))
    assert odd["prompt_tokens_details"]["multimodal_tokens"] == {"image": 66}


def test_requests_with_the_same_image_share_its_blocks(client: Client) -> None:
    assert client.cached("first words", SMALL) == 0
    head = client.post("/tokenize", {"messages": messages("first words", SMALL)}).json()["tokens"]
    before_text = len(head) - head[::-1].index(head[SMALL_TOKENS])
    assert client.cached("quite another question", SMALL) == before_text // BLOCK * BLOCK > 0
    # Another image of the same size has the same placeholders, and nothing in common but the opening.
    assert client.cached("first words", OTHER) == 0
    assert client.cached("first words", SMALL, rank=1) == 0


def test_the_same_image_elsewhere_is_another_block(client: Client) -> None:
    shifted = messages("first words", SMALL)
    shifted[0]["content"].insert(0, {"type": "text", "text": "look"})
    client.usage("first words", SMALL)
    body = {"messages": shifted, "max_tokens": 1}
    usage = client.post("/v1/chat/completions", body).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


def test_the_multimodal_cache_counts_items(client: Client) -> None:
    def counts() -> list[float]:
        return [client.counter(f"mm_cache_{name}", rank) for rank in (0, 1) for name in ("queries", "hits")]

    begin = counts()
    client.usage("one", *[SMALL] * 5)
    client.usage("two", SMALL, rank=1)
    client.usage("three", OTHER)
    client.usage("four")
    assert [now - was for now, was in zip(counts(), begin, strict=True)] == [6, 4, 1, 1]
    assert client.post("/reset_mm_cache").status_code == 200
    client.usage("five", SMALL)
    assert [now - was for now, was in zip(counts(), begin, strict=True)] == [7, 4, 1, 1]


def test_streams_tell_image_tokens(client: Client) -> None:
    body = {
        "messages": messages("a stream", SMALL),
        "max_tokens": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    text = client.post("/v1/chat/completions", body).text
    assert f'"multimodal_tokens":{{"image":{SMALL_TOKENS}}}' in text
    told = client.post("/tokenize", {"messages": messages("a stream", SMALL)}).json()
    assert f'"prompt_tokens":{told["count"]}' in text


@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        (data_url(b"no image"), "Failed to load image: cannot identify image file"),
        ("data:image/png;base64,***", "Failed to load image"),
        ("data:image/png,abc", "Only base64 data URLs"),
        ("http://127.0.0.1:1/image.png", "data URLs only"),
    ],
)
def test_what_is_no_image_is_refused(client: Client, address: str, complaint: str) -> None:
    body = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": address}}]}]}
    answer = client.post("/v1/chat/completions", body)
    assert answer.status_code == 400
    assert complaint in answer.json()["error"]["message"]


def test_a_fixed_number_of_tokens() -> None:
    config = SimulatorConfig(multimodal=True, tokens_per_image=7)
    with start_simulator(config) as simulator:
        usage = Client(simulator.url).usage("hello", b"not even an image")
    assert usage["prompt_tokens_details"]["multimodal_tokens"] == {"image": 7}


def test_a_text_model_takes_no_image() -> None:
    with start_simulator(SimulatorConfig()) as simulator:
        answer = Client(simulator.url).post("/v1/chat/completions", {"messages": messages("hello", SMALL)})
    assert answer.status_code == 400
    assert "not a multimodal model" in answer.json()["error"]["message"]
