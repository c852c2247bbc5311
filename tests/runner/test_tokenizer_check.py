"""What a user is told whose tokens are not the engine's."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prompts.tokenizer import load_tokenizer
from runner.control import Answer
from runner.tokenizer_check import tokenizer_advice
from tests.tokenizer_kinds import trained_directory


def client(root: Any) -> Any:
    body = {"data": [{"id": "m", "root": root}]}
    return SimpleNamespace(get=lambda _path: Answer(200, body, ""))


@pytest.fixture
def served(tmp_path: Path) -> Path:
    folder = trained_directory(tmp_path / "model", "unigram")
    settings = folder / "tokenizer_config.json"
    known = json.loads(settings.read_text()) if settings.is_file() else {}
    settings.write_text(json.dumps(known | {"tokenizer_class": "LlamaTokenizerFast"}))
    (folder / "config.json").write_text(json.dumps({"transformers_version": "4.57.1"}))
    return folder


def test_another_directory_is_to_be_set(served: Path) -> None:
    tokenizer = load_tokenizer(str(served))
    for root in ("/models/other", None, 7):
        assert tokenizer_advice(client(root), tokenizer) == (
            f"set tokenizer.path ({served}) to the engine's own tokenizer and prepare again"
        )


def test_the_directory_that_is_served_already_is_not_to_be_set_again(served: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(served)
    said = tokenizer_advice(client(str(tmp_path / "link")), load_tokenizer(str(served)))
    assert "already is what the engine serves" in said
    assert "tokenizers.Tokenizer (tokenizers " in said
    assert "LlamaTokenizerFast (written by transformers 4.57.1)" in said
    assert "to the engine's own tokenizer" not in said
