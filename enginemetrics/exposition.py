"""Prometheus text into samples, with the line to blame when the text is broken."""

import re
from collections.abc import Iterable, Iterator

from prometheus_client.parser import text_fd_to_metric_families
from prometheus_client.samples import Sample

from contract.errors import ServiceError
from contract.foreign_text import presentable

_SHOWN = 120
_LONGEST_LINE = 1 << 16
"""Characters. The parser's time grows with the square of a line's."""
_LABEL = r'[a-zA-Z][a-zA-Z0-9_]*="[^"\\]*"'
_PLAIN_LINE = re.compile(
    rf"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{({_LABEL}(?:,{_LABEL})*),?\}})? ([0-9.eE+-]+|NaN|[+-]?Inf)", re.ASCII
)
"""What engines write: name, labels without escapes, one number. It means the same here and in the parser of the client
library, which takes five times as long and reads every other line."""
_PLAIN_LABEL = re.compile(r'([a-zA-Z0-9_]+)="([^"]*)"')


class _Lines:
    """Sample lines of an exposition, one at a time, remembering the one last handed out.

    Comment lines stay out: with `# TYPE x counter` the parser adds `_total` to sample names, and a snapshot
    has to say which name the engine really exposes.
    """

    def __init__(self, text: str, *, buckets: bool) -> None:
        self._text = text
        self._buckets = buckets
        self.number = 0
        self.line = ""

    def __iter__(self) -> Iterator[str]:
        # Not splitlines(): a label value may hold characters such as U+2028.
        for number, line in enumerate(self._text.split("\n"), start=1):
            self.number, self.line = number, line
            if line.lstrip().startswith("#"):
                continue
            if len(line) > _LONGEST_LINE:
                raise ValueError("line too long")
            if self._buckets or not line.partition("{")[0].endswith("_bucket"):
                yield line


def parse_exposition(text: str, *, source: str = "metrics", buckets: bool = True) -> list[Sample]:
    """All samples of a Prometheus text exposition, in order, under the names the engine exposes.

    NaN and infinite values are kept; label values may hold any character. Types and help texts are not read.
    Without `buckets` the lines of histogram buckets are passed over: three quarters of an engine's text.

    Raises:
        ServiceError: a line is not a sample; names `source` and the line.
    """
    lines = _Lines(text, buckets=buckets)
    samples: list[Sample] = []
    try:
        for line in lines:
            plain = _plain_sample(line)
            if plain is not None:
                samples.append(plain)
            else:
                samples.extend(_any_samples(line))
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        shown = presentable(lines.line[:_LONGEST_LINE], _SHOWN)
        raise ServiceError(
            f"{source}: line {lines.number} is not Prometheus text: '{shown}' "
            "(is this the address, or the file, of a /metrics page?)"
        ) from error
    return samples


def _plain_sample(line: str) -> Sample | None:
    """The sample of a plain line; None for every other line, right or wrong."""
    found = _PLAIN_LINE.fullmatch(line)
    if found is None:
        return None
    name, labels, number = found.groups()
    pairs = _PLAIN_LABEL.findall(labels) if labels else []
    by_name = dict(pairs)
    if len(by_name) < len(pairs):
        return None
    try:
        return Sample(name, by_name, _number(number))
    except ValueError:
        return None


def _number(text: str) -> float:
    try:
        return int(text)  # exact beyond 2**53
    except ValueError:
        return float(text)


def _any_samples(line: str) -> Iterator[Sample]:
    # The parser asks for a file and only iterates over it.
    families: Iterable[object] = text_fd_to_metric_families([line])  # type: ignore[arg-type]
    for family in families:
        yield from family.samples  # type: ignore[attr-defined]
