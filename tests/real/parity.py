"""The same requests to the simulator and to a real vLLM, one after another, and what differs.

Equal means: status, the keys and types of every body and event, usage, error text, and afterwards what every counter
and histogram moved. Texts, ids and times are the engines' own.
"""

import json
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import requests
from prometheus_client.parser import text_string_to_metric_families

from simulator.config import SimulatorConfig
from simulator.process import RunningSimulator, start_simulator
from tests.real.engine import RunningEngine

COMPLETIONS, CHAT, TOKENIZE = "/v1/completions", "/v1/chat/completions", "/tokenize"
RESET = "/reset_prefix_cache"


@dataclass(frozen=True)
class Case:
    """One request; `model` stands for the served model's name."""

    path: str
    body: dict[str, Any] | bytes
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Facts:
    """What a real engine says about itself."""

    url: str
    model: str
    block_size: int
    ranks: int
    max_model_len: int
    blocks_per_rank: int
    vocabulary: int
    chats: bool


def facts_of(engine: RunningEngine) -> Facts:
    url = engine.url
    served = requests.get(f"{url}/v1/models", timeout=30).json()["data"][0]
    # A real engine chats only when the tokenizer brings a chat template; the simulator always speaks ChatML.
    hello = {"model": engine.model, "messages": [{"role": "user", "content": "hello"}]}
    config = next(sample.labels for sample in samples(url) if sample.name == "vllm:cache_config_info")
    return Facts(
        url=url,
        model=engine.model,
        block_size=engine.block_size,
        ranks=engine.ranks,
        max_model_len=int(served["max_model_len"]),
        # Of num_gpu_blocks all ranks' are added up; this is one rank's.
        blocks_per_rank=int(config["kv_cache_size_tokens"]) // engine.block_size,
        vocabulary=int(json.loads((engine.model_directory / "config.json").read_text())["vocab_size"]),
        chats=requests.post(f"{url}/tokenize", json=hello, timeout=30).status_code == 200,
    )


def samples(url: str) -> Iterator[Any]:
    for family in text_string_to_metric_families(requests.get(f"{url}/metrics", timeout=30).text):
        yield from family.samples


