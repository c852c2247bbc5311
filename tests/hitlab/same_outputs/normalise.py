"""What of an output is the same in every run: stamps, ports, folders, times and what is made of them are blanked.

Pure: text or bytes in, plain data for JSON out. Numbers of tokens, requests and hits are kept.
"""

import csv
import hashlib
import io
import json
import re
from html.parser import HTMLParser
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

STAMP = re.compile(r"\d{8}_\d{6}(_\d+)?")
_TEXTS = (
    (re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}([.,]\d+)?(\+\d{2}:?\d{2}|Z)?"), "MOMENT"),
    (STAMP, "STAMP"),
    (re.compile(r"(127\.0\.0\.1|localhost):\d+"), r"\1:PORT"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "SHA256"),
    (re.compile(r"(SHA-256 |targets/)[0-9a-f]{16}\b"), r"\1DIGEST"),
    (
        re.compile(r"(?<![\w.])\d+(,\d{3})*(\.\d+)? ?(ms|s|seconds|µs|(tok|token|tokens|req)/s)(?=[^\w/]|$)"),
        "TIME",
    ),
)
"""A duration or a rate is told by its unit."""
_PROBES = re.compile(
    r"\b\d+ tokens (of \d+ short prompts)|: \d+ tokens; sent again, \d+ of them|\bin \d+ reads\b"
)
"""What preflight sends is drawn anew in every run."""
_TIME_KEY = re.compile(
    r"(^|_)(seconds|s|ms|ns|at|time|start|kv_cache_usage\w*|mean_in_flight|mean_while_waiting|time_\w+|ttft\w*|tpot\w*"
    r"|itl\w*|e2el\w*|latenc\w*|throughput\w*|speed\w*|goodput\w*|wall\w*|elapsed\w*|lateness\w*)$"
    r"|Throughput|Duration|^(concurrency|mean_concurrency|benchmark duration)$",
    re.IGNORECASE,
)
_DECODE = re.compile(r"tpot|itl|decode|^untimed$", re.IGNORECASE)
"""Whether tokens came in reads of their own is the network's; what hangs on it may be there or not."""
_NETWORK_LINE = re.compile(r"[Aa]rrived in one read|^Answers with speed and ITL|^Answers without TPOT")
"""How many answers those were: their line stands only where there are some."""
_TIME_LINE = re.compile(
    r"TTFT|TPOT|\bITL\b|E2EL|[Tt]hroughput|[Ll]atency|[Dd]uration|\bms\b|tok/s|decode|one read|\bspeed|^Concurrency"
    r"|^Reached concurrency|^concurrency reached|median|per second"
)
_MEAN_IN_FLIGHT = re.compile(r"TIME \| \d+\.\d\d$")
"""Of a phase of a bench: its seconds, and the mean number of requests that they had."""
_NUMBER = re.compile(r"(?<![\w.])[+-]?\d+(,\d{3})*(\.\d+)?(e[+-]?\d+)?(?!\w|\.\d)")
_CONFIGURED = re.compile(r"^(poll_interval|interval|timeout)_seconds$|^decode_tokens_per_second$|^assume")
_LONGEST_TEXT, _LONGEST_LIST = 400, 12


def text(content: str, folder: str) -> str:
    """`folder`: where the scenario worked."""
    content = content.replace(folder, "FOLDER")
    for pattern, blank in _TEXTS:
        content = pattern.sub(blank, content)
    return content


def lines(content: str, folder: str) -> list[str]:
    return [
        line_of_times(line) for line in text(content, folder).splitlines() if not _NETWORK_LINE.search(line)
    ]


def document(content: bytes, folder: str) -> Any:
    """A JSON document with its keys in the order in which they stand there; long texts and lists as digests."""
    return _blanked(json.loads(content), folder, ())


def _blanked(value: Any, folder: str, way: tuple[str, ...]) -> Any:
    key = way[-1] if way else ""
    if isinstance(value, dict):
        return {
            text(name, folder): _blanked(item, folder, (*way, name))
            for name, item in value.items()
            if name != "one read"
        }
    if _DECODE.search("/".join(way[-2:])) and not isinstance(value, list):
        return "TIME"
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, list):
        return _shortened([_blanked(item, folder, way) for item in value])
    timed = any(_TIME_KEY.search(name) for name in way[-2:]) and not _is_configured(key, way)
    if isinstance(value, str):
        return "TIME" if timed and _NUMBER.match(value) else _said(value, folder, way)
    if timed:
        return "TIME"
    if way[-2:] == ("analysis", "bytes"):
        return "COUNT"  # with the length of the folder's name
    if {"metrics_baseline", "metrics_after"} & set(way):
        return "COUNT"  # with what preflight sent
    return float(f"{value:.9g}") if isinstance(value, float) else value


def _is_configured(key: str, way: tuple[str, ...]) -> bool:
    return bool(_CONFIGURED.search(key)) or "effective_config" in way


def _said(value: str, folder: str, way: tuple[str, ...]) -> str:
    if way[-1] == "raw_prometheus":
        return metrics_page(value)
    said = text(value, folder)
    if "preflight" in way or "checks" in way:
        said = without_probes(said)
    return said if len(said) <= _LONGEST_TEXT else f"{len(said)} characters, {_digest(said.encode())}"


