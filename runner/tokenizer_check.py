"""Does the engine make the same tokens of our texts as we do? Asked with the prompts that are going to be sent."""

import json
import os
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from contract.files import read_text
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


def tokenizer_advice(client: ControlClient, tokenizer: Tokenizer) -> str:
    """What to do when tokens differ: another path, unless this one already is what the engine serves."""
    path = tokenizer.path
    if not _is_served(client, path):
        return f"set tokenizer.path ({path}) to the engine's own tokenizer and prepare again"
    settings, config = (_settings(Path(path) / name) for name in ("tokenizer_config.json", "config.json"))
    named = settings.get("tokenizer_class") or "no class"
    written = config.get("transformers_version")
    by = f" (written by transformers {written})" if written else ""
    here = f"{tokenizer.class_name} (tokenizers {version('tokenizers')})"
    return (
        f"tokenizer.path ({path}) already is what the engine serves, so the same files give two tokenizers: {here} here, "
        f"and in the engine what its transformers makes of {named}{by}; set tokenizer_class in tokenizer_config.json to "
        "PreTrainedTokenizerFast for the engine, or serve with the transformers of these files, and prepare again"
    )


def _is_served(client: ControlClient, path: str) -> bool:
    """Whether the engine says that its model was loaded from this very place."""
    answer = client.get("/v1/models")
    entries = answer.body.get("data") if isinstance(answer.body, dict) else None
    roots = [entry.get("root") for entry in entries or [] if isinstance(entry, dict)]
    return any(isinstance(root, str) and os.path.realpath(root) == os.path.realpath(path) for root in roots)


def _settings(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_text(file))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


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
