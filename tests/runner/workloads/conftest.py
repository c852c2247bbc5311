"""Plans written out and counted by a tokenizer, which is the oracle of every length."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from cachemodel.block_hashes import block_hashes
from prompts.tokenizer import Tokenizer, load_tokenizer
from prompts.words import WordTexts, find_words
from runner.bench.script import Script
from runner.workloads import WORKLOADS
from runner.workloads.plan import Message, Plan, Request, Resources

BLOCK = 16


@dataclass(frozen=True)
class Written:
    """A plan and its texts."""

    plan: Plan
    script: Script
    tokenizer: Tokenizer

    def chat(self, request: Request) -> list[dict[str, str]]:
        return self.script.sent(request)

    def ids(self, request: Request) -> list[int]:
        """The prompt as an engine with ChatML sees it."""
        turns = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in self.chat(request))
        return self.tokenizer.encode(turns + "<|im_start|>assistant\n")

    def shared_tokens(self, one: Request, other: Request) -> int:
        """Tokens of equal leading blocks, by the hash chain."""
        pairs = zip(block_hashes(self.ids(one), BLOCK), block_hashes(self.ids(other), BLOCK), strict=False)
        shared = 0
        for a, b in pairs:
            if a != b:
                break
            shared += BLOCK
        return shared

    def tokens_of(self, message: Message) -> list[int]:
        """Length of each part."""
        return [
            len(self.tokenizer.encode(self.script._written(Message("user", (part,)))["content"]))
            for part in message.parts
        ]


Write = Callable[..., Written]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_tokenizer("builtin:demo")


@pytest.fixture(scope="session")
def write(tokenizer: Tokenizer) -> Write:
    words = find_words(tokenizer)

    def make(
        name: str, *, seed: int = 42, volume: float = 1.0, per_gb: int | None = 6000, **options: Any
    ) -> Written:
        texts = WordTexts(tokenizer, seed, words)
        workload = WORKLOADS[name]
        more = {
            key: options.pop(key)
            for key in ("samples", "skipped_records", "frame_tokens", "tier_tokens")
            if key in options
        }
        resources = Resources(
            **{"tier_tokens": None, **more},
            seed=seed,
            kv_cache_volume=volume,
            tokens_per_gb=per_gb,
            count=texts.count,
            filler=texts.text,
        )
        parameters = workload.parameters.model_validate(
            {
                workload.prefix + key if not key.startswith(workload.prefix) else key: v
                for key, v in options.items()
            }
        )
        plan = workload.plan(parameters, resources)
        return Written(plan, Script(plan, texts, {}), tokenizer)

    return make
