"""Tokenizers: loading, encoding as the server does, and an identity that covers the whole vocabulary.

A tokenizer with a `tokenizer.json` is read by the `tokenizers` package alone, the way transformers 5 reads it: the file
decides (its post-processor too, whatever `add_bos_token` in tokenizer_config.json says), and the special tokens named
in the configuration are added when the file lacks them. Everything else (SentencePiece, tiktoken, remote code) goes
through transformers, which is imported only then. torch is never imported by this module.

An engine's `/v1/completions` encodes a text prompt with special tokens added, so a BOS token counts among the prompt
tokens and stands at the front of the first block. `encode_for_server` gives these ids; `leading_ids` and
`trailing_ids` are the ones that the text itself does not contain.
"""

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import tokenizers

from contract.errors import ScenarioError
from contract.files import expanded, read_text
from prompts.builtin import demo_tokenizer_directory

BUILTIN_DEMO = "builtin:demo"

_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# Encoded to find the ids that the server adds; the empty text must agree with the others.
_PROBES = ("Two trains leave the station.", "7", "")


class _Codec(Protocol):
    """What differs between the two ways to read a tokenizer."""

    class_name: str
    vocab_size: int
    special_token_ids: tuple[int, ...]

    def encode_batch(self, texts: Sequence[str], *, special_tokens: bool) -> list[list[int]]: ...

    def decode_batch(self, batch: Sequence[Sequence[int]]) -> list[str]: ...

    def content(self) -> str:
        """Everything that decides about token ids, as stable text."""

    def save(self, directory: Path) -> None:
        """Write what transformers needs to read it again."""


