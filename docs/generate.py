"""Writes the pages that are made from code: `make docs`. A test keeps them in step."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer.main
from typer.testing import CliRunner

from contract.scenario.schema import scenario_schema
from contract.warnings import WARNING_TEXTS
from hitlab.main import app

DOCS = Path(__file__).resolve().parent

WARNINGS_HEAD = """# Warnings

A finding goes with the result: as a warning on stderr, in `analysis.json` under `warnings`, and in `report.html`. The
message of the run itself has its numbers. Checks that end a run before anything is sent are in
[failed-checks.md](failed-checks.md).

Made by `make docs` from `contract/warnings.py`.
"""

SCENARIO_HEAD = """# Scenario reference

A scenario is a JSON or YAML file. Omitted fields take the default shown here. Unknown fields are rejected. All problems
are reported at once, each with its path. Relative paths begin at the scenario's folder. Editors find the JSON Schema in
`contract/scenario/scenario.schema.json`; `hitlab inspect --scenario F` also checks what concerns several fields.

`schema_version` may be left out; its one value is `"1.0"`.

Made by `make docs` from that schema.

| section | what it says |
|---|---|
"""

SECTIONS = {
    "run": "name, seed and folder",
    "tokenizer": "the server's tokenizer and block size",
    "corpus": "natural text for the parts that are not shared",
    "requests": "how many requests, and their lengths",
    "output": "columns of `requests.jsonl`",
    "prefix_cache": "target hit rate, prefix groups, order of sending",
    "service": "addresses of the engine, ranks, certificates",
    "validation": "limits of warnings",
    "aisbench": "the load sent by AISBench",
    "multimodal": "requests with images (`--mode mm`)",
    "engine": "an engine that HitLab starts: the simulator, or vLLM in a container",
    "driver": "what sends the load, how many requests at a time",
}

COMMANDS_HEAD = """# Commands

Options of `hitlab` itself (`--debug`, `--quiet`) come before the name of the command. Exit codes:
[reading-a-result.md](reading-a-result.md#exit-codes).

Made by `make docs` from the help texts of the commands.
"""

Schema = Mapping[str, Any]


def warnings_page() -> str:
    """One section for each code, in the order of the codes, so that a code can be linked to."""
    parts = [WARNINGS_HEAD]
    for code in sorted(WARNING_TEXTS):
        text = WARNING_TEXTS[code]
        parts.append(f"## {code}\n\n{text.meaning}\n\n*What to do:* {text.advice}\n")
    return "\n".join(parts)


def _type(field: Schema) -> str:
    """What a value may be, in a word or two."""
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_type(choice) for choice in field["anyOf"]))
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if field.get("type") == "array":
        return f"list of {_type(field['items'])}" if field.get("items") else "list"
    name = str(field.get("type", "object"))
    return {"string": "text", "object": "object", "boolean": "`true`, `false`"}.get(name, name)


def _limits(field: Schema) -> str:
    """Bounds that a reader may meet; those that only keep numbers finite are left out."""
    for choice in (field, *field.get("anyOf", ())):
        low, above, high = choice.get("minimum"), choice.get("exclusiveMinimum"), choice.get("maximum")
        shown = [f"at least {low}"] if low is not None and low > -(10**9) else []
        shown += [f"above {above}"] if above is not None else []
        shown += [f"at most {high}"] if high is not None and high < 10**9 else []
        if shown:
            return ", ".join(shown)
    return ""


def _reference(field: Schema) -> str | None:
    """Name of the section that a field holds."""
    choices = (field, *field.get("anyOf", ()), *field.get("patternProperties", {}).values())
    for choice in (*choices, *(choice.get("items", {}) for choice in choices)):
        if "$ref" in choice:
            return str(choice["$ref"]).rsplit("/", 1)[1]
    return None


def _sections(schema: Schema) -> Iterator[tuple[str, list[str], Schema]]:
    """Each kind of section once, in the order of reading: its name, every path it is at, and its definition."""
    paths: dict[str, list[str]] = {}
    below: list[tuple[str, Schema]] = [("", schema)]
    while below:
        path, definition = below.pop(0)
        inner: list[tuple[str, Schema]] = []
        for field, content in definition.get("properties", {}).items():
            name = _reference(content)
            if name is None:
                continue
            place = f"{path}.{field}".strip(".") + (".group-N" if "patternProperties" in content else "")
            place += "[]" if "items" in json.dumps(content) else ""
            if name not in paths:
                inner.append((place, schema["$defs"][name]))
            paths.setdefault(name, []).append(place)
        below = inner + below
    for name, places in paths.items():
        yield name, places, schema["$defs"][name]


def _row(name: str, field: Schema, required: bool) -> str:
    default = "required" if required else f"`{json.dumps(field.get('default'), ensure_ascii=False)}`"
    limits = _limits(field)
    value = _type(field) + (f" ({limits})" if limits else "")
    cells = (f"`{name}`", value, default, field["description"])
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def scenario_page() -> str:
    """A table for each section that has fields of its own; every field has a description, or this fails."""
    schema = scenario_schema()
    parts = [
        SCENARIO_HEAD + "".join(f"| [`{name}`](#{name}) | {text} |\n" for name, text in SECTIONS.items())
    ]
    for _name, places, definition in sorted(
        _sections(schema), key=lambda section: list(SECTIONS).index(section[1][0].split(".")[0])
    ):
        rows = [
            _row(field, content, field in definition.get("required", ()))
            for field, content in definition["properties"].items()
            if _reference(content) is None or "description" in content
        ]
        also = "".join(f", also `{place}`" for place in places[1:])
        parts.append(f"\n## {places[0]}\n")
        lines = [
            *([definition["description"]] if "description" in definition else []),
            *([f"The same fields{also}."] if also else []),
        ]
        parts.extend(f"\n{line}\n" for line in lines)
        inner = [f"`{field}`" for field, content in definition["properties"].items() if _reference(content)]
        parts.extend([f"\nSections inside: {', '.join(inner)}.\n"] if inner else [])
        if rows:
            parts.append(
                "\n| field | value | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
            )
    return "".join(parts)


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, (*path, name))


def commands_page() -> str:
    """The help text of every command, 80 columns wide."""
    runner = CliRunner(env={"COLUMNS": "80"})
    parts = [COMMANDS_HEAD]
    for path in _commands(typer.main.get_command(app)):
        shown = runner.invoke(app, [*path, "--help"], prog_name="hitlab")
        if shown.exit_code != 0:
            raise RuntimeError(f"hitlab {' '.join(path)} --help: {shown.output}")
        parts.append(f"## {' '.join(('hitlab', *path))}\n\n```text\n{shown.stdout.strip()}\n```\n")
    return "\n".join(parts)


def pages() -> dict[str, str]:
    """Text by path, relative to docs/."""
    return {
        "commands.md": commands_page(),
        "scenario.md": scenario_page(),
        "warnings.md": warnings_page(),
    }


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
