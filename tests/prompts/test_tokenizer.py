"""Tokenizers of every kind against transformers' AutoTokenizer, and what happens when one cannot be loaded."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import processors

from contract.errors import ScenarioError
from prompts.builtin import demo_tokenizer_directory, word_problems_path
from prompts.tokenizer import Tokenizer, load_tokenizer

Directory = Callable[[str], Path]
TokenizerOf = Callable[[str], Tokenizer]

QUESTIONS = [json.loads(line)["question"] for line in word_problems_path().read_text().splitlines()[:60]]
ODD = [
    "",
    " leading",
    "trailing ",
    "two  spaces",
    "tab\tand\nline\n\n end",
    "Äpfel, naïve, Ωmega 苹果 🍎🍏",
    "<s> and </s> and <|endoftext|>",
    "1234567890 3.14 $5",
    "don't can't",
]
REAL = ["qwen", "mistral-sentencepiece", "mistral-json", "tekken", "deepseek"]
TRAINED = ["bpe", "bpe-bos", "unigram", "unigram-bos", "metaspace-bpe", "wordpiece", "wordpiece-bos"]


def auto(directory: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(directory)


@pytest.mark.parametrize("kind", ["demo", *REAL, *TRAINED])
def test_equal_to_auto_tokenizer(
    tokenizer_directory: Directory, tokenizer_of: TokenizerOf, kind: str
) -> None:
    directory = demo_tokenizer_directory() if kind == "demo" else tokenizer_directory(kind)
    tokenizer = load_tokenizer("builtin:demo") if kind == "demo" else tokenizer_of(kind)
    reference = auto(directory)
    texts = QUESTIONS + ODD
    with_special = [reference(text).input_ids for text in texts]
    assert tokenizer.encode_batch_for_server(texts) == with_special
    assert tokenizer.encode_batch(texts) == [
        reference(text, add_special_tokens=False).input_ids for text in texts
    ]
    assert tokenizer.decode_batch(with_special) == [
        reference.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        for ids in with_special
    ]
    assert tokenizer.vocab_size == len(reference)
    assert set(tokenizer.special_token_ids) >= set(reference.all_special_ids)
    assert [*tokenizer.leading_ids, *tokenizer.encode("one"), *tokenizer.trailing_ids] == reference(
        "one"
    ).input_ids


@pytest.mark.parametrize(
    ("kind", "leading"),
    [
        ("qwen", ()),
        ("deepseek", ()),
        ("mistral-sentencepiece", (1,)),
        ("mistral-json", (1,)),
        ("tekken", (1,)),
        ("unigram-bos", (1,)),
    ],
)
def test_the_ids_that_the_server_puts_in_front(
    tokenizer_of: TokenizerOf, kind: str, leading: tuple[int]
) -> None:
    assert tokenizer_of(kind).leading_ids == leading


def edited(tmp_path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Path:
    """The demo tokenizer with its tokenizer.json and configuration changed."""
    target = tmp_path / "edited"
    shutil.copytree(demo_tokenizer_directory(), target)
    content = json.loads((target / "tokenizer.json").read_text())
    settings = json.loads((target / "tokenizer_config.json").read_text())
    change(content, settings)
    (target / "tokenizer.json").write_text(json.dumps(content))
    (target / "tokenizer_config.json").write_text(json.dumps(settings))
    return target


def named_tokens(content: dict[str, Any], settings: dict[str, Any]) -> None:
    settings |= {
        "bos_token": {"__type": "AddedToken", "content": "<bos>", "lstrip": False, "normalized": False},
        "additional_special_tokens": ["<tool>", "<|im_start|>"],
        "add_bos_token": True,
    }


def no_post_processor(content: dict[str, Any], settings: dict[str, Any]) -> None:
    content["post_processor"] = None
    settings |= {"add_bos_token": True, "bos_token": "<|endoftext|>"}


def truncation(content: dict[str, Any], settings: dict[str, Any]) -> None:
    content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {
        "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 3, "pad_type_id": 0, "pad_token": "<|pad|>",
    }  # fmt: skip


@pytest.mark.parametrize("change", [named_tokens, no_post_processor, truncation])
def test_the_configuration_counts_as_for_auto_tokenizer(
    tmp_path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]
) -> None:
    directory = edited(tmp_path, change)
    tokenizer, reference = load_tokenizer(str(directory)), auto(directory)
    for text in ["<bos> a <tool> b<|im_start|>", *QUESTIONS[:5]]:
        assert tokenizer.encode_for_server(text) == reference(text).input_ids
    assert tokenizer.vocab_size == len(reference)


def test_bos_and_eos(tmp_path: Path) -> None:
    backend = Backend.from_file(str(demo_tokenizer_directory() / "tokenizer.json"))
    backend.post_processor = processors.TemplateProcessing(
        single="<|im_start|> <|endoftext|> $A <|im_end|>",
        special_tokens=[("<|endoftext|>", 0), ("<|im_start|>", 1), ("<|im_end|>", 2)],
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(str(tmp_path / "tokenizer.json"))
    assert (tokenizer.leading_ids, tokenizer.trailing_ids) == ((1, 0), (2,))


def test_the_fingerprint_covers_the_vocabulary(tmp_path: Path) -> None:
    def swap(content: dict[str, Any], settings: dict[str, Any]) -> None:
        vocabulary = content["model"]["vocab"]
        vocabulary["Ġtrain"], vocabulary["Ġbakery"] = vocabulary["Ġbakery"], vocabulary["Ġtrain"]

    tokenizer, again = load_tokenizer("builtin:demo"), load_tokenizer(str(demo_tokenizer_directory()))
    other = load_tokenizer(str(edited(tmp_path, swap)))
    assert tokenizer.fingerprint == again.fingerprint != other.fingerprint
    assert other.vocab_size == tokenizer.vocab_size
    assert tokenizer.identity() == {
        "path": "builtin:demo",
        "revision": None,
        "class": "tokenizers.Tokenizer",
        "vocab_size": tokenizer.vocab_size,
        "special_token_ids": [0, 1, 2, 3],
        "fingerprint_sha256": tokenizer.fingerprint,
    }


def python(code: str, *arguments: str, path: Path | None = None) -> str:
    environment = {**os.environ, "PYTHONPATH": str(path)} if path else dict(os.environ)
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout.strip()


def test_a_tokenizer_json_needs_no_transformers_and_nothing_needs_torch(
    tmp_path: Path, tokenizer_directory: Directory
) -> None:
    # A torch that breaks when it is imported, although it looks installed.
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('torch was imported')")
    (tmp_path / "torch-2.9.0.dist-info").mkdir()
    (tmp_path / "torch-2.9.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch\nVersion: 2.9.0\n"
    )
    code = (
        "import sys; from prompts.tokenizer import Tokenizer, load_tokenizer; t = load_tokenizer(sys.argv[1]);"
        "t.encode('one'); print('transformers' in sys.modules, 'torch' in sys.modules)"
    )
    assert python(code, "builtin:demo", path=tmp_path) == "False False"
    assert python(code, str(tokenizer_directory("mistral-sentencepiece")), path=tmp_path) == "True False"


def test_without_transformers_the_error_says_what_to_install(
    tokenizer_directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tokenizer_directory("mistral-sentencepiece")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ScenarioError, match="`make transformers` adds it"):
        load_tokenizer(str(directory))


CHARACTERS = """
from transformers import PreTrainedTokenizer

