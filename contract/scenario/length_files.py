"""Token lengths from CSV files (reference 1.3)."""

import csv
from collections.abc import Iterator
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import TextIO

from contract.errors import ScenarioError
from contract.files import open_file
from contract.foreign import decimal_number
from contract.scenario.model import LARGEST_LENGTH
from contract.scenario.problems import show

INPUT_COLUMNS = ("input_prompt_tokens", "content_tokens", "input_tokens")
OUTPUT_COLUMNS = ("output_tokens",)


LONGEST_LINE = 1 << 20


def read_lengths(path: Path, columns: tuple[str, ...], at_most: int | None = None) -> list[int]:
    """Values of the first of `columns` that the header has, one per row, each >= 1; of a file with more than `at_most`
    rows the first `at_most + 1`.

    Raises ScenarioError with file and line when the file, the column or a value is not usable.
    """
    try:
        with TextIOWrapper(open_file(path), encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(_lines(path, file))
            header = [name.strip() for name in reader.fieldnames or ()]
            column = next((name for name in columns if name in header), None)
            if column is None:
                found = ", ".join(header) or "no header"
                raise ScenarioError(f"{path}: needs a column {' or '.join(columns)}; found {found:.200}")
            reader.fieldnames = header
            rows = islice(reader, None if at_most is None else at_most + 1)
            return [_length(path, reader.line_num, column, row[column]) for row in rows]
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read ({error.strerror})") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ScenarioError(f"{path}: not a UTF-8 CSV file ({error})") from error


def _lines(path: Path, file: TextIO) -> Iterator[str]:
    while line := file.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            raise ScenarioError(
                f"{path}: has a line of more than {LONGEST_LINE} characters; one row is one line"
            )
        yield line


def _length(path: Path, line: int, column: str, text: str | None) -> int:
    value = decimal_number((text or "").strip(" \t"), LARGEST_LENGTH)
    if not value:
        raise ScenarioError(
            f"{path}:{line}: {column} is {show(text)}; must be an integer >= 1 and <= {LARGEST_LENGTH}, "
            "in the digits 0 to 9"
        )
    return value
