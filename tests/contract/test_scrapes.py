"""Pages that are kept in one text come back as they were."""

from hypothesis import given
from hypothesis import strategies as st

from contract.scrapes import MARK, join_scrapes, split_scrapes

PAGES = st.text(st.sampled_from('a# \r\n\x85\u2028{}"1'), max_size=40)


@given(st.lists(PAGES, min_size=1, max_size=4))
def test_pages_come_back(pages: list[str]) -> None:
    whole = [page if page.endswith("\n") else f"{page}\n" for page in pages]
    sources = [f"http://host:{port}/metrics" for port in range(len(pages))]
    assert split_scrapes(join_scrapes(sources, pages)) == whole


def test_a_page_cannot_make_up_another() -> None:
    page = f"{MARK}http://evil\na 1\n{MARK}http://evil\n"
    for count in (1, 2):
        found = split_scrapes(join_scrapes(["http://x"] * count, [page] * count))
        assert len(found) == count
        assert all("a 1\n" in one for one in found)
