"""Bad input of every kind: one clear line with the place, exit 2, nothing on stdout, no traceback."""

from pathlib import Path
from typing import Any

import pytest

from tests.hitlab.conftest import Hitlab, WriteScenario

URL = "http://127.0.0.1:9"
BAD_FIELD = '{"question": "a"}\n\n{"text": "a"}\n'


@pytest.mark.parametrize(
    ("sections", "files", "expected"),
    [
        ({"requests": {"count": 0}}, {}, ["requests.count: found 0; must be >= 1"]),
        ({"requests": {"cuont": 1}}, {}, ["requests.cuont: unknown field; did you mean 'count'?"]),
        ({"service": {"dp_size": "2"}}, {}, ["service.dp_size: found '2'; must be an integer"]),
        (
            {"requests": {"count": -1}, "run": {"random_seed": None}, "corpus": {"file": 1}},
            {},
            ["run.random_seed", "requests.count", "corpus.file"],
        ),
        ({"corpus": {"path": "c.jsonl"}}, {"c.jsonl": ""}, ["c.jsonl is empty"]),
        ({"corpus": {"path": "c.jsonl"}}, {"c.jsonl": "\n \n"}, ["c.jsonl is empty"]),
        ({"corpus": {"path": "c.jsonl"}}, {"c.jsonl": '{"question": "a b"}\n{oops}\n'}, ["c.jsonl:2: not valid JSON"]),
        ({"corpus": {"path": "c.jsonl"}}, {"c.jsonl": BAD_FIELD}, ["c.jsonl:3", "'question'"]),
        ({"corpus": {"path": "c.jsonl"}}, {"c.jsonl": '["question"]\n'}, ["c.jsonl:1", "JSON object"]),
        ({"corpus": {"path": "none.jsonl"}}, {}, ["none.jsonl"]),
        ({"corpus": {"field": "text"}}, {}, ["'text'"]),
        (
            {"corpus": {"selection": {"mode": "indices", "values": [10**6]}}},
            {},
            ["corpus.selection", "there is no record 1000000"],
        ),
        (
            {"corpus": {"selection": {"mode": "question_sha256", "values": ["0" * 64]}}},
            {},
            ["corpus.selection", "matches no record"],
        ),
        (
            {"requests": {"count": 2, "input_length": {"mode": "csv", "path": "l.csv"}}},
            {"l.csv": "tokens\n64\n64\n"},
            ["requests.input_length.path", "needs a column"],
        ),
        (
            {"requests": {"count": 2, "input_length": {"mode": "csv", "path": "l.csv"}}},
            {"l.csv": "input_tokens\n64\n"},
            ["requests.input_length.path", "has 1 rows for 2 requests"],
        ),
        (
            {"prefix_cache": {"groups": {"count": 2, "assignment": {"mode": "weights", "weights": [1, 1, 1]}}}},
            {},
            ["prefix_cache.groups.assignment.weights: has 3 weights for groups.count 2"],
        ),
        (
            {"prefix_cache": {"groups": {"count": 2, "overrides": {"group-9": {}}}}},
            {},
            ["prefix_cache.groups.overrides.group-9: no such group"],
        ),
        (
            {"requests": {"input_length": {"mode": "fixed", "value": 8}}},
            {},
            ["requests.input_length: can be 8 tokens; must be >= the 16 that are never shared"],
        ),
        (
            {
                "tokenizer": {"block_size": 1},
                "requests": {"count": 20_000, "input_length": {"mode": "fixed", "value": 4}},
            },
            {},
            ["tokenizer.block_size", "seeds"],
        ),
        ({"tokenizer": {"path": "builtin:none"}}, {}, ["builtin:none"]),
        ({"tokenizer": {"path": "tok"}}, {"tok/tokenizer.json": "{"}, ["tok"]),
    ],
)  # fmt: skip
def test_prepare_refuses(
    hitlab: Hitlab,
    write_scenario: WriteScenario,
    tmp_path: Path,
    sections: dict[str, dict[str, Any]],
    files: dict[str, str],
    expected: list[str],
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    path = write_scenario(URL, **sections)
    ended = hitlab("prepare", "--scenario", path, "--mode", "text")
    assert ended.code == 2, ended.err
    assert ended.out == ""
    lines = [
        line for line in ended.err.splitlines() if not line.startswith(("Plan requests", "Generate prompts"))
    ]
    assert all(line.startswith("ERROR: ") for line in lines)
    for part in expected:
        assert sum(part in line for line in lines) >= 1, ended.err
    assert "Traceback" not in ended.err
    assert not list(tmp_path.glob("out_*/result/*.manifest.json"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["prepare", "--scenario", "none.json"], "--mode text"),
        (["prepare", "--scenario", "none.json", "--mode", "audio"], "must be text or mm"),
        (["inspect", "--scenario", "none.json"], "none.json: no such file"),
        (["inspect"], "--scenario"),
        (["nonsense"], "nonsense"),
        (["run", "--scenario", "none.json", "--engine", "x"], "none.json"),
        (["analyze", "--manifest", "x.json"], "x.json"),
        (["sim", "--block-size", "0"], "--block-size"),
    ],
)
def test_usage_errors_name_what_to_do(hitlab: Hitlab, arguments: list[str], expected: str) -> None:
    ended = hitlab(*arguments)
    assert ended.code == (3 if arguments[0] == "analyze" else 2)
    assert expected in ended.err
    assert "Traceback" not in ended.err
    assert ended.out == ""


@pytest.mark.parametrize("option", ["--engine", "--driver"])
def test_overrides_are_checked(hitlab: Hitlab, write_scenario: WriteScenario, option: str) -> None:
    ended = hitlab("run", "--scenario", write_scenario(URL), option, "nonsense")
    assert ended.code == 2
    assert f"{option} nonsense: must be" in ended.err


def test_run_without_data_names_the_prepare_command(hitlab: Hitlab, write_scenario: WriteScenario) -> None:
    path = write_scenario(URL)
    ended = hitlab("run", "--scenario", path)
    assert ended.code == 3
    assert f"hitlab prepare --scenario {path} --mode text" in ended.err


@pytest.mark.parametrize("command", ["", "inspect", "prepare", "validate", "run", "analyze", "sim"])
def test_help_teaches(hitlab: Hitlab, command: str) -> None:
    ended = hitlab(*command.split(), "--help")
    assert ended.code == 0
    assert len(ended.out) > 200
    assert "\x1b" not in ended.out


def test_debug_shows_the_traceback(hitlab: Hitlab) -> None:
    ended = hitlab("--debug", "inspect", "--scenario", "none.json")
    assert ended.code == 2
    assert "Traceback" in ended.err
