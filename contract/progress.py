"""How long work tells how far it is."""

from typing import Protocol


class Progress(Protocol):
    """Called with what is being done, how much is done, and how much there is (None: not known)."""

    def __call__(self, label: str, done: int, total: int | None) -> None: ...


def silent(label: str, done: int, total: int | None) -> None:
    """Shows nothing."""
