"""Reading a scenario file: JSON or YAML to a checked `Scenario` with absolute paths, or every problem at once."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from contract.errors import ScenarioError
from contract.foreign_text import presentable
from contract.scenario import rules
from contract.scenario.model import (
    Aisbench,
    Corpus,
    Multimodal,
    PrefixCache,
    Requests,
    Run,
    Scenario,
    Service,
    Tokenizer,
)
from contract.scenario.problems import Problem, ScenarioProblems, from_validation_error

BUILTIN = "builtin:"


def load_scenario(path: Path, mode: rules.Mode = "text") -> Scenario:
    """The scenario in `path`, checked; relative paths resolved against its folder.

    In mode "mm" `prefix_cache` and `tokenizer.block_size` are neither checked nor used (reference 1.1).
    Raises ScenarioProblems (a ScenarioError) that holds every problem found.
    """
    return parse_scenario(read_document(path), source=str(path), folder=path.resolve().parent, mode=mode)


def read_document(path: Path) -> Any:
    """The raw content of a JSON or YAML file; YAML when the name ends in .yaml or .yml."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise ScenarioError(f"{path}: no such file") from error
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: not UTF-8 (byte {error.start})") from error
    if path.suffix.lower() in (".yaml", ".yml"):
        return _read_yaml(path, text)
    return _read_json(path, text)


def _read_json(path: Path, text: str) -> Any:
    def refuse_constant(name: str) -> Any:
        raise ScenarioError(f"{path}: {name} is not JSON; write a finite number")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        document: dict[str, Any] = {}
        for key, value in pairs:
            if key in document:
                raise ScenarioError(f"{path}: the key {key!r} stands twice in one object; remove one")
            document[key] = value
        return document

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse_constant)
    except json.JSONDecodeError as error:
        raise ScenarioError(f"{path}:{error.lineno}:{error.colno}: not JSON ({error.msg})") from error
    except RecursionError as error:
        raise ScenarioError(f"{path}: nested too deeply") from error


class _StrictLoader(yaml.SafeLoader):
    """YAML without tags, dates as texts, and duplicate keys refused."""


_StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _unique_mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    document: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {key!r} is not a text; quote it", key_node.start_mark
            )
        if key in document:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {key!r} stands twice in one mapping; remove one", key_node.start_mark
            )
        document[key] = loader.construct_object(value_node, deep=True)
    return document


_StrictLoader.add_constructor("tag:yaml.org,2002:map", _unique_mapping)


def _read_yaml(path: Path, text: str) -> Any:
    try:
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a SafeLoader without tags
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise ScenarioError(f"{path}{place}: not YAML ({error.problem})") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ScenarioError(f"{path}: not YAML ({presentable(str(error))})") from error


def parse_scenario(
    raw: Any, *, source: str = "scenario", folder: Path | None = None, mode: rules.Mode = "text"
) -> Scenario:
    """`raw` (a JSON-like object) as a checked Scenario. Paths are resolved against `folder`, default the current one."""
    if not isinstance(raw, Mapping):
        raise ScenarioProblems(source, [Problem("", "must hold one object at the top")])
    document = resolve_paths(_for_mode(raw, mode), folder or Path.cwd())
    problems: list[Problem] = []
    scenario: Scenario | None = None
    try:
        scenario = Scenario.model_validate(document)
    except ValidationError as error:
        problems += from_validation_error(error, Scenario, document)
    problems += _rule_problems(document, mode)
    if problems or scenario is None:
        raise ScenarioProblems(source, problems)
    return scenario


def _for_mode(raw: Mapping[str, Any], mode: rules.Mode) -> dict[str, Any]:
    document = dict(raw)
    if mode == "mm":
        document.pop("prefix_cache", None)
        if isinstance(document.get("tokenizer"), Mapping):
            document["tokenizer"] = {k: v for k, v in document["tokenizer"].items() if k != "block_size"}
    return document


SectionModel = TypeVar("SectionModel", bound=BaseModel)