class CharacterTokenizer(PreTrainedTokenizer):
    vocab_files_names = {}
    model_input_names = ["input_ids"]

    def __init__(self, **kwargs):
        self._ids = {chr(i): i - 32 for i in range(32, 127)}
        super().__init__(**kwargs)

    @property
    def vocab_size(self):
        return len(self._ids)

    def get_vocab(self):
        return dict(self._ids)

    def _tokenize(self, text, **kwargs):
        return list(text)

    def _convert_token_to_id(self, token):
        return self._ids.get(token, 31)

    def _convert_id_to_token(self, index):
        return chr(index + 32)

    def convert_tokens_to_string(self, tokens):
        return "".join(tokens)
"""


@pytest.fixture
def remote_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory whose tokenizer is Python code."""
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    target = tmp_path / "characters"
    target.mkdir()
    (target / "tokenization_characters.py").write_text(CHARACTERS)
    settings = {
        "tokenizer_class": "CharacterTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_characters.CharacterTokenizer", None]},
    }
    (target / "tokenizer_config.json").write_text(json.dumps(settings))
    return target


def test_remote_code_is_run_only_when_trusted(remote_code: Path) -> None:
    with pytest.raises(ScenarioError, match="trust_remote_code"):
        load_tokenizer(str(remote_code))
    tokenizer = load_tokenizer(str(remote_code), trust_remote_code=True)
    assert tokenizer.encode("Ab 1") == [33, 66, 0, 17]
    assert tokenizer.decode([33, 66, 0, 17]) == "Ab 1"
    assert "CharacterTokenizer" in tokenizer.class_name
    assert len(tokenizer.fingerprint) == 64


def test_hub_ids_are_fetched_with_their_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []

    def fetch(repository: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        assert "tokenizer.json" in allow_patterns
        asked.append((repository, revision))
        return str(demo_tokenizer_directory())

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    tokenizer = load_tokenizer("some/model", revision="v2")
    assert asked == [("some/model", "v2")]
    assert tokenizer.identity()["revision"] == "v2"


def test_a_hub_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> str:
        raise OSError("no route\nto host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ScenarioError, match=r"no route.*set tokenizer\.path to its directory") as caught:
        load_tokenizer("some/model")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["builtin:other", "./missing", "/missing/there", "a/b/c", "missing.json"])
def test_nothing_there(path: str) -> None:
    with pytest.raises(ScenarioError, match="there is no"):
        load_tokenizer(path)


def test_damaged_files(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": ')
    with pytest.raises(ScenarioError, match=r"not a usable tokenizer\.json"):
        load_tokenizer(str(tmp_path))
    shutil.copyfile(demo_tokenizer_directory() / "tokenizer.json", tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(ScenarioError, match="must hold a JSON object, not list"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ScenarioError, match="not valid JSON"):
        load_tokenizer(str(tmp_path))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ScenarioError, match="cannot be loaded"):
        load_tokenizer(str(empty))
