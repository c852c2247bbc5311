"""Tokenizers of every kind, each made once per session."""

from collections.abc import Callable
from pathlib import Path

import pytest

from prompts.tokenizer import Tokenizer, load_tokenizer
from tests import tokenizer_kinds

_MAKERS: dict[str, Callable[[Path], Path]] = {
    "qwen": tokenizer_kinds.qwen_tokenizer_directory,
    "mistral-sentencepiece": tokenizer_kinds.mistral_sentencepiece_directory,
    "mistral-json": tokenizer_kinds.mistral_tokenizer_json_directory,
    "tekken": tokenizer_kinds.tekken_directory,
    "deepseek": tokenizer_kinds.deepseek_directory,
}


@pytest.fixture(scope="session")
def tokenizer_directory(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`tokenizer_directory(kind)`: a real tokenizer, or a trained one (`bpe`, `unigram`, ...; `-bos` for a BOS)."""
    made: dict[str, Path] = {}

    def directory(kind: str) -> Path:
        if kind not in made:
            target = tmp_path_factory.mktemp(kind)
            if kind in _MAKERS:
                made[kind] = _MAKERS[kind](target)
            else:
                plain = kind.removesuffix("-bos")
                made[kind] = tokenizer_kinds.trained_directory(
                    target, plain, bos=plain != kind, vocabulary=1000 if "across" in kind else 4000
                )
        return made[kind]

    return directory


@pytest.fixture(scope="session")
def tokenizer_of(tokenizer_directory: Callable[[str], Path]) -> Callable[[str], Tokenizer]:
    """`tokenizer_of(kind)`: the same, loaded once."""
    loaded: dict[str, Tokenizer] = {}

    def tokenizer(kind: str) -> Tokenizer:
        if kind not in loaded:
            loaded[kind] = load_tokenizer(str(tokenizer_directory(kind)))
        return loaded[kind]

    return tokenizer
