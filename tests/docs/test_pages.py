"""The pages: what is made from code is current, every link leads somewhere."""

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

from contract.warnings import WARNING_TEXTS
from docs.generate import DOCS, pages
from hitlab.main import app

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


def table_rows(page: Path) -> list[str]:
    return [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]


def test_both_languages_of_the_first_page_show_one_scenario() -> None:
    blocks = [
        next(
            token.content
            for token in tokens((REPOSITORY / name).read_text(encoding="utf-8"))
            if token.info == "yaml"
        )
        for name in ("README.md", "README.zh.md")
    ]
    first, second = (yaml.safe_load(block) for block in blocks)
    assert first == second


def test_the_chinese_page_has_no_difference_that_the_english_one_has_not() -> None:
    """By the names in code of the first column, which are the same in both."""
    english = " ".join(row.split("|")[1] for row in table_rows(DOCS / "coming-from-the-plugin.md"))
    chinese = (DOCS / "zh/coming-from-the-plugin.md").read_text(encoding="utf-8").partition("英文页面")[2]
    rows = [line.split("|")[1] for line in chinese.splitlines() if line.startswith("| ")]
    assert len(rows) > 20
    assert [name for row in rows for name in re.findall(r"`[^`]+`", row) if name not in english] == []


def test_the_first_page_is_short() -> None:
    assert len((REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES


def commands_in(text: str) -> list[str]:
    """Lines of code blocks, and pieces of code in the text, that call hitlab or make."""
    found = []
    for token in tokens(text):
        if token.type in {"code_block", "fence", "code_inline"}:
            lines = token.content.replace("\\\n", " ").splitlines()
            found += [line.strip() for line in lines if re.match(r"\s*(hitlab|make) ", line)]
    return found


def hitlab_problem(line: str) -> str | None:
    """What the command line does not know of a line `hitlab ...`; abbreviations such as `hitlab ...` say nothing."""
    words = shlex.split(line.split(" #")[0].split(" |")[0])[1:]
    command: Any = typer.main.get_command(app)
    while words and getattr(command, "commands", None) and not words[0].startswith(("-", ".", "[")):
        inner = command.commands.get(words[0])
        if inner is None:
            return f"{line}: no command {words[0]}"
        command, words = inner, words[1:]
    if "ignore_unknown_options" in command.context_settings:
        return None
    known = {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    unknown = [
        word for word in words if word.startswith("-") and word.split("=")[0] not in known | {"--help"}
    ]
    return f"{line}: no option {unknown[0]}" if unknown else None


def make_problem(line: str) -> str | None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    phony = {
        word for names in re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE) for word in names.split()
    }
    words = [word for word in shlex.split(line.split(" #")[0])[1:] if "=" not in word]
    unknown = [word for word in words if re.fullmatch(r"[a-z0-9-]+", word) and word not in phony]
    return f"{line}: no target {unknown[0]}" if unknown else None


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_that_a_page_shows_exists(page: Path) -> None:
    lines = commands_in(page.read_text(encoding="utf-8"))
    problems = [(hitlab_problem if line.startswith("hitlab") else make_problem)(line) for line in lines]
    assert [problem for problem in problems if problem] == []


def test_an_unknown_command_or_option_is_noticed() -> None:
    lines = commands_in(
        "    hitlab prepaer --scenario F\n    hitlab run --scenarios F\n    make benches SCENARIO=F\n"
    )
    problems = [(hitlab_problem if line.startswith("hitlab") else make_problem)(line) for line in lines]
    assert problems == [
        "hitlab prepaer --scenario F: no command prepaer",
        "hitlab run --scenarios F: no option --scenarios",
        "make benches SCENARIO=F: no target benches",
    ]
