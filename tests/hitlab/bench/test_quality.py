"""rag-qa-quality from its data set to its results file and a comparison, on an engine whose answers are known."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.hitlab.bench.conftest import CHAT, Bench, summary_of
from tests.hitlab.conftest import Hitlab
from tests.misbehaving_server import METRICS, MisbehavingServer, answers

SAMPLES = [
    {
        "id": f"q{i}",
        "question": f"Which train of story {i} was late?",
        "answers": ["the second one"],
        "context": [[f"Story {i}", [f"Two trains of story {i}. ", "The second one was late."]]],
    }
    for i in range(4)
]
MORE = [
    "--rag-max-output-length",
    "20",
    "--rag-doc-align-tokens",
    "16",
    "--rag-template-kwargs",
    "thinking=false",
]


class Speaker:
    """Answers with one text after another; None leaves it to the engine, which talks nonsense."""

    def __init__(self, *said: str | None) -> None:
        self._said = list(said)
        self.bodies: list[dict[str, Any]] = []

    async def __call__(self, server: MisbehavingServer, request: Any, response: Any) -> None:
        self.bodies.append(json.loads(request.body))
        if self.bodies[-1]["max_tokens"] == 1:
            await server.app(request, response)
            return
        text = self._said.pop(0)
        usage = {"prompt_tokens": 100, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 16}}
        deltas = [
            {"role": "assistant", "content": ""},
            {"reasoning_content": "<final_answer>a guess</final_answer>"},
            {"content": text[:9] if text else ""},
            {"content": text[9:] if text else ""},
        ]
        chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
        chunks += [
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {"choices": [], "usage": usage},
        ]
        events = [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks]
        response.send(200, b"".join([*events, b"data: [DONE]\n\n"]), "text/event-stream", ())


GOOD = "I think <final_answer>second one</final_answer>."


@pytest.fixture
def quality(broken: MisbehavingServer, bench: Bench, tmp_path: Path) -> Any:
    def run(*said: str | None, dataset: str = "qa.jsonl", more: tuple[str, ...] = ()) -> dict[str, Any]:
        lines = [json.dumps(sample) for sample in (*SAMPLES[:2], {"question": "?"}, *SAMPLES[2:])]
        (tmp_path / dataset).write_text("\n".join(lines))
        broken.instead[CHAT] = Speaker(*said)
        broken.instead[METRICS] = answers(404, b"{}")  # they would count other tokens than these answers do
        ended = bench(broken.url, "rag-qa-quality", "--rag-dataset", dataset, *MORE, *more)
        assert ended.code == 0, ended.err
        found: dict[str, Any] = json.loads((tmp_path / "rag_qa_quality.json").read_text())
        return found | {"out": ended.out, "bodies": broken.instead[CHAT].bodies}  # type: ignore[attr-defined]

    return run


def test_answers_are_scored(quality: Any, tmp_path: Path) -> None:
    found = quality(GOOD, "<final_answer>the third train</final_answer>", "<final_answer>cut", None)
    scores = {sample["sample_id"]: sample["f1"] for sample in found["per_sample"]}
    assert scores == {"q0": 1.0, "q1": 0.0, "q2": None, "q3": None}
    assert found["summary"] == {"num_samples": 4, "num_parsed": 2, "parse_rate": 0.5, "f1_mean": 0.5}
    assert found["config"]["template_kwargs"] == {"thinking": False}
    assert all(body["chat_template_kwargs"] == {"thinking": False} for body in found["bodies"])
    assert all(body["temperature"] == 0 for body in found["bodies"])
    assert "Answer Quality" in found["out"]
    assert "Records skipped:                                       1" in found["out"]
    assert "Mean F1 (scored only):                              0.50" in found["out"]
    summary = summary_of(tmp_path)
    assert summary["quality"]["run_fingerprint"] == found["run_fingerprint"] == summary["fingerprint"]
    report = next(tmp_path.glob("bench-*/result/runs/*/report.html")).read_text()
    assert "mean F1 of the scored" in report


def test_two_stacks_are_compared_by_sample(quality: Any, hitlab: Hitlab, tmp_path: Path) -> None:
    first = quality(GOOD, GOOD, GOOD, GOOD)
    (tmp_path / "rag_qa_quality.json").rename(tmp_path / "a.json")
    second = quality(GOOD, "<final_answer>first</final_answer>", GOOD, "nothing", dataset="copy.jsonl")
    (tmp_path / "rag_qa_quality.json").rename(tmp_path / "b.json")
    assert first["run_fingerprint"] == second["run_fingerprint"], "the same content under another name"
    ended = hitlab("bench", "compare", "a.json", "b.json", "--json")
    assert ended.code == 0, ended.err
    comparison = json.loads(ended.out)
    assert comparison["parse_rate"] == [1.0, 0.75]
    assert [change["sample_id"] for change in comparison["changed_answers"]] == ["q1", "q3"]
    assert comparison["metrics"]["f1"]["mean_difference"] == pytest.approx(-1 / 3)
    quality(GOOD, GOOD, more=("--rag-num-samples", "2"))
    refused = hitlab("bench", "compare", "a.json", "rag_qa_quality.json")
    assert refused.code == 3
    assert "rag_num_samples 50 and 2" in refused.err
