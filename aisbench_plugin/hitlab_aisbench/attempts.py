"""Every attempt of a request, on disk as it begins and as it ends: what HitLab reads while AISBench works.

One file per process, appended a line at a time, so that nothing is lost when the process dies. The process holds a lock
on its file as long as it lives; a file without a lock and without a last line belongs to a process that died.
"""

import base64
import fcntl
import itertools
import json
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import quote

import orjson

from hitlab_aisbench.answer import Answer

_LONGEST_TEXT = 300
_SHORTEST_PLAIN = 8


def masked(text: str, secret: str) -> str:
    """`text` without a secret, as it is and as servers repeat it; HitLab looks more closely at what it is told.

    A short secret is an ordinary word, and is masked as a header's value alone.
    """
    if len(secret) < _SHORTEST_PLAIN:
        return text.replace(f"Bearer {secret}", "Bearer ***") if secret else text
    encoded = base64.b64encode(secret.encode()).decode("ascii")
    for spelling in (
        secret,
        json.dumps(secret)[1:-1],
        repr(secret)[1:-1],
        quote(secret, safe=""),
        quote(secret),
        encoded,
    ):
        text = text.replace(spelling, "***")
    return text


class Row(NamedTuple):
    """Which request it is: its place in the final order and in its lane."""

    position: int
    request_id: str
    group: str
    dp_rank: int | None
    lane_sequence: int | None


class Attempts:
    """Writes the attempts of this process to a file in `folder`."""

    def __init__(self, folder: Path, secret: str = "") -> None:
        self._secret = secret
        self._path = folder / f"attempts.{os.getpid()}.jsonl"

    def __enter__(self) -> "Attempts":
        self._file = self._path.open("ab", buffering=0)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        self._write(
            {"event": "closed", "error": self._presentable(str(error) or repr(error)) if error else None}
        )
        self._file.close()

    def begin(self, row: Row, attempt: int) -> None:
        """An attempt begins."""
        self._write({"event": "begin", **self._identity(row, attempt, time.perf_counter_ns(), time.time())})

    def end(self, row: Row, attempt: int, started_ns: int, wall_start: float, answer: Answer) -> None:
        """It is over. The fields are those of HitLab's request records."""
        times = answer.token_ns
        self._write(
            {
                "event": "end",
                "ended_ns": time.perf_counter_ns(),
                **self._identity(row, attempt, started_ns, wall_start),
                "ttft_s": (times[0] - started_ns) / 1e9 if times else None,
                "e2el_s": (answer.done_ns - started_ns) / 1e9 if answer.done_ns is not None else None,
                "itl_s": [(after - before) / 1e9 for before, after in itertools.pairwise(times)],
                "chunks": len(times),
                "http_status": answer.status,
                "error_kind": answer.error_kind,
                "error_text": self._presentable(answer.error_text),
                "prompt_tokens": answer.prompt_tokens,
                "completion_tokens": answer.completion_tokens,
                "cached_tokens": answer.cached_tokens,
                "finish_reason": self._presentable(answer.finish_reason),
                "image_tokens": answer.image_tokens,
            }
        )

    def _identity(self, row: Row, attempt: int, started_ns: int, wall_start: float) -> dict[str, Any]:
        return {**row._asdict(), "attempt": attempt, "started_ns": started_ns, "wall_start": wall_start}

    def _write(self, line: dict[str, Any]) -> None:
        rest = memoryview(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        while rest:
            rest = rest[self._file.write(rest) :]

    def _presentable(self, text: str | None) -> str | None:
        """One short line without the key: a server may echo the headers it was sent."""
        if text is None:
            return None
        # A header may hold bytes that are no text: aiohttp keeps them as surrogates.
        text = text.encode("utf-8", "replace").decode("utf-8")
        text = " ".join(masked(text, self._secret).split())
        return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"
