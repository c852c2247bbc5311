"""Text that others wrote (an engine's answers, files, exceptions), made fit to be shown.

A terminal obeys escape sequences and bidirectional controls, wherever they come from: they may hide a warning, rewrite
what stands above it, or show a path that is another one. Whatever does not print is shown as its escape instead. This
is for the eye: data is stored as it came, and JSON as text that holds the same data (`printable_json`).
"""

import unicodedata

from contract.redaction import redacted

LONGEST_LINE = 300


class _Escapes(dict[int, str]):
    """A character that prints, or is some kind of blank, as itself; any other as `\\x1b` or `\\u202e`."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        prints = character.isprintable() or unicodedata.category(character) == "Zs"
        self[code] = character if prints else character.encode("unicode_escape").decode("ascii")
        return self[code]


class _JsonEscapes(_Escapes):
    """The same in JSON's spelling, which has four digits and nothing else."""

    def __missing__(self, code: int) -> str:
        if super().__missing__(code) != chr(code):
            utf_16 = chr(code).encode("utf-16-be", "surrogatepass").hex()
            self[code] = "".join(f"\\u{utf_16[place : place + 4]}" for place in range(0, len(utf_16), 4))
        return self[code]


_LINES = {ord("\n"): "\n", ord("\t"): "\t"}
_VISIBLE, _JSON = _Escapes(_LINES), _JsonEscapes({**_LINES, ord("\r"): "\r"})


def presentable(text: str, longest: int = LONGEST_LINE) -> str:
    """`text` on one line of at most `longest` characters: white space as one blank, what does not print as its escape.

    What is longer ends in an ellipsis. Secrets are masked first: one that was cut is not recognised any more.
    """
    line = visible(" ".join(redacted(text).split()))
    return line if len(line) <= longest else line[: longest - 1] + "…"


def visible(text: str) -> str:
    """`text` with its lines and tabs as they are, and everything else that does not print as its escape."""
    return text if text.isprintable() else text.replace("\r\n", "\n").translate(_VISIBLE)


def printable_json(text: str) -> str:
    """The JSON `text` with whatever does not print as `\\u....`; the values are the same."""
    return text if text.isprintable() else text.translate(_JSON)