def cases(facts: Facts, seed: int, count: int, *, deep: bool = False) -> list[Case]:
    """Good and bad requests and resets, many of them at the edge of a block or of a limit.

    `deep`: prefixes of up to 80 blocks instead of 12, without resets, for a pool that cannot hold them; one sequence a
    request, since what is evicted would else depend on which of them ends first.
    """
    draw = random.Random(seed)
    size, longest = facts.block_size, facts.max_model_len
    blocks = 80 if deep else 12
    families = [[draw.randrange(1000, 2000) for _ in range(blocks * size + size)] for _ in range(6)]
    words = ["apples", "trains", "seven", "how many", "left", "\n", "a", "the price of", "café"]

    def prompt_ids() -> list[int]:
        shared = draw.randrange(0, blocks) * size + draw.choice([-1, 0, 0, 1, draw.randrange(size)])
        own = draw.choice([0, 1, size - 1, size, size + 1, draw.randrange(3 * size)])
        ids = [*draw.choice(families)[: max(0, shared)], *(draw.randrange(1000, 2000) for _ in range(own))]
        return ids or [7]

    def text() -> str:
        return " ".join(draw.choice(words) for _ in range(draw.randrange(1, 60)))

    def messages() -> list[dict[str, Any]]:
        asked: Any = text()
        if draw.random() < 0.2:
            asked = [{"type": "text", "text": asked}, {"type": "text", "text": text()}]
        start = [{"role": "system", "content": "Be brief."}] if draw.random() < 0.5 else []
        return [*start, {"role": "user", "content": asked}]

    def stream_options() -> dict[str, Any]:
        how = draw.randrange(4)
        if how == 0:
            return {}
        options: dict[str, Any] = {"stream": True}
        if how > 1:
            options["stream_options"] = {"include_usage": True}
        if how > 2:
            options["stream_options"]["continuous_usage_stats"] = True
        return options

    def good() -> Case:
        body: dict[str, Any] = {"model": facts.model, "ignore_eos": True, **stream_options()}
        headers = {"X-data-parallel-rank": str(draw.randrange(facts.ranks))}
        body["max_tokens"] = draw.choice([1, 1, 2, size, size + 1, draw.randrange(1, 40)])
        kind = draw.random()
        if kind < 0.55 or (deep and kind < 0.8):
            body["prompt"] = prompt_ids()
        elif kind < 0.65:
            body["prompt"] = text()
        elif kind < 0.72:
            body["prompt"] = draw.choice([[text(), text()], [prompt_ids(), prompt_ids(), prompt_ids()]])
            # A stream reports the hits of whichever prompt answers first, which is the scheduler's luck.
            body.pop("stream", None)
            body.pop("stream_options", None)
        elif kind < 0.8:
            body["prompt"] = prompt_ids()
            body["n"] = 2
        elif kind < 0.85:
            # Longer than what is left: the answer is cut at the model's limit.
            body["prompt"] = (families[0] * (longest // size))[: longest - draw.randrange(1, 6)]
            body["max_tokens"] = draw.choice([1, 5, 40])
        elif not facts.chats:
            body["prompt"] = text()
        else:
            body["messages"] = messages()
            body["max_tokens"] = draw.choice([1, 3, 40])
            return Case(CHAT, body, headers)
        if draw.random() < 0.1:
            body["cache_salt"] = draw.choice(["one", "two"])
        return Case(COMPLETIONS, body, headers)

    def bad() -> Case:
        plain = {"model": facts.model, "ignore_eos": True, "prompt": prompt_ids(), "max_tokens": 2}
        chat = {"model": facts.model, "messages": messages(), "max_tokens": 2}
        stream = draw.choice([{}, {"stream": True}])
        changes: list[dict[str, Any]] = [
            {"model": "nobody"},
            {"max_tokens": 0},
            {"max_tokens": -3},
            {"max_tokens": "many"},
            {"max_tokens": 1.5},
            {"max_tokens": longest + 1},
            {"prompt": [5] * longest},
            {"prompt": [5] * (longest + 1)},
            {"prompt": [5] * (longest + 900)},
            {"prompt": "one two three " * longest},
            {"prompt": []},
            {"prompt": ""},
            {"prompt": None},
            {"prompt": [[]]},
            {"prompt": [5, facts.vocabulary]},
            {"prompt": [[facts.vocabulary + 77]]},
            {"prompt": [5, -1]},
            {"prompt": [5, 0.5]},
            {"prompt": [5, "a"]},
            {"prompt": 7},
            {"prompt": {"a": 1}},
            {"n": 0},
            {"n": 1 << 20},
            {"n": 2, "temperature": 0},
            {"temperature": -1},
            {"top_p": 0},
            {"top_p": 1.5},
            {"top_k": -2},
            {"min_tokens": 3},
            {"min_tokens": -1},
            {"cache_salt": ""},
            {"cache_salt": 3},
            {"stream": "maybe"},
            {"stream": False, "stream_options": {"include_usage": True}},
            {"stream": True, "stream_options": {"include_usage": "huh"}},
        ]
        where = draw.random()
        if where < 0.55:
            return Case(COMPLETIONS, {**plain, **stream, **draw.choice(changes)})
        if where < 0.7:
            rank = draw.choice([str(facts.ranks), "-1", "99"])
            return Case(COMPLETIONS, {**plain, **stream}, {"X-data-parallel-rank": rank})
        if where < 0.85 and facts.chats:
            wrong: dict[str, Any] = draw.choice(
                [{"model": "nobody"}, {"messages": []}, {"max_tokens": 0}, {"max_tokens": longest + 1}]
            )
            return Case(CHAT, {**chat, **stream, **wrong})
        raw = draw.choice([b"", b"{", b'{"prompt": 1,}', b"[1]", b'"x"', b"\xff\xfe"])
        return Case(draw.choice([COMPLETIONS, CHAT, TOKENIZE]), raw)

    def tokenize() -> Case:
        asked: list[dict[str, Any]] = [
            {"prompt": text()},
            {"prompt": ""},
            {"prompt": [1]},
            {},
            {"prompt": "x", "model": "x"},
        ]
        body = {"model": facts.model, **draw.choice(asked)}
        if facts.chats and draw.random() < 0.2:
            body = {"model": facts.model, "messages": messages()}
        return Case(TOKENIZE, body)

    def empty() -> Case:
        query = draw.choice(
            ["", "?reset_external=true", "?reset_running_requests=true", "?reset_external=huh"]
        )
        return Case(RESET + query, b"")

    weights = [70, 24, 6, 0 if deep else 2]
    return [draw.choices([good, bad, tokenize, empty], weights=weights)[0]() for _ in range(count)]


@dataclass(frozen=True)
class Answer:
    status: int
    content_type: str
    shape: Any
    usage: Any
    error: Any
    cached: int | None


def ask(url: str, case: Case) -> Answer:
    data = case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode()
    response = requests.post(
        url + case.path,
        data=data,
        headers={"Content-Type": "application/json", **case.headers},
        timeout=120,
    )
    kind = response.headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
        assert events.pop() == "[DONE]"
        bodies = [json.loads(event) for event in events]
        # A loaded engine may put two tokens into one event, so it is the kinds of events that count.
        shape: Any = sorted({json.dumps(shape_of(body), sort_keys=True) for body in bodies})
        usages = [body["usage"] for body in bodies if "usage" in body and not body.get("choices")]
        errors = [body["error"] for body in bodies if "error" in body]
    else:
        body = response.json()
        shape = shape_of(body)
        usages = [body["usage"]] if isinstance(body, dict) and "usage" in body else []
        errors = [body["error"]] if isinstance(body, dict) and "error" in body else []
        if case.path == TOKENIZE and response.status_code == 200:
            usages = [body]
    details = (usages[0].get("prompt_tokens_details") or {}) if usages else {}
    return Answer(response.status_code, kind, shape, usages, errors, details.get("cached_tokens"))


def shape_of(value: Any) -> Any:
    """Keys in order and types; what identifies an answer is left out of its strings."""
    if isinstance(value, dict):
        return {key: shape_of(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape_of(item) for item in value][:8]
    if isinstance(value, str):
        return re.sub(r"[0-9a-f]{16}", "#", value) if value.startswith(("cmpl-", "chatcmpl-")) else "str"
    return type(value).__name__


def counters(url: str) -> Counter[tuple[str, str]]:
    """Every sample that counts something, by name and labels without the model; times only by how many."""
    found: Counter[tuple[str, str]] = Counter()
    for sample in samples(url):
        name = sample.name
        if not name.startswith("vllm:") or not name.endswith(("_total", "_count", "_sum")):
            continue
        if "seconds_sum" in name or name == "vllm:iteration_tokens_total_count":
            continue
        labels = {key: text for key, text in sample.labels.items() if key != "model_name"}
        found[name, json.dumps(labels, sort_keys=True)] += sample.value
    return found


def settled(url: str) -> Counter[tuple[str, str]]:
    before = counters(url)
    for _ in range(40):
        time.sleep(0.25)
        now = counters(url)
        if now == before:
            return now
        before = now
    raise AssertionError("counters never came to rest")


def names_and_labels(url: str) -> dict[str, tuple[str, set[tuple[str, ...]]]]:
    text = requests.get(f"{url}/metrics", timeout=30).text
    return {
        family.name: (family.type, {tuple(sorted(sample.labels)) for sample in family.samples})
        for family in text_string_to_metric_families(text)
        if family.name.startswith(("vllm:", "process_", "python_"))
    }


def reset(url: str) -> None:
    answer = requests.post(f"{url}/reset_prefix_cache", timeout=30)
    assert answer.json() == {"success": True}


def simulator_for(facts: Facts, tokenizer: Path, *, blocks_per_rank: int | None = None) -> RunningSimulator:
    """A simulator of the same shape, with as many blocks unless told otherwise."""
    return start_simulator(
        SimulatorConfig(
            model_name=facts.model,
            tokenizer=str(tokenizer),
            vocab_size=facts.vocabulary,
            ranks=facts.ranks,
            block_size=facts.block_size,
            blocks_per_rank=blocks_per_rank or facts.blocks_per_rank,
            max_model_len=facts.max_model_len,
        )
    )


def same(real: Answer, simulated: Answer) -> bool:
    """Equal, but for one thing: a loaded engine may send all tokens of a short answer in its last event."""
    if replace(real, shape=None) != replace(simulated, shape=None):
        return False
    if real.shape == simulated.shape:
        return True
    if not real.content_type.startswith("text/event-stream") or not set(real.shape) < set(simulated.shape):
        return False
    lacking = set(simulated.shape) - set(real.shape)
    return all('"finish_reason": "NoneType"' in kind and '"role"' not in kind for kind in lacking)


@dataclass(frozen=True)
class Compared:
    """What two engines did with the same requests.

    Attributes:
        differing: one text per difference in an answer or a counter.
        answers: of the real engine.
        moved: by how much each series of the real engine that moved at all.
    """

    differing: list[str]
    answers: list[Answer]
    moved: dict[tuple[str, str], float]

    @property
    def hits(self) -> int:
        return sum(answer.cached or 0 for answer in self.answers)

    def __str__(self) -> str:
        answered = sum(answer.status == 200 for answer in self.answers)
        return (
            f"{len(self.answers)} requests, {answered} of them answered with 200, {self.hits} hit tokens, "
            f"{len(self.moved)} series moved, {len(self.differing)} differences"
        )


def compare(real: str, simulated: str, made: list[Case]) -> Compared:
    """Empty both, then ask both everything, one request after another."""
    reset(real)
    reset(simulated)
    before = settled(real), settled(simulated)
    differing: list[str] = []
    answers = []
    for number, case in enumerate(made):
        one, other = ask(real, case), ask(simulated, case)
        answers.append(one)
        if not same(one, other):
            differing.append(
                f"{number} {case.path} {str(case.body)[:150]} {case.headers}\n  {one}\n  {other}"
            )
    after = settled(real), settled(simulated)
    moved = [Counter(then) for then in after]
    for then, now in zip(before, moved, strict=True):
        now.subtract(then)
    differing.extend(
        f"{key}: {moved[0][key]} on the real engine, {moved[1][key]} on the simulator"
        for key in sorted(set(moved[0]) | set(moved[1]))
        if moved[0][key] != moved[1][key]
    )
    return Compared(differing, answers, {key: value for key, value in moved[0].items() if value})