def _rule_problems(document: Mapping[str, Any], mode: rules.Mode) -> Iterator[Problem]:
    """Rules over the sections that are valid by themselves; a broken section silences only rules that need it."""

    def section(name: str, model: type[SectionModel]) -> SectionModel | None:
        content = _deep_copy(document.get(name, {}))
        try:
            return model.model_validate(content)
        except ValidationError as error:
            if not _drop_unknown(content, error):
                return None  # already reported field by field
        try:
            return model.model_validate(content)
        except ValidationError:
            return None

    run, corpus, service = section("run", Run), section("corpus", Corpus), section("service", Service)
    tokenizer, requests = section("tokenizer", Tokenizer), section("requests", Requests)
    prefix_cache, multimodal = section("prefix_cache", PrefixCache), section("multimodal", Multimodal)
    aisbench = section("aisbench", Aisbench)
    if run:
        yield from rules.run_rules(run)
    if corpus:
        yield from rules.corpus_rules(corpus)
    if service:
        yield from rules.service_rules(service)
    if aisbench:
        yield from rules.aisbench_rules(aisbench)
    if requests:
        yield from rules.requests_rules(requests)
    if requests and multimodal:
        yield from rules.multimodal_rules(mode, requests, multimodal)
    if mode == "mm":
        return
    if prefix_cache:
        yield from rules.assignment_rules(prefix_cache.groups)
    if requests and prefix_cache:
        yield from rules.override_rules(requests, prefix_cache.groups)
    if tokenizer and requests and prefix_cache:
        yield from rules.non_shared_rules(tokenizer, requests, prefix_cache)


def _drop_unknown(content: Any, error: ValidationError) -> bool:
    """Remove the fields of `content` whose names are not known; False when something else is wrong, too."""
    for detail in error.errors(include_url=False):
        location = [str(step) for step in detail["loc"] if step != "[key]"]
        parent = _at(content, tuple(location[:-1]))
        known = detail["type"] != "extra_forbidden" and "[key]" not in detail["loc"]
        if known or not isinstance(parent, dict):
            return False
        parent.pop(location[-1], None)
    return True


def resolve_paths(document: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A copy of `document` in which relative paths are absolute, seen from `folder`.

    `tokenizer.path` may be a hub id: it is taken as a path only when that path exists. The plugin's default AISBench
    template is a name, not a file of the user's.
    """

    def absolute(value: str) -> str:
        return str((folder / Path(value).expanduser()).resolve())

    def absolute_as_written(value: str) -> str:
        """Symbolic links stay: a mount has to be found in the container at the path that its user names."""
        return os.path.normpath(folder / Path(value).expanduser())

    def corpus_path(value: str) -> str:
        return value if value.startswith(BUILTIN) else absolute(value)

    def tokenizer_path(value: str) -> str:
        return absolute(value) if not value.startswith(BUILTIN) and (folder / value).exists() else value

    def template_path(value: str) -> str:
        return value if value == Aisbench.model_fields["config"].default else absolute(value)

    resolved: dict[str, Any] = _deep_copy(document)
    defaults = (("run", "output_dir", Run), ("corpus", "path", Corpus), ("aisbench", "work_dir", Aisbench))
    for section, field, model in defaults:
        # Whether there is an aisbench section means something, so none is made up.
        content = resolved.get(section) if section == "aisbench" else resolved.setdefault(section, {})
        if isinstance(content, dict):
            content.setdefault(field, model.model_fields[field].default)
    change: list[tuple[tuple[str, ...], Callable[[str], str]]] = [
        (("run", "output_dir"), absolute),
        (("corpus", "path"), corpus_path),
        (("tokenizer", "path"), tokenizer_path),
        (("requests", "input_length", "path"), absolute),
        (("requests", "output_length", "path"), absolute),
        (("aisbench", "config"), template_path),
        (("aisbench", "work_dir"), absolute),
        (("multimodal", "mmmu_parquet_dir"), absolute),
    ]
    overrides = _at(resolved, ("prefix_cache", "groups", "overrides"))
    change += [
        (("prefix_cache", "groups", "overrides", name, length, "path"), absolute)
        for name in (overrides if isinstance(overrides, dict) else ())
        for length in ("input_length", "output_length")
    ]
    mounts = _at(resolved, ("engine", "mounts"))
    if isinstance(mounts, list):
        resolved["engine"]["mounts"] = [
            absolute_as_written(item) if isinstance(item, str) and item else item for item in mounts
        ]
    for location, function in change:
        parent = _at(resolved, location[:-1])
        if isinstance(parent, dict) and isinstance(parent.get(location[-1]), str) and parent[location[-1]]:
            parent[location[-1]] = function(parent[location[-1]])
    return resolved


def _at(document: Any, location: tuple[str, ...]) -> Any:
    for step in location:
        if not isinstance(document, dict):
            return None
        document = document.get(step)
    return document


def _deep_copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _deep_copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_deep_copy(item) for item in value]
    return value
