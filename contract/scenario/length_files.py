"""Token lengths from CSV files (reference 1.3)."""

import csv
from pathlib import Path

from contract.errors import ScenarioError

INPUT_COLUMNS = ("input_prompt_tokens", "content_tokens", "input_tokens")
OUTPUT_COLUMNS = ("output_tokens",)


def read_lengths(path: Path, columns: tuple[str, ...]) -> list[int]:
    """Values of the first of `columns` that the header has, one per row, each >= 1.

    Raises ScenarioError with file and line when the file, the column or a value is not usable.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            header = [name.strip() for name in reader.fieldnames or ()]
            column = next((name for name in columns if name in header), None)
            if column is None:
                found = ", ".join(header) or "no header"
                raise ScenarioError(f"{path}: needs a column {' or '.join(columns)}; found {found}")
            reader.fieldnames = header
            return [_length(path, reader.line_num, column, row[column]) for row in reader]
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read ({error.strerror})") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ScenarioError(f"{path}: not a UTF-8 CSV file ({error})") from error


def _length(path: Path, line: int, column: str, text: str | None) -> int:
    try:
        value = int(text or "")
    except ValueError:
        value = 0
    if value < 1:
        raise ScenarioError(f"{path}:{line}: {column} is {text!r}; must be an integer >= 1")
    return value
