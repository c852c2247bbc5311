"""The demo's tokenizer: byte-level BPE trained on the built-in word problems.

Digits stand alone, words carry their leading space, and every byte has a token, so any text survives
encoding and decoding. It adds no special token to a prompt, like the Qwen family.
"""

import json
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

VOCABULARY_SIZE = 8192
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")

# Contractions, words with the sign or space in front of them, single digits, runs of signs, white space.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train(texts: list[str]) -> Tokenizer:
    """Train the tokenizer. The same texts give the same tokenizer, in every process."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def tokenizer_files(corpus: bytes) -> dict[str, bytes]:
    """The two files of the tokenizer directory, by name, trained on a JSON Lines corpus."""
    records: list[dict[str, Any]] = [json.loads(line) for line in corpus.splitlines()]
    config = {
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": SPECIAL_TOKENS[0],
        "model_max_length": 1_048_576,
        "pad_token": SPECIAL_TOKENS[3],
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    return {
        "tokenizer.json": (train([record["question"] for record in records]).to_str() + "\n").encode(),
        "tokenizer_config.json": (json.dumps(config, indent=2) + "\n").encode(),
    }
