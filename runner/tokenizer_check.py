"""Does the engine make the same tokens of our texts as we do? Asked with the prompts that are going to be sent."""

from itertools import islice
from pathlib import Path

from contract.manifest import Manifest
from contract.rows import read_rows
from prompts.tokenizer import Tokenizer
from runner.control import ControlClient, answered_tokens

MOST_SAMPLES = 8
ROWS_LOOKED_AT = 1000


def sample_prompts(manifest: Manifest) -> list[str]:
    """The first prompt of each group, a few groups, from the beginning of full.jsonl."""
    return list(_first_of_groups(manifest.directory.full).values())


def _first_of_groups(full: Path) -> dict[str, str]:
    first: dict[str, str] = {}
    for row in islice(read_rows(full), ROWS_LOOKED_AT):
        first.setdefault(row["group_id"], row["question"])
        if len(first) == MOST_SAMPLES:
            break
    return first


def tokens_differ(client: ControlClient, tokenizer: Tokenizer, samples: list[str]) -> tuple[bool, str | None]:
    """Compare token ids through the engine's /tokenize.

    Returns whether it could be asked, and what differs: `(True, None)` is equality for every sample.
    """
    for text in samples:
        body = {"model": client.engine.model, "prompt": text}
        answer = client.call("POST", client.engine.base_url + "/tokenize", json=body)
        tokens = answered_tokens(answer)
        if tokens is None:
            return False, None
        ours = tokenizer.encode_for_server(text)
        if tokens != ours:
            at = next((i for i, (a, b) in enumerate(zip(ours, tokens, strict=False)) if a != b), None)
            place = f"from token {at} on" if at is not None else "in length"
            return True, (
                f"the engine makes {len(tokens)} tokens of a prompt that has {len(ours)} here, different {place}"
            )
    return True, None
