"""The guides of AISBench's prefix-cache plugin, which lie beside the checkout: their examples, commands and tables."""

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.shared_data import SHARED_DATA

PROGRAM = "ais-bench-prefix-cache"
REFERENCE = SHARED_DATA.parent / "reference"
_ROW = re.compile(r"^`?([a-z_]+(?:\.[\w\-\[\]]+)*)`?\t(.*)$", re.MULTILINE)
_COMMAND = re.compile(rf"^{PROGRAM} (?:.*\\\n)*.*$", re.MULTILINE)


@dataclass(frozen=True)
class Example:
    """An object that the table of fields shows for `field`."""

    field: str
    value: Any

    @property
    def name(self) -> str:
        """For the id of a test."""
        kind = self.value.get("mode") or self.value.get("strategy") or self.value.get("output_key")
        return f"{self.field}-{kind}"


@dataclass(frozen=True)
class Guide:
    text: str

    @cached_property
    def objects(self) -> list[Any]:
        """The JSON objects that stand on lines of their own."""
        return [
            value
            for found in re.finditer(r"^\{", self.text, re.MULTILINE)
            if (value := _object(self.text[found.start() :])) is not None
        ]

    @property
    def scenario(self) -> dict[str, Any]:
        """The minimal example."""
        return json.loads(json.dumps(next(item for item in self.objects if "run" in item)))

    @cached_property
    def commands(self) -> list[list[str]]:
        """The words behind the program's name, each command line once, in the guide's order."""
        lines = [found[0].replace("\\\n", "") for found in _COMMAND.finditer(self.text)]
        return [line.split()[1:] for line in dict.fromkeys(" ".join(line.split()) for line in lines)]

    @cached_property
    def examples(self) -> list[Example]:
        """Objects with a mode, a strategy or a key in the rows of the table of fields, each once."""
        found = []
        for row in _ROW.finditer(self.text):
            rest = row[2]
            while (start := rest.find("{")) >= 0:
                value = _object(rest[start:])
                end = len(json.dumps(value, ensure_ascii=False)) if value is not None else 1
                rest = rest[start + end :]
                if value and {"mode", "strategy", "output_key"} & value.keys():
                    found.append(Example(row[1].removesuffix(".mode").removesuffix(".strategy"), value))
        return list({f"{item.field} {item.value}": item for item in found}.values())

    def names(self, heading: str) -> list[str]:
        """The first column of the table below `heading`; `a / b` are two names."""
        lines = self.text[self.text.index(heading) :].splitlines()
        start = next(number for number, line in enumerate(lines) if re.match(r"(字段|Field)\t", line))
        rows = []
        for line in lines[start + 1 :]:
            if "\t" not in line:
                break
            rows.append(line.partition("\t")[0])
        return [name.strip(" `") for row in rows for name in row.split(" / ")]


def _object(text: str) -> Any:
    try:
        return json.JSONDecoder().raw_decode(text)[0]
    except ValueError:
        return None


def _guide(pattern: str) -> Guide | None:
    path = next(iter(sorted(REFERENCE.glob(pattern))), None) if REFERENCE.is_dir() else None
    return None if path is None else Guide(path.read_text(encoding="utf-8"))


NEWEST, ENGLISH = _guide("000_*.txt"), _guide("001_*.txt")
MISSING = f"the guides are not beside the checkout ({Path(*REFERENCE.parts[-3:])})"
