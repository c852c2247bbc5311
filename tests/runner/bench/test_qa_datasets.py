"""Local data sets of the known shapes, skipped records, and files that cannot be used."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contract.errors import ScenarioError
from runner.bench.qa_datasets import load_samples, read_sample
from runner.workloads.plan import QaSample

GOOD = {
    "id": "a",
    "question": "Who?",
    "answer": "Ann",
    "paragraphs": [{"title": "T", "paragraph_text": "Ann did."}],
}


@pytest.mark.parametrize(
    ("record", "sample"),
    [
        (GOOD, QaSample("a", "Who?", ("T\nAnn did.",), ("Ann",))),
        (
            {
                "_id": 7,
                "query": " Who? ",
                "ctxs": [{"title": "T", "text": "x"}, {"text": "y"}],
                "answers": ["A", "B", "A"],
            },
            QaSample("7", "Who?", ("T\nx", "y"), ("A", "B")),
        ),
        (
            {
                "question": "Q",
                "answer": "A",
                "answer_aliases": ["B"],
                "extra": {"answer_aliases": ["C"]},
                "context": {"title": ["T", "U"], "sentences": [["one. ", "two."], ["three."]]},
            },
            QaSample("5", "Q", ("T\none. two.", "U\nthree."), ("A", "B", "C")),
        ),
        (
            {"user_input": "Q", "reference": "A", "retrieved_contexts": ["x", " y "]},
            QaSample("5", "Q", ("x", "y"), ("A",)),
        ),
        (
            {"question": "Q", "answer": "A", "context": [["T", ["s1 ", "s2"]]]},
            QaSample("5", "Q", ("T\ns1 s2",), ("A",)),
        ),
        ({"question": "Q", "answer": "A", "context": "one text"}, QaSample("5", "Q", ("one text",), ("A",))),
        ({**GOOD, "question": " "}, None),
        ({**GOOD, "answer": None}, None),
        ({**GOOD, "paragraphs": []}, None),
        ({**GOOD, "paragraphs": [{"title": "only a title"}]}, None),
        ("text", None),
    ],
)
def test_shapes(record: Any, sample: QaSample | None) -> None:
    assert read_sample(record, 5) == sample


@pytest.mark.parametrize("kind", [".json", ".jsonl", ".parquet", ".pq"])
def test_files(tmp_path: Path, kind: str) -> None:
    records = [{**GOOD, "id": str(i), "answer": "" if i == 1 else f"A{i}"} for i in range(5)]
    path = tmp_path / f"data{kind}"
    if kind == ".json":
        path.write_text(json.dumps(records))
    elif kind == ".jsonl":
        path.write_text("\n".join(map(json.dumps, records)) + "\n\n")
    else:
        pq.write_table(pa.Table.from_pylist(records), path)
    samples, skipped = load_samples(str(path), 3)
    assert [sample.sample_id for sample in samples] == ["0", "2", "3"], "in the order of the file"
    assert skipped == 1
    assert len(load_samples(str(path), 99)[0]) == 4


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("gone.json", None, "cannot be read"),
        ("data.txt", "x", "must be musique, hotpotqa, or a .json, .jsonl or .parquet file"),
        ("data.json", "{", "is damaged"),
        ("data.json", "{}", "must hold a list"),
        ("data.jsonl", "{", "is damaged"),
        ("data.parquet", "no parquet", "is damaged"),
        (
            "data.json",
            '[{"question": "Q"}]',
            r"none of its records has passages, a question and answers \(1 looked at\)",
        ),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(ScenarioError, match=message):
        load_samples(str(path), 3)


def test_a_named_data_set_without_a_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        ScenarioError, match=r"dgslibisey/MuSiQue cannot be had .* musique_ans_v1\.0_dev\.jsonl"
    ):
        load_samples("musique", 3)
