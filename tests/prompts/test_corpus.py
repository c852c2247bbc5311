"""Reading corpora, choosing records, and encoding each of them once."""

import hashlib
import json
import random
import tracemalloc
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import ExitCode, ScenarioError
from prompts.corpus import Corpus, EncodedCorpus, Selection, load_corpus, normalise, select_records
from prompts.tokenizer import Tokenizer, load_tokenizer


def write(tmp_path: Path, content: bytes | str) -> Path:
    file = tmp_path / "corpus.jsonl"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def corpus_of(*texts: str) -> Corpus:
    return Corpus(
        "c.jsonl", "0" * 64, texts, tuple(hashlib.sha256(text.encode()).hexdigest() for text in texts)
    )


def test_reads_what_is_there(tmp_path: Path) -> None:
    content = '\ufeff{"q": "  one\\t two\\n"}\n\n  \n{"q": "Äpfel", "other": 1}\r\n'
    corpus = load_corpus(write(tmp_path, content), "q")
    assert corpus.texts == ("one two", "Äpfel")
    assert corpus.sha256[1] == hashlib.sha256("Äpfel".encode()).hexdigest()
    assert corpus.file_sha256 == hashlib.sha256(content.encode()).hexdigest()


def test_builtin() -> None:
    assert len(load_corpus("builtin:word-problems", "question")) > 3000
    with pytest.raises(ScenarioError, match="builtin:word-problems"):
        load_corpus("builtin:poems", "question")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ('{"q": "a"}\n\n{"q": ', "corpus.jsonl:3: not valid JSON"),
        ('{"q": "a"}\n[1]\n', "corpus.jsonl:2: a JSON object is needed, found list"),
        ('{"x": 1, "b": 2}\n', "corpus.jsonl:1: the field 'q' is missing \\(fields: b, x\\)"),
        ('{"q": "a"}\n{"q": "  "}', "corpus.jsonl:2: the field 'q' must be a text"),
        ('{"q": 7}', "corpus.jsonl:1: the field 'q' must be a text with something in it, found 7"),
        (b'{"q": "\xff"}', "corpus.jsonl:1: not valid JSON"),
    ],
)
def test_bad_corpora_name_file_and_line(tmp_path: Path, content: bytes | str, expected: str) -> None:
    with pytest.raises(ScenarioError, match=expected) as caught:
        load_corpus(write(tmp_path, content), "q")
    assert caught.value.exit_code == ExitCode.USAGE
    assert "\n" not in str(caught.value)


def test_unreadable(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.jsonl"):
        with pytest.raises(ScenarioError, match=r"corpus\.path: .* cannot be read"):
            load_corpus(path, "q")


def test_random_selection_is_whole_shuffles_cut_to_size() -> None:
    corpus = corpus_of(*"abcde")
    pool = select_records(corpus, Selection(), 12, seed=342)
    rng = random.Random(342)
    expected: list[int] = []
    for _ in range(3):
        order = [0, 1, 2, 3, 4]
        rng.shuffle(order)
        expected += order
    assert pool == expected[:12]
    assert max(Counter(pool[:10]).values()) == 2
    assert len(select_records(corpus, Selection(), 1, seed=1)) == 2
    assert len(select_records(corpus, Selection(), 0, seed=1)) == 2


def test_listed_records_are_reused_cyclically_and_indices_come_first() -> None:
    corpus = corpus_of(*"abcde")
    digest = corpus.sha256[0]
    assert select_records(corpus, Selection("indices", indices=(3, 1)), 5, 0) == [3, 1, 3, 1, 3]
    assert select_records(corpus, Selection("question_sha256", question_sha256=(digest.upper(),)), 2, 0) == [
        0,
        0,
    ]
    mixed = Selection("mixed", indices=(4,), question_sha256=(digest, corpus.sha256[2]))
    assert select_records(corpus, mixed, 4, 0) == [4, 0, 2, 4]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (
            Selection("indices", indices=(0, 3)),
            r"corpus\.selection\.indices\[1\]: there is no record 3; .* 3 \(0 to 2\)",
        ),
        (Selection("indices", indices=(-1,), place="o"), r"o\.indices\[0\]: there is no record -1"),
        (
            Selection("question_sha256", question_sha256=("ab" * 32,)),
            r"question_sha256\[0\]: abab.* matches no record",
        ),
        (
            Selection("mixed", question_sha256=(hashlib.sha256(b"twice").hexdigest(),)),
            "matches records 1 and 2",
        ),
        (Selection("mixed"), "needs at least one record"),
    ],
)
def test_bad_selections_name_the_place(selection: Selection, expected: str) -> None:
    with pytest.raises(ScenarioError, match=expected):
        select_records(corpus_of("once", "twice", "twice"), selection, 4, 0)


class Counting:
    """A tokenizer that counts how often it encodes each text."""

    def __init__(self, inner: Tokenizer) -> None:
        self.inner = inner
        self.seen: Counter[str] = Counter()

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        self.seen.update(texts)
        return self.inner.encode_batch(texts)


