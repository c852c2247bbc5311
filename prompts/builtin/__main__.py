"""`python -m prompts.builtin` writes the built-in corpus and tokenizer in place."""

import sys

from prompts.builtin import demo_tokenizer_directory, word_problems_path
from prompts.builtin.demo_tokenizer import tokenizer_files
from prompts.builtin.word_problems import corpus_bytes


def main() -> None:
    """Regenerate the package data; it changes only when the scripts (or the trainer) changed."""
    corpus = corpus_bytes()
    word_problems_path().write_bytes(corpus)
    directory = demo_tokenizer_directory()
    directory.mkdir(exist_ok=True)
    for name, content in tokenizer_files(corpus).items():
        (directory / name).write_bytes(content)
        sys.stdout.write(f"{directory / name}: {len(content)} bytes\n")
    sys.stdout.write(f"{word_problems_path()}: {len(corpus)} bytes\n")


if __name__ == "__main__":
    main()
