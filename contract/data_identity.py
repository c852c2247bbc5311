"""What the prepared data depends on: equal identity, equal data. Editing a URL asks for no new prepare."""

from pathlib import Path
from typing import Any

from contract.documents import canonical_sha256, file_sha256
from contract.scenario import Scenario


def data_sha256(scenario: Scenario, *, corpus_sha256: str, tokenizer_fingerprint: str) -> str:
    """Hash over the data-relevant sections and the content (not the path) of every file they name."""
    return canonical_sha256(
        {
            "random_seed": scenario.run.random_seed,
            "tokenizer": {"fingerprint": tokenizer_fingerprint, "block_size": scenario.tokenizer.block_size},
            "corpus": {
                "sha256": corpus_sha256,
                "field": scenario.corpus.field,
                "selection": scenario.corpus.selection.model_dump(mode="json"),
            },
            "requests": _files_by_content(scenario.requests.model_dump(mode="json")),
            "output": scenario.output.model_dump(mode="json"),
            "prefix_cache": _files_by_content(scenario.prefix_cache.model_dump(mode="json")),
            "dp_size": scenario.service.dp_size,
        }
    )


def _files_by_content(section: Any) -> Any:
    """The section with the path of each CSV length file replaced by the file's hash."""
    if isinstance(section, dict):
        replaced = {key: _files_by_content(value) for key, value in section.items()}
        if section.get("mode") == "csv" and section.get("path"):
            replaced["path"] = file_sha256(Path(section["path"]))
        return replaced
    if isinstance(section, list):
        return [_files_by_content(item) for item in section]
    return section
