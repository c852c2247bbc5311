"""What has to be done so that Grafana holds exactly the annotations that are wanted. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analyzer.watch.annotations import Annotation


@dataclass(frozen=True)
class Changes:
    """In this order. `update`: Grafana's id and what it should hold; `delete`: ids of doubles."""

    create: list[Annotation] = field(default_factory=list)
    update: list[tuple[int, Annotation]] = field(default_factory=list)
    delete: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.create or self.update or self.delete)


def changes(wanted: Sequence[Annotation], present: Sequence[Mapping[str, Any]]) -> Changes:
    """From what Grafana answered for a measurement's tags to what is wanted.

    Of several with the same key (a post whose answer was lost, and arrived all the same) the oldest stays. What is
    present and not wanted is left alone: somebody may have noted something of their own.
    """
    needed = Changes()
    for annotation in wanted:
        same = sorted(
            (item for item in present if annotation.key in item["tags"]), key=lambda item: int(item["id"])
        )
        if not same:
            needed.create.append(annotation)
            continue
        needed.delete.extend(int(item["id"]) for item in same[1:])
        if not _holds(same[0], annotation):
            needed.update.append((int(same[0]["id"]), annotation))
    return needed


def _holds(present: Mapping[str, Any], annotation: Annotation) -> bool:
    """Grafana gives a point an end that equals its time, or none."""
    end = present.get("timeEnd") or present["time"]
    return (
        present["time"] == annotation.time_ms
        and end == (annotation.time_ms if annotation.end_ms is None else annotation.end_ms)
        and present["text"] == annotation.text
        and set(annotation.tags) <= set(present["tags"])
    )
