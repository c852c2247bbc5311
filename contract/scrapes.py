"""Several metrics pages in one text: how `baseline.prom` and `after.prom` keep them apart.

Where ranks are behind ports of their own, each port is scraped. A comment line in front of each page says where it came
from; a Prometheus parser passes over it. A text without such lines is one page, as saved with curl.
"""

import re
from collections.abc import Sequence

MARK = "# hitlab scraped "


def join_scrapes(sources: Sequence[str], texts: Sequence[str]) -> str:
    """The pages as one text. A single page is kept as it is; a comment of a page's own is never taken for a mark."""
    pages = [_without_marks(text if text.endswith("\n") else text + "\n") for text in texts]
    if len(pages) == 1:
        return pages[0]
    return "".join(f"{MARK}{source}\n{page}" for source, page in zip(sources, pages, strict=True))


def _without_marks(page: str) -> str:
    return re.sub(f"^{MARK}", f"#{MARK}", page, flags=re.MULTILINE) if MARK in page else page


def split_scrapes(text: str) -> list[str]:
    """The pages of `join_scrapes`, in order."""
    if not text.startswith(MARK):
        return [text]
    pages: list[list[str]] = []
    for line in re.split("(?<=\n)", text):
        if line.startswith(MARK):
            pages.append([])
        else:
            pages[-1].append(line)
    return ["".join(page) for page in pages]
