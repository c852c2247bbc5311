"""The pages: what is made from code is current, every link leads somewhere."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from contract.warnings import WARNING_TEXTS
from docs.generate import DOCS, pages

REPOSITORY = DOCS.parent
PAGES = sorted(
    path
    for path in (
        *REPOSITORY.glob("*.md"),
        *DOCS.rglob("*.md"),
        *REPOSITORY.glob("examples/**/*.md"),
    )
)
READER = MarkdownIt("commonmark").enable("table")
README_LINES = 130


def name_of(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def tokens(text: str) -> Iterator[Token]:
    for token in READER.parse(text):
        yield token
        yield from token.children or ()


def anchors(text: str) -> set[str]:
    """Names of the headings, as GitHub makes them: lower case, words joined, other signs left out."""
    found: set[str] = set()
    parsed = READER.parse(text)
    for opening, content in itertools.pairwise(parsed):
        if opening.type == "heading_open":
            plain = "".join(child.content for child in content.children or ())
            name = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
            number = 1
            while name in found:
                name = f"{name}-{number}"
                number += 1
            found.add(name)
    return found


def broken(text: str, place: Path) -> list[str]:
    """Links and pictures of a page that lead to no file or to no heading."""
    wrong = []
    for token in tokens(text):
        target = token.attrGet("href") or token.attrGet("src")
        if not isinstance(target, str) or re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (place.parent / name).resolve() if name else place
        if not file.exists():
            wrong.append(target)
        elif anchor:
            other = text if file == place else file.read_text(encoding="utf-8")
            wrong.extend([target] if anchor not in anchors(other) else [])
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    assert broken(page.read_text(encoding="utf-8"), page) == []


def test_a_broken_link_is_noticed() -> None:
    text = (
        "# A\n\n[a](#a) [b](#b-title) [c](absent.md) [d](tiers.md#nothing) ![e](absent.png) [f](tiers.md)\n"
    )
    assert broken(text, DOCS / "index.md") == ["#b-title", "absent.md", "tiers.md#nothing", "absent.png"]


@pytest.mark.parametrize("name", sorted(pages()))
def test_what_is_made_from_code_is_current(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == pages()[name], "make docs"


def test_every_finding_has_a_section_of_its_own() -> None:
    """Reports and pages link to a code as warnings.md#code."""
    sections = anchors((DOCS / "warnings.md").read_text(encoding="utf-8"))
    assert {code.lower() for code in WARNING_TEXTS} <= sections


def test_the_index_names_every_page() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert [path.name for path in DOCS.glob("*.md") if f"({path.name})" not in index] == ["index.md"]


def test_the_first_page_is_short() -> None:
    assert len((REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES
