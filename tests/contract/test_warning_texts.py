"""README explains every finding that a run can show."""

from pathlib import Path

from contract.warnings import WARNING_TEXTS

README = Path(__file__).resolve().parents[2] / "README.md"


def test_readme_has_a_row_for_every_finding() -> None:
    text = README.read_text(encoding="utf-8")
    assert [code for code in WARNING_TEXTS if f"`{code}`" not in text] == []
