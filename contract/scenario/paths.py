"""The files a scenario needs, found without opening any: what a container has to see before it can read them."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.errors import ScenarioError
from contract.files import expanded
from contract.kinds import Mode
from contract.scenario.load import BUILTIN, resolve_paths
from contract.scenario.model import PLUGIN_TEMPLATE, Tokenizer


@dataclass(frozen=True)
class NeededPath:
    """An absolute path, the dotted field that names it, and the setting of `make bench` that mounts such files."""

    field: str
    path: Path
    setting: str


def needed_paths(document: Any, folder: Path, mode: Mode = "text") -> Iterator[NeededPath]:
    """What has to be readable for a run of the scenario `document`, relative paths seen from `folder`.

    Left out are `run.output_dir` and `aisbench.work_dir` (overridden, and written), and a `tokenizer.path` that can only
    be a hub id. Whether the document is right otherwise is not checked here.
    """
    if not isinstance(document, Mapping):
        return
    resolved = resolve_paths(document, folder)
    fields = ["corpus.path", "requests.input_length.path", "requests.output_length.path"]
    fields += ["service.ca_file", "service.client_cert", "service.client_key"]
    if mode == "mm":
        fields.append("multimodal.mmmu_parquet_dir")
    overrides = _at(resolved, "prefix_cache.groups.overrides")
    fields += [
        f"prefix_cache.groups.overrides.{group}.{length}.path"
        for group in (overrides if isinstance(overrides, Mapping) else ())
        for length in ("input_length", "output_length")
    ]
    for field in fields:
        value = _at(resolved, field)
        if isinstance(value, str) and value and not value.startswith(BUILTIN):
            yield NeededPath(field, Path(value), "DATA_DIR")
    tokenizer = _at(resolved, "tokenizer.path") or Tokenizer.model_fields["path"].default
    if isinstance(tokenizer, str) and tokenizer.startswith(("/", "~", "./", "../")):
        yield NeededPath("tokenizer.path", Path(os.path.realpath(folder / expanded(tokenizer))), "MODELS_DIR")
    template = _at(resolved, "aisbench.config")
    if (
        mode == "text"
        and isinstance(template, str)
        and template.startswith("/")
        and not template.endswith(PLUGIN_TEMPLATE)
    ):
        yield NeededPath("aisbench.config", Path(template), "DATA_DIR")
    hub = _at(resolved, "engine.hf_home")
    if isinstance(hub, str) and hub:
        yield NeededPath("engine.hf_home", Path(hub), "MODELS_DIR")
    mounts = _at(resolved, "engine.mounts")
    for value in mounts if isinstance(mounts, list) else ():
        if isinstance(value, str) and value:
            yield NeededPath("engine.mounts", Path(value), "MODELS_DIR")


def check_mounted(paths: Iterable[NeededPath], mounted: Iterable[Path]) -> None:
    """Raises ScenarioError, one line per path that no folder of `mounted` covers."""
    roots = list(mounted)
    problems = [
        f"{needed.field}: {needed.path} is in no folder that the containers see; "
        f"set {needed.setting} to a folder above it"
        for needed in paths
        if not any(needed.path.is_relative_to(root) for root in roots)
    ]
    if problems:
        raise ScenarioError("\n".join(problems))


def _at(document: Any, field: str) -> Any:
    for step in field.split("."):
        if not isinstance(document, Mapping):
            return None
        document = document.get(step)
    return document
