"""Texts of exact length, with every kind of tokenizer. The oracle is the tokenizer itself."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import ScenarioError
from prompts.tokenizer import Tokenizer, load_tokenizer
from prompts.words import WordTexts, find_words, frequent_words
from tests.tokenizer_kinds import (
    qwen_tokenizer_directory,
    trained_directory,
)

KINDS = {
    "demo": lambda _: "builtin:demo",
    "qwen": lambda folder: str(qwen_tokenizer_directory(folder)),
    "unigram": lambda folder: str(trained_directory(folder, "unigram")),
    "wordpiece": lambda folder: str(trained_directory(folder, "wordpiece")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_are_exact_and_keys_decide(kind: str, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(KINDS[kind](tmp_path / kind))
    texts = WordTexts(tokenizer, 7)
    for tokens in (1, 2, 31, 32, 257, 4000):
        assert len(tokenizer.encode(texts.text("a", tokens))) == tokens
    opened = texts.text("a", 100, opening="PREFIX_0a1b2c3d")
    assert opened.startswith("PREFIX_0a1b2c3d ")
    assert len(tokenizer.encode(opened)) == 100
    assert texts.text("a", 64) == WordTexts(tokenizer, 7).text("a", 64)
    others = {texts.text("a", 64), texts.text("b", 64), WordTexts(tokenizer, 8).text("a", 64)}
    assert len(others) == 3
    longer = texts.text("a", 100).split(" ")
    assert longer[:64] == texts.text("a", 64).split(" ")


@pytest.fixture(scope="module")
def demo() -> Tokenizer:
    return load_tokenizer("builtin:demo")


@pytest.fixture(scope="module")
def demo_texts(demo: Tokenizer) -> WordTexts:
    return WordTexts(demo, 1)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.text(max_size=5), st.integers(1, 300)), min_size=1, max_size=4))
def test_texts_joined_by_a_space_cost_what_their_parts_cost(
    demo: Tokenizer, demo_texts: WordTexts, parts: list[tuple[str, int]]
) -> None:
    joined = " ".join(demo_texts.text(key, tokens) for key, tokens in parts)
    assert len(demo.encode(joined)) == sum(tokens for _, tokens in parts)


def test_texts_of_different_keys_part_within_their_first_words(demo_texts: WordTexts) -> None:
    beginnings = {tuple(demo_texts.text(f"document {i}", 40).split(" ")[:4]) for i in range(500)}
    assert len(beginnings) == 500


def test_nothing_and_too_little(demo_texts: WordTexts) -> None:
    assert demo_texts.text("a", 0) == ""
    with pytest.raises(ScenarioError, match=r"a text of 2 tokens that begins with 'PREFIX_01234567'"):
        demo_texts.text("a", 2, opening="PREFIX_01234567")


class _Letters:
    """Counts characters: no word costs one."""

    path = "letters"

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(text.encode()) for text in texts]


def test_a_vocabulary_without_words_is_refused_and_named() -> None:
    with pytest.raises(ScenarioError, match="tokenizer letters: only 0 words"):
        find_words(_Letters())


class _Asked:
    """Counts what a tokenizer is asked for."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.path = tokenizer.path
        self.texts = 0
        self.rounds = 0

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        self.texts += len(texts)
        self.rounds += 1
        return self._tokenizer.encode_batch(texts)


def test_an_engine_that_is_asked_is_asked_for_little_and_for_much_at_once(demo: Tokenizer) -> None:
    asked = _Asked(demo)
    texts = WordTexts(asked, 1)
    assert asked.texts < 200
    assert asked.rounds < 12
    asked.texts = asked.rounds = 0
    places = [(f"document {i}", 100 + i, "") for i in range(50)] + [("p", 64, "PREFIX_0a1b2c3d")]
    texts.make(places)
    assert asked.rounds <= 4, "one for the openings, one or a few for all texts"
    made = {place: texts.text(*place) for place in places}
    assert {place: len(demo.encode(text)) for place, text in made.items()} == {
        place: place[1] for place in places
    }
    texts.make(places)
    assert asked.rounds <= 4, "made once"


@pytest.mark.parametrize("kind", KINDS)
def test_words_found_in_rows_are_those_found_one_by_one(kind: str, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(KINDS[kind](tmp_path / kind))
    found = find_words(tokenizer)
    anchor = frequent_words()[0]
    base = len(tokenizer.encode(anchor))
    assert all(len(tokenizer.encode(f"{anchor} {word}")) == base + 1 for word in found.words)
    assert all(len(tokenizer.encode(word)) == 1 for word in found.openers)