def _shortened(items: list[Any]) -> list[Any]:
    if len(items) <= _LONGEST_LIST:
        return items
    return [*items[:2], f"{len(items)} in all, {_digest(json.dumps(items).encode())}"]


def metrics_page(page: str) -> str:
    """The series of the engine that a page shows, without their values."""
    names = [line.rsplit(" ", 1)[0] for line in page.splitlines() if line.startswith("vllm:")]
    return f"{len(names)} series, {_digest(chr(10).join(names).encode())}"


def _digest(content: bytes) -> str:
    return f"sha256 {hashlib.sha256(content).hexdigest()[:16]}"


def table(content: pa.Table, by: str) -> dict[str, Any]:
    """Columns with their types; of each its values in the order of `by`: those of a time only whether they are there."""
    rows = content.sort_by(by).to_pylist()
    columns = {}
    for field in content.schema:
        values = [row[field.name] for row in rows]
        if _TIME_KEY.search(field.name):
            values = [
                None if value is None else len(value) if isinstance(value, list) else "TIME"
                for value in values
            ]
        different = list(dict.fromkeys(json.dumps(value, default=str) for value in values))
        shown = different if len(different) <= 3 else _digest(json.dumps(values, default=str).encode())
        columns[f"{field.name}: {field.type}"] = shown
    return {"rows": len(rows), "columns": columns}


def without_probes(said: str) -> str:
    return _PROBES.sub(lambda found: re.sub(r"\d+", "N", found[0]), said)


class _Page(HTMLParser):
    """Words of a page, a line per row of a table or paragraph, without drawings and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._left_out = 0
        self._row: list[str] | None = None
        self._words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._line(tag)
        self._left_out += tag in ("svg", "style")
        if tag == "tr":
            self._row = []

    def handle_endtag(self, tag: str) -> None:
        self._line(tag)
        self._left_out -= tag in ("svg", "style")
        if tag == "tr" and self._row is not None:
            self.lines.append(" | ".join(self._row))
            self._row = None

    def handle_data(self, data: str) -> None:
        if not self._left_out:
            self._words.extend(data.split())

    def _line(self, tag: str) -> None:
        if tag in ("span", "strong", "b", "em", "code") or not self._words:
            return
        (self.lines if self._row is None else self._row).append(" ".join(self._words))
        self._words = []


def page(content: str, folder: str) -> list[str]:
    """Headings, captions, rows and sentences of report.html; figures that are times are blanked."""
    parser = _Page()
    parser.feed(content)
    shown = [without_probes(line_of_times(text(line, folder))) for line in parser.lines]
    # Where the values of a chart are few, whether there is one hangs on the network.
    return [
        line
        for line in shown
        if not _NETWORK_LINE.search(line)
        and not re.match(r"N values: median|N answers? of several|The first bar holds|TPOT|ITL", line)
    ]


def line_of_times(line: str) -> str:
    """A line about times without its figures, nor its padding."""
    if not _TIME_LINE.search(line):
        return _MEAN_IN_FLIGHT.sub("TIME | N", line)
    return re.sub(r" +", " ", _NUMBER.sub("N", line).replace("TIME", "N").replace("N/A", "N"))


def file(name: str, content: bytes, folder: str) -> Any:
    """What is compared of one file, by its name."""
    if name.endswith((".full.jsonl", ".requests.jsonl")):
        rows = text(content.decode(), folder)
        return f"{rows.count(chr(10))} rows, {len(rows)} characters, {_digest(rows.encode())}"
    if name.endswith(".json"):
        return document(content, folder)
    if name.endswith(".html"):
        return page(content.decode(), folder)
    if name.endswith(".prom"):
        return metrics_page(content.decode())
    if name.endswith(("requests.parquet", "warmup.parquet")):
        return table(pq.read_table(io.BytesIO(content)), "position")
    if name.endswith("kv_samples.parquet"):
        return sorted(f"{field.name}: {field.type}" for field in pq.read_schema(io.BytesIO(content)))
    if name.endswith(".arrow"):
        found = pa.ipc.open_file(content).read_all()
        return {
            "rows": found.num_rows,
            "content": _digest(json.dumps(found.to_pylist(), default=str).encode()),
        }
    if name.endswith(".csv"):
        return comma_separated(text(content.decode(), folder))
    if name.endswith((".jsonl", ".log")):
        # Of a traceback its first and last line.
        return [_logged(line) for line in lines(content.decode(), folder) if not line.startswith("  ")]
    return f"{len(content)} bytes, {_digest(content)}"


def _logged(line: str) -> str:
    """Its figures stand in the documents as well."""
    return _NUMBER.sub("N", re.sub(r"[{\[].*[}\]]", "DOCUMENT", line) if "MOMENT" in line[:6] else line)


def comma_separated(content: str) -> list[list[str]]:
    """Rows of a table; cells of a time, by the name of their column or row, are blanked."""
    head, *rows = csv.reader(io.StringIO(content))
    timed = [_TIME_KEY.search(name) or _DECODE.search(name) for name in head]
    blanked = [
        [
            "TIME" if time or (number and _TIME_LINE.search(row[0])) else re.sub(r"\d+\.\d+", "N", cell)
            for number, (time, cell) in enumerate(zip(timed, row, strict=True))
        ]
        for row in rows
    ]
    return [head, *blanked]
