"""Writes the pages that are made from code: `make docs`. A test keeps them in step."""

from pathlib import Path

from contract.warnings import WARNING_TEXTS

DOCS = Path(__file__).resolve().parent

WARNINGS_HEAD = """# Warnings

A finding goes with the result: as a warning on stderr, in `analysis.json` under `warnings`, and in `report.html`. The
message of the run itself has its numbers. Checks that end a run before anything is sent are in
[failed-checks.md](failed-checks.md).

Made by `make docs` from `contract/warnings.py`.
"""


def warnings_page() -> str:
    """One section for each code, in the order of the codes, so that a code can be linked to."""
    parts = [WARNINGS_HEAD]
    for code in sorted(WARNING_TEXTS):
        text = WARNING_TEXTS[code]
        parts.append(f"## {code}\n\n{text.meaning}\n\n*What to do:* {text.advice}\n")
    return "\n".join(parts)


def pages() -> dict[str, str]:
    """Text by path, relative to docs/."""
    return {"warnings.md": warnings_page()}


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