class Tokenizer:
    """A tokenizer as the prompt builder, the simulator and the manifest need it. Make one with `load_tokenizer`."""

    def __init__(self, codec: _Codec, *, path: str, revision: str | None) -> None:
        self._codec = codec
        self.path = path
        self.revision = revision
        self.class_name = codec.class_name
        # All ids the tokenizer knows, added tokens included.
        self.vocab_size = codec.vocab_size
        self.special_token_ids = codec.special_token_ids
        self.leading_ids, self.trailing_ids = self._added_by_server()
        self._fingerprint: str | None = None

    def encode(self, text: str) -> list[int]:
        """Ids of the text alone, without added special tokens."""
        return self.encode_batch([text])[0]

    def encode_for_server(self, text: str) -> list[int]:
        """Ids as the server counts them: `leading_ids` + `encode(text)` + `trailing_ids`."""
        return self.encode_batch_for_server([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` for many texts, on all cores where the tokenizer can."""
        return self._codec.encode_batch(texts, special_tokens=False)

    def encode_batch_for_server(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode_for_server` for many texts."""
        return self._codec.encode_batch(texts, special_tokens=True)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids; special tokens are kept and spaces are not cleaned up."""
        return self._codec.decode_batch([ids])[0]

    def decode_batch(self, batch: Sequence[Sequence[int]]) -> list[str]:
        """`decode` for many sequences."""
        return self._codec.decode_batch(batch)

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over vocabulary, merges, normalizer, pre-tokenizer, post-processor, decoder and added tokens."""
        if self._fingerprint is None:
            self._fingerprint = hashlib.sha256(self._codec.content().encode()).hexdigest()
        return self._fingerprint

    def save(self, directory: Path) -> None:
        """Write it to a new `directory` that transformers reads. Raises OSError."""
        directory.mkdir(parents=True)
        self._codec.save(directory)

    def identity(self) -> dict[str, Any]:
        """What the manifest records about the tokenizer."""
        return {
            "path": self.path,
            "revision": self.revision,
            "class": self.class_name,
            "vocab_size": self.vocab_size,
            "special_token_ids": list(self.special_token_ids),
            "fingerprint_sha256": self.fingerprint,
        }

    def _added_by_server(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        plain = self.encode_batch(_PROBES)
        full = self.encode_batch_for_server(_PROBES)
        start = next(
            (
                i
                for i in range(len(full[0]) - len(plain[0]) + 1)
                if full[0][i : i + len(plain[0])] == plain[0]
            ),
            0,
        )
        leading, trailing = tuple(full[0][:start]), tuple(full[0][start + len(plain[0]) :])
        for text, ids, served in zip(_PROBES, plain, full, strict=True):
            if [*leading, *ids, *trailing] != served:
                raise ScenarioError(
                    f"tokenizer.path: {self.path} adds special tokens in a way that depends on the text "
                    f"({text!r} gives {served}); prompts of an exact length cannot be made with it"
                )
        return leading, trailing


class _TokenizersCodec:
    """A `tokenizers.Tokenizer`."""

    def __init__(self, backend: Any, class_name: str) -> None:
        backend.no_padding()
        backend.no_truncation()
        self._backend = backend
        self.class_name = class_name
        self.vocab_size = int(backend.get_vocab_size(with_added_tokens=True))
        added = backend.get_added_tokens_decoder()
        self.special_token_ids = tuple(sorted(token_id for token_id, token in added.items() if token.special))

    def encode_batch(self, texts: Sequence[str], *, special_tokens: bool) -> list[list[int]]:
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=special_tokens)
        return [encoding.ids for encoding in encodings]

    def decode_batch(self, batch: Sequence[Sequence[int]]) -> list[str]:
        texts: list[str] = self._backend.decode_batch([list(ids) for ids in batch], skip_special_tokens=False)
        return texts

    def content(self) -> str:
        return str(self._backend.to_str())

    def save(self, directory: Path) -> None:
        (directory / "tokenizer.json").write_text(self.content(), encoding="utf-8")
        settings = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
        (directory / "tokenizer_config.json").write_text(settings, encoding="utf-8")


class _TransformersCodec:
    """A tokenizer written in Python (remote code, byte-level or character-level ones), through transformers."""

    def __init__(self, tokenizer: Any, class_name: str) -> None:
        self._tokenizer = tokenizer
        self.class_name = class_name
        self.vocab_size = len(tokenizer)
        self.special_token_ids = tuple(sorted(int(token_id) for token_id in tokenizer.all_special_ids))

    def encode_batch(self, texts: Sequence[str], *, special_tokens: bool) -> list[list[int]]:
        return [
            list(self._tokenizer(text, add_special_tokens=special_tokens)["input_ids"])
            if text or special_tokens
            else []
            for text in texts
        ]

    def decode_batch(self, batch: Sequence[Sequence[int]]) -> list[str]:
        return [
            self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
            for ids in batch
        ]

    def content(self) -> str:
        # Merges and rules are out of reach here; the ids of a fixed text stand in for them.
        sample = "Two trains, 125 km apart, leave at 9:30 — won't they meet?\n\tÄpfel 苹果 🍎 don't  double"
        return json.dumps(
            [
                self.class_name,
                sorted(self._tokenizer.get_vocab().items()),
                sorted(
                    (token_id, str(token)) for token_id, token in self._tokenizer.added_tokens_decoder.items()
                ),
                self.encode_batch([sample], special_tokens=True),
            ]
        )

    def save(self, directory: Path) -> None:
        self._tokenizer.save_pretrained(str(directory))


def load_tokenizer(path: str, *, revision: str | None = None, trust_remote_code: bool = False) -> Tokenizer:
    """Load a tokenizer.

    `path` is `builtin:demo`, a directory, a `tokenizer.json` file, or the id of a repository on the model hub
    (`revision` applies to the latter). Relative paths are taken from the working directory.

    Raises `ScenarioError` when nothing usable is there, or when transformers is needed and not installed.
    """
    if path.startswith("builtin:"):
        if path != BUILTIN_DEMO:
            raise ScenarioError(
                f"tokenizer.path: there is no {path}; the built-in tokenizer is {BUILTIN_DEMO}"
            )
        return _from_tokenizer_json(demo_tokenizer_directory() / "tokenizer.json", path, revision)
    local = expanded(path)
    if local.is_file():
        return _from_tokenizer_json(local, path, revision)
    if local.is_dir():
        if (local / "tokenizer.json").is_file():
            return _from_tokenizer_json(local / "tokenizer.json", path, revision)
        return _from_transformers(str(local), path, revision, trust_remote_code=trust_remote_code)
    if local.is_absolute() or path.startswith(".") or path.count("/") > 1 or path.endswith(".json"):
        raise ScenarioError(
            f"tokenizer.path: there is no {path}; give a directory with tokenizer.json, the file itself, or a hub id"
        )
    directory = _download(path, revision)
    if (directory / "tokenizer.json").is_file():
        return _from_tokenizer_json(directory / "tokenizer.json", path, revision)
    return _from_transformers(path, path, revision, trust_remote_code=trust_remote_code)


def _from_tokenizer_json(file: Path, path: str, revision: str | None) -> Tokenizer:
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the binding raises bare Exception for a file it cannot read
        raise ScenarioError(
            f"tokenizer.path: {file} is not a usable tokenizer.json: {_one_line(error)}"
        ) from error
    _add_named_tokens(backend, _read_settings(file.parent))
    if backend.post_processor is None:
        # As transformers does: without a post-processor nothing is added around a text.
        backend.post_processor = tokenizers.processors.TemplateProcessing(single="$A", pair="$A $B")
    return Tokenizer(_TokenizersCodec(backend, "tokenizers.Tokenizer"), path=path, revision=revision)


def _read_settings(directory: Path) -> dict[str, Any]:
    """tokenizer_config.json; an old special_tokens_map.json beside it counts when the former lists no added tokens."""
    settings = _read_object(directory / "tokenizer_config.json")
    if "added_tokens_decoder" not in settings:
        settings |= _read_object(directory / "special_tokens_map.json")
    return settings


def _read_object(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = json.loads(read_text(file))
    except ValueError as error:
        raise ScenarioError(f"tokenizer.path: {file} is not valid JSON: {_one_line(error)}") from error
    if not isinstance(content, dict):
        raise ScenarioError(f"tokenizer.path: {file} must hold a JSON object, not {type(content).__name__}")
    return content


def _add_named_tokens(backend: Any, settings: dict[str, Any]) -> None:
    """Add the special tokens that the configuration names and tokenizer.json lacks, in transformers' order."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    listed = sorted(settings.get("added_tokens_decoder", {}).items(), key=lambda item: int(item[0]))
    named = [settings.get(name) for name in _NAMED_TOKENS]
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    named += list(extra.values()) if isinstance(extra, dict) else list(extra)
    for token, special in [*((token, False) for _, token in listed), *((token, True) for token in named)]:
        added = _added_token(token, special=special)
        if added is not None and added.content not in known:
            known.add(added.content)
            backend.add_tokens([added])


def _added_token(token: Any, *, special: bool) -> Any:
    if token is None:
        return None
    if isinstance(token, str):
        return tokenizers.AddedToken(token, special=True, normalized=False)
    options = {key: token[key] for key in ("single_word", "lstrip", "rstrip", "normalized") if key in token}
    return tokenizers.AddedToken(token["content"], special=special or token.get("special", False), **options)


def _from_transformers(source: str, path: str, revision: str | None, *, trust_remote_code: bool) -> Tokenizer:
    with _torch_hidden():
        return _read_by_transformers(source, path, revision, trust_remote_code=trust_remote_code)


@contextmanager
def _torch_hidden() -> Iterator[None]:
    """Let transformers find no torch: it would import it, slowly, for models that nobody asks for here."""
    if "torch" in sys.modules:
        yield
        return
    # None in sys.modules makes an import fail (Python's import system documents it).
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]


def _read_by_transformers(
    source: str, path: str, revision: str | None, *, trust_remote_code: bool
) -> Tokenizer:
    try:
        import transformers
    except ImportError as error:
        raise ScenarioError(
            f"tokenizer.path: {path} has no tokenizer.json, so transformers must read it; "
            "in the checkout of HitLab `make transformers` adds it, or point tokenizer.path at a folder that has one"
        ) from error
    options = {} if revision is None else {"revision": revision}
    try:
        loaded: Any = transformers.AutoTokenizer.from_pretrained(
            source, trust_remote_code=trust_remote_code, **options
        )
    except Exception as error:  # remote code and converters raise whatever they like
        hint = (
            ""
            if trust_remote_code
            else " (a tokenizer with code of its own needs tokenizer.trust_remote_code)"
        )
        raise ScenarioError(f"tokenizer.path: {path} cannot be loaded: {_one_line(error)}{hint}") from error
    class_name = f"{type(loaded).__module__}.{type(loaded).__qualname__}"
    fast = transformers.PreTrainedTokenizerFast
    plain_backend = isinstance(loaded, fast) and all(
        getattr(type(loaded), name) is getattr(fast, name) for name in ("_encode_plus", "_decode")
    )
    codec: _Codec = (
        _TokenizersCodec(loaded.backend_tokenizer, class_name)
        if plain_backend
        else _TransformersCodec(loaded, class_name)
    )
    return Tokenizer(codec, path=path, revision=revision)


def _download(repository: str, revision: str | None) -> Path:
    """The tokenizer files of a hub repository (or of the local hub cache)."""
    import huggingface_hub  # comes with tokenizers; needed for hub ids only

    try:
        return Path(
            huggingface_hub.snapshot_download(repository, revision=revision, allow_patterns=list(_FILES))
        )
    except Exception as error:  # network, authorisation and naming errors share no base class
        raise ScenarioError(
            f"tokenizer.path: {repository} is not a directory here and the model hub did not give it "
            f"({_one_line(error)}); download the tokenizer and set tokenizer.path to its directory"
        ) from error


def _one_line(error: BaseException) -> str:
    lines: Iterable[str] = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)
