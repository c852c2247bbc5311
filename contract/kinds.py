"""Which kinds of data a manifest can be about. Imports nothing: it is asked before anything else is."""

from collections.abc import Mapping
from typing import Any, Literal

Mode = Literal["text", "mm"]
"""Of a prepared scenario: texts alone, or with images."""
BENCH = "bench"
"""`kind` in the manifest of a bench; manifests of prepared scenarios have none."""


def is_bench(manifest: Mapping[str, Any]) -> bool:
    """Whether a manifest is that of a bench."""
    return manifest.get("kind") == BENCH
