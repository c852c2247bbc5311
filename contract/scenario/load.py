"""Reading a scenario file: JSON or YAML to a checked `Scenario` with absolute paths, or every problem at once."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from contract.errors import ScenarioError
from contract.files import MIB, exists, expanded, read_file
from contract.kinds import Mode
from contract.scenario import rules
from contract.scenario.model import (
    DEFAULT_TEMPLATE,
    PLUGIN_TEMPLATE,
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
from contract.scenario.problems import Problem, ScenarioProblems, from_validation_error, show
from contract.scenario.text import parse_json, parse_yaml
from contract.scenario.values import plain, without_the_known

BUILTIN = "builtin:"
LARGEST_JSON = 64 * MIB
LARGEST_YAML = 8 * MIB
"""YAML is read some twenty times slower than JSON, and needs as much more memory while it is read."""


def load_scenario(path: Path, mode: Mode = "text") -> Scenario:
    """The scenario in `path`, checked; relative paths resolved against its folder.

    In mode "mm" `prefix_cache` and `tokenizer.block_size` are neither checked nor used (reference 1.1).
    Raises ScenarioProblems (a ScenarioError) that holds every problem found.
    """
    return parse_scenario(read_document(path), source=str(path), folder=path.resolve().parent, mode=mode)


def read_document(path: Path) -> Any:
    """The raw content of a JSON or YAML file; YAML when the name ends in .yaml or .yml."""
    yaml = path.suffix.lower() in (".yaml", ".yml")
    try:
        text = read_file(path, at_most=LARGEST_YAML if yaml else LARGEST_JSON).decode("utf-8-sig")
    except FileNotFoundError as error:
        raise ScenarioError(f"{path}: no such file") from error
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: not UTF-8 (byte {error.start})") from error
    return parse_yaml(text, str(path)) if yaml else parse_json(text, str(path))


def parse_scenario(
    raw: Any,
    *,
    source: str = "scenario",
    folder: Path | None = None,
    mode: Mode = "text",
    files: bool = True,
) -> Scenario:
    """`raw` (a JSON-like object) as a checked Scenario. Paths are resolved against `folder`, default the current one.

    `files` False: only the text is checked, and the files of lengths that it names are not read.
    """
    if not isinstance(raw, Mapping):
        raise ScenarioProblems(source, [Problem("", "must hold one object at the top")])
    readable, problems = plain(_for_mode(raw, mode))
    problems += _home_problems(readable)
    document = resolve_paths(readable, folder or Path.cwd())
    scenario: Scenario | None = None
    found: list[Problem] = []
    try:
        scenario = Scenario.model_validate(document)
    except ValidationError as error:
        found += from_validation_error(error, Scenario, document)
    found += _rule_problems(document, mode, files=files)
    problems += without_the_known(found, known=problems)
    if problems or scenario is None:
        raise ScenarioProblems(source, problems)
    return scenario


def _for_mode(raw: Mapping[str, Any], mode: Mode) -> dict[str, Any]:
    document = dict(raw)
    if mode == "mm":
        document.pop("prefix_cache", None)
        if isinstance(document.get("tokenizer"), Mapping):
            document["tokenizer"] = {k: v for k, v in document["tokenizer"].items() if k != "block_size"}
    elif isinstance(document.get("multimodal"), Mapping):
        document["multimodal"] = {k: v for k, v in document["multimodal"].items() if k != "scenarios"}
    return document


SectionModel = TypeVar("SectionModel", bound=BaseModel)


def _rule_problems(document: Mapping[str, Any], mode: Mode, *, files: bool) -> Iterator[Problem]:
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
        yield from rules.requests_rules(requests, files=files)
    if mode == "mm":
        if requests and multimodal:
            yield from rules.multimodal_rules(requests, multimodal)
        return
    if prefix_cache:
        yield from rules.assignment_rules(prefix_cache.groups)
    if requests and prefix_cache:
        yield from rules.override_rules(requests, prefix_cache.groups, files=files)
    if tokenizer and requests and prefix_cache:
        yield from rules.non_shared_rules(tokenizer, requests, prefix_cache, files=files)


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
        return os.path.realpath(folder / expanded(value))

    def absolute_as_written(value: str) -> str:
        """Symbolic links stay: a mount has to be found in the container at the path that its user names."""
        return os.path.normpath(folder / expanded(value))

    def corpus_path(value: str) -> str:
        return value if value.startswith(BUILTIN) else absolute(value)

    def tokenizer_path(value: str) -> str:
        return absolute(value) if not value.startswith(BUILTIN) and exists(folder / value) else value

    def template_path(value: str) -> str:
        return DEFAULT_TEMPLATE if os.path.normpath(value) == PLUGIN_TEMPLATE else absolute(value)

    resolved: dict[str, Any] = _deep_copy(document)
    defaults = (("run", "output_dir", Run), ("corpus", "path", Corpus), ("aisbench", "work_dir", Aisbench))
    for section, field, model in defaults:
        # Whether there is an aisbench section means something, so none is made up.
        content = resolved.get(section) if section == "aisbench" else resolved.setdefault(section, {})
        if isinstance(content, dict):
            content.setdefault(field, model.model_fields[field].default)
    special: dict[tuple[str | int, ...], Callable[[str], str]] = {
        ("corpus", "path"): corpus_path,
        ("tokenizer", "path"): tokenizer_path,
        ("aisbench", "config"): template_path,
    }
    for location, value in _path_values(resolved):
        as_usual = absolute_as_written if location[:2] == MOUNTS else absolute
        _at(resolved, location[:-1])[location[-1]] = special.get(location, as_usual)(value)
    return resolved


PATHS = (
    ("run", "output_dir"),
    ("corpus", "path"),
    ("tokenizer", "path"),
    ("requests", "input_length", "path"),
    ("requests", "output_length", "path"),
    ("aisbench", "config"),
    ("aisbench", "work_dir"),
    ("multimodal", "mmmu_parquet_dir"),
    ("service", "ca_file"),
    ("service", "client_cert"),
    ("service", "client_key"),
    ("engine", "hf_home"),
)
OVERRIDES = ("prefix_cache", "groups", "overrides")
MOUNTS = ("engine", "mounts")


def _path_values(document: Mapping[str, Any]) -> list[tuple[tuple[str | int, ...], str]]:
    """Where `document` names files, and how: every text that is not empty, whatever is wrong elsewhere."""
    overrides, mounts = _at(document, OVERRIDES), _at(document, MOUNTS)
    places: list[tuple[str | int, ...]] = [
        *PATHS,
        *(
            (*OVERRIDES, name, length, "path")
            for name in (overrides if isinstance(overrides, dict) else ())
            for length in ("input_length", "output_length")
        ),
        *((*MOUNTS, index) for index in range(len(mounts) if isinstance(mounts, list) else 0)),
    ]
    values = ((place, _at(document, place)) for place in places)
    return [(place, value) for place, value in values if isinstance(value, str) and value]


def _home_problems(document: Mapping[str, Any]) -> Iterator[Problem]:
    for place, value in _path_values(document):
        if value.startswith("~") and expanded(value) == Path(value):
            path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)[1:]
            yield Problem(path, f"found {show(value)}; no user here has this name")


def _at(document: Any, location: tuple[str | int, ...]) -> Any:
    for step in location:
        if isinstance(document, dict):
            document = document.get(step)
        elif isinstance(document, list) and isinstance(step, int):
            document = document[step]
        else:
            return None
    return document


def _deep_copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _deep_copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_deep_copy(item) for item in value]
    return value
