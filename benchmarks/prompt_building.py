"""Does building prompts keep up with encoding? 1,000 requests of 4,096 tokens with the Qwen vocabulary.

Compares building and checking the prompts (60 % of each from four shared prefixes, blocks of 16) with three plain
`tokenizers` encodes of the same texts: one by one with `encode`, and, as the harder mark, all at once with
`encode_batch` (which uses every core, as the builder does). Exit code 1 when it takes longer than three
single encodes. Needs the `dev` extra: `.venv-dev/bin/python -m benchmarks.prompt_building`
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tokenizers

from prompts.corpus import Selection, load_corpus
from prompts.prompt_set import BuiltPrompt, GroupInput, PromptSet, RequestColumns
from prompts.tokenizer import Tokenizer, load_tokenizer
from tests.tokenizer_kinds import qwen_tokenizer_directory

REQUESTS, LENGTH, BLOCK, GROUPS = 1000, 4096, 16, 4
PREFIX = LENGTH * 6 // 10 // BLOCK * BLOCK


def build(tokenizer: Tokenizer) -> list[BuiltPrompt]:
    """Everything from the corpus file to the last checked prompt."""
    corpus = load_corpus("builtin:word-problems", "question")
    position = np.arange(REQUESTS)
    columns = RequestColumns(
        request_number=position,
        group=(position % GROUPS).astype(np.int32),
        occurrence=(position // GROUPS).astype(np.int32),
        input_tokens=np.full(REQUESTS, LENGTH),
        prefix_tokens=np.full(REQUESTS, PREFIX),
    )
    groups = [GroupInput(f"group-{g}", g, Selection(), PREFIX, REQUESTS // GROUPS) for g in range(GROUPS)]
    prompts = PromptSet(tokenizer, corpus, groups, columns, block_size=BLOCK, seed_tokens=BLOCK, run_seed=42)
    return list(prompts.requests())


def timed(action: Callable[[], object]) -> float:
    """Seconds of one run."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def main() -> int:
    """Print the times and ratios; 0 when the mark is met."""
    with tempfile.TemporaryDirectory() as folder:
        directory = qwen_tokenizer_directory(Path(folder) / "qwen")
        tokenizer = load_tokenizer(str(directory))
        plain = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
        built: list[BuiltPrompt] = []
        building = timed(lambda: built.extend(build(tokenizer)))
        texts = [prompt.text for prompt in built]
        # A tokenizer keeps a cache of words; a fresh one, warmed by one prompt, starts from where the builder started.
        plain.encode(texts[0])
        single = timed(lambda: [plain.encode(text) for text in texts])
        batch = timed(lambda: plain.encode_batch(texts))
    assert all(len(prompt.token_ids) == LENGTH for prompt in built)
    write = sys.stdout.write
    write(f"{REQUESTS} requests of {LENGTH} tokens, {len(texts[0])} characters in the first\n")
    write(f"building and checking      {building:6.2f} s\n")
    write(
        f"encode, one by one         {single:6.2f} s; building takes {building / (3 * single):.2f} of three\n"
    )
    write(
        f"encode_batch, all at once  {batch:6.2f} s; building takes {building / (3 * batch):.2f} of three\n"
    )
    return 0 if building <= 3 * single else 1


if __name__ == "__main__":
    sys.exit(main())
