"""Reading corpora, choosing records, and encoding each of them once."""

import hashlib
import json
import random
from collections import Counter
from pathlib import Path

import pytest

from contract.errors import ExitCode, ScenarioError
from prompts.corpus import Corpus, EncodedCorpus, Selection, load_corpus, select_records
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


def test_every_line_of_gsm8k_is_read() -> None:
    file = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "gsm8k_test.jsonl"
    if not file.is_file():
        pytest.skip("GSM8K is not beside the checkout")
    corpus = load_corpus(file, "question")
    assert len(corpus) == len(file.read_text(encoding="utf-8").splitlines())
    last = json.loads(file.read_text(encoding="utf-8").splitlines()[-1])["question"]
    assert corpus.texts[-1].split() == last.split()