def test_records_are_kept_once_encoded_and_the_stream_cycles() -> None:
    tokenizer = Counting(load_tokenizer("builtin:demo"))
    corpus = corpus_of(*(f"Hana has {i} apples." for i in range(20)))
    encoded = EncodedCorpus(corpus, tokenizer)  # type: ignore[arg-type]
    encoded.load(range(12, 20))
    before = tokenizer.seen.copy()
    encoded.load(range(12, 20))
    ids, used = encoded.stream([15, 12, 17], 1, 40, first=False)
    assert tokenizer.seen == before
    assert used == [12, 17, 15, 12, 17, 15][: len(used)]
    assert tokenizer.inner.decode(ids.tolist()) == "".join(f" Hana has {i} apples." for i in used)
    assert len(ids) >= 40


def test_records_that_would_bring_special_tokens_are_left_out() -> None:
    tokenizer = load_tokenizer("builtin:demo")
    corpus = corpus_of("One apple.", "Two <|endoftext|> apples.", "Three apples.")
    encoded = EncodedCorpus(corpus, tokenizer)
    assert encoded.stream([0, 1, 2], 0, 9, first=True)[1][:2] == [0, 2]
    assert encoded.unusable == {1}
    with pytest.raises(ScenarioError, match="no selected record"):
        encoded.stream([1], 0, 3, first=False)


def test_a_corpus_in_chatml_is_refused_with_its_records_and_its_marks() -> None:
    tokenizer = load_tokenizer("builtin:demo")
    mark = tokenizer.decode([tokenizer.special_token_ids[0]])
    encoded = EncodedCorpus(corpus_of(*(f"{mark}user {i}{mark}" for i in range(8))), tokenizer)
    with pytest.raises(ScenarioError) as refused:
        encoded.stream(range(8), 0, 3, first=True)
    assert "records 0, 1, 2, 3, 4 and 3 more are left out" in str(refused.value)
    assert f"they hold {mark!r}, which builtin:demo reads as special tokens and not as text" in str(
        refused.value
    )


def test_marks_that_the_tokenizer_reads_as_text_are_text() -> None:
    tokenizer = load_tokenizer("builtin:demo")
    encoded = EncodedCorpus(corpus_of("<|no_such_mark|>user hello"), tokenizer)
    ids, used = encoded.stream([0], 0, 3, first=True)
    assert used == [0]
    assert tokenizer.decode(ids.tolist()).startswith("<|no_such_mark|>")


def test_every_line_of_gsm8k_is_read() -> None:
    file = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "gsm8k_test.jsonl"
    if not file.is_file():
        pytest.skip("GSM8K is not beside the checkout")
    corpus = load_corpus(file, "question")
    assert len(corpus) == len(file.read_text(encoding="utf-8").splitlines())
    last = json.loads(file.read_text(encoding="utf-8").splitlines()[-1])["question"]
    assert corpus.texts[-1].split() == last.split()


SPACES = " \t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u2003\u2028\u3000"


@given(st.text(st.sampled_from("ab\u82f9" + SPACES)), st.integers(1, 5))
def test_a_long_text_is_normalised_as_a_short_one(text: str, long: int) -> None:
    with patch("prompts.corpus.LONG_TEXT", long):
        assert normalise(text) == " ".join(text.split())


def test_a_record_costs_memory_with_a_small_factor_of_its_text(tmp_path: Path) -> None:
    """Python's own memory; what the tokenizer takes is bounded by the sizes of its batches, below."""
    text = "ab " * 700_000
    file = write(tmp_path, json.dumps({"q": text}) + "\n")
    del text
    tracemalloc.start()
    try:
        load_corpus(file, "q")
        assert tracemalloc.get_traced_memory()[1] < 20 * file.stat().st_size
    finally:
        tracemalloc.stop()


class Batches(Counting):
    """Also keeps how much text each call brought."""

    def __init__(self, inner: Tokenizer) -> None:
        super().__init__(inner)
        self.characters: list[int] = []

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        self.characters.append(sum(map(len, texts)))
        return super().encode_batch(texts)


@pytest.mark.parametrize("unit", ["Hana has 7 apples and walks home. ", "\u82f9\u679c\u9999\u8549", "x"])
def test_a_long_record_goes_to_the_tokenizer_in_pieces(unit: str) -> None:
    tokenizer = Batches(load_tokenizer("builtin:demo"))
    text = normalise(unit * (100_000 // len(unit)))
    encoded = EncodedCorpus(corpus_of(text, "short"), tokenizer)  # type: ignore[arg-type]
    for ids in (encoded.first(0), encoded.following(0)):
        assert tokenizer.inner.decode(ids.tolist()).strip() == text
        assert ids.dtype == np.int32
    assert max(tokenizer.characters) < 40_000
    assert encoded.unusable == set()
    stream, used = encoded.stream([0, 1], 0, 50, first=True)
    assert len(stream) >= 50
    assert used == [0]


def test_pieces_cut_at_spaces_give_the_ids_of_the_whole() -> None:
    tokenizer = load_tokenizer("builtin:demo")
    text = normalise("Hana has 7 apples, and Tom (her friend) has 19; they walk home. " * 500)
    encoded = EncodedCorpus(corpus_of(text, "short"), tokenizer)
    assert encoded.first(0).tolist() == tokenizer.encode(text)
    assert encoded.following(0).tolist() == tokenizer.encode(" " + text)
