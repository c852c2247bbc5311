"""Whether a line for the user has a hole in it where a value was to stand."""

import re

QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|[\[{].*")
"""What somebody else has written may look like anything."""
HOLES = re.compile(
    r"\bNone\b"
    r"|\b(?:set it to|set them to|than|needs|counts|with)\s*(?:;|$)"  # a word that leads nowhere
    r"|[;,:(]\s*$"
    r"|\(\s*\)"
)


def unfinished(line: str) -> bool:
    return HOLES.search(QUOTED.sub("it", line)) is not None
