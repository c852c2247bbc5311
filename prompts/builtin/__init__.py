"""What the demo runs on: a corpus of word problems and a tokenizer trained on it.

Both are HitLab's own. `python -m prompts.builtin` writes them anew, and a test compares the bytes, so the committed
files are always what the scripts beside them say.
"""

from pathlib import Path

_HERE = Path(__file__).resolve().parent


def word_problems_path() -> Path:
    """The corpus behind `builtin:word-problems`: JSON Lines with the fields `question` and `answer`."""
    return _HERE / "word-problems.jsonl"


def demo_tokenizer_directory() -> Path:
    """The tokenizer behind `builtin:demo`: a directory with `tokenizer.json` and `tokenizer_config.json`.

    It is laid out as an engine expects it, so a model directory can take the two files as they are.
    """
    return _HERE / "demo-tokenizer"
