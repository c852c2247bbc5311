"""Rows of `full.jsonl` and `requests.jsonl`: keys, their order, and reading them one at a time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from contract.errors import ArtifactError
from contract.files import open_file

FULL_KEYS = (
    "request_id",
    "sequence_index",
    "group_id",
    "occurrence_index_within_group",
    "dp_rank",
    "lane_sequence",
    "target_input_tokens",
    "actual_input_tokens",
    "max_tokens",
    "shared_prefix_tokens",
    "seed_tokens",
    "natural_suffix_tokens",
    "question",
    "answer",
    "gsm_indices",
    "gsm_hashes",
    "canonical_prefix_sha256",
    "seed_sha256",
    "request_random_seed",
    "watermark_before",
    "theoretical_hit_tokens",
    "watermark_after",
    "theoretical_hit_rate",
    "divergence_block_sha256",
    "divergence_unique",
    "collision_status",
)
"""Keys of a row of full.jsonl, in the order in which they are stored (reference 4.2)."""


def request_keys(output_key: str | None) -> tuple[str, ...]:
    """Keys of a row of requests.jsonl, in their order (reference 4.3)."""
    return ("question", "answer", output_key) if output_key else ("question", "answer")


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a JSON Lines file, one in memory at a time. Raises ArtifactError with the line that is damaged."""
    try:
        file = open_file(path)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror}); run prepare again") from error
    with file:
        for number, line in enumerate(file, start=1):
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise ArtifactError(f"{path}:{number}: not JSON ({error}); the file is damaged") from error
            if not isinstance(row, dict):
                raise ArtifactError(f"{path}:{number}: not a JSON object; the file is damaged")
            yield row
