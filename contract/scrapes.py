"""Several metrics pages in one text: how `baseline.prom` and `after.prom` keep them apart.

Where ranks are behind ports of their own, each port is scraped. A comment line in front of each page says where it came
from; a Prometheus parser passes over it. A text without such lines is one page, as saved with curl.
"""

from collections.abc import Sequence

MARK = "# hitlab scraped "


def join_scrapes(sources: Sequence[str], texts: Sequence[str]) -> str:
    """The pages as one text. A single page is kept as it is."""
    pages = [text if text.endswith("\n") else text + "\n" for text in texts]
    if len(pages) == 1:
        return pages[0]
    return "".join(f"{MARK}{source}\n{page}" for source, page in zip(sources, pages, strict=True))


def split_scrapes(text: str) -> list[str]:
    """The pages of `join_scrapes`, in order."""
    if not text.startswith(MARK):
        return [text]
    pages: list[list[str]] = []
    for line in text.splitlines(keepends=True):
        if line.startswith(MARK):
            pages.append([])
        else:
            pages[-1].append(line)
    return ["".join(page) for page in pages]
