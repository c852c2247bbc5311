"""One row per attempt of a request, as a load driver measured it, and its columns in Arrow and Parquet."""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import pyarrow as pa

ErrorKind = Literal[
    "connect", "reset", "timeout", "http", "json", "no_usage", "bad_usage", "stream_error", "aborted"
]
"""Why an attempt failed.

connect: no connection; reset: closed before the answer was complete;
timeout: no new token for the set time, or no answer where it does not stream;
http: a status other than 200, or an answer that is not HTTP or too large; json: unreadable JSON;
no_usage: complete, but without token counts; bad_usage: with counts that cannot be;
stream_error: an error inside the stream, or a stream that ended early; aborted: stopped by us.
"""

NoDecode = Literal["one token", "one read", "no chunk"]
"""Why an answer has neither TPOT nor ITL nor decode speed.

one token: there is none after the first; one read: all of it arrived at once (one chunk, or a proxy that collects them),
so that its tokens have no times of their own; no chunk: not streamed, or a stream that carries token counts alone.
"""


def why_no_decode(
    ttft_s: float | None, completion_tokens: int | None, itl_s: Iterable[float]
) -> NoDecode | None:
    """None: the answer's tokens arrived one after another, and their time is E2EL - TTFT."""
    if completion_tokens is not None and completion_tokens < 2:
        return "one token"
    if ttft_s is None:
        return "no chunk"
    return None if any(gap > 0 for gap in itl_s) else "one read"


class RequestRecord(NamedTuple):
    """One attempt. Times are seconds; None where it did not come to that, or the server does not say.

    Attributes:
        position: place of the request in the final order.
        lane_sequence: place within its lane; None without lanes.
        attempt: 1 for the first.
        started_ns: `time.perf_counter_ns()` just before the first byte was written.
        wall_start: the same moment in epoch seconds.
        ttft_s: first chunk that carries a choice, minus start; None for answers that do not stream.
        e2el_s: last byte (of a stream: its end mark) minus start.
        itl_s: gaps between chunks that carry a choice, `chunks - 1` of them.
        chunks: such chunks; a server may put several tokens into one. 0 for answers that do not stream.
        error_text: one line without secrets, at most 300 characters.
        image_tokens: those of `prompt_tokens` that stand for images.
    """

    position: int
    request_id: str
    group: str
    dp_rank: int | None
    lane_sequence: int | None
    attempt: int
    started_ns: int
    wall_start: float
    ttft_s: float | None
    e2el_s: float | None
    itl_s: tuple[float, ...]
    chunks: int
    http_status: int | None
    error_kind: ErrorKind | None
    error_text: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    finish_reason: str | None
    image_tokens: int | None = None

    @property
    def no_decode(self) -> NoDecode | None:
        """Why the time of the tokens after the first cannot be known; None: it can."""
        return why_no_decode(self.ttft_s, self.completion_tokens, self.itl_s)

    @property
    def tpot_s(self) -> float | None:
        """(E2EL - TTFT) / (output tokens - 1); None where `no_decode` says why."""
        if (
            self.no_decode is not None
            or self.ttft_s is None
            or self.e2el_s is None
            or self.completion_tokens is None
        ):
            return None
        return (self.e2el_s - self.ttft_s) / (self.completion_tokens - 1)


REQUEST_SCHEMA = pa.schema(
    [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("request_id", pa.string(), nullable=False),
        pa.field("group", pa.string(), nullable=False),
        pa.field("dp_rank", pa.int32()),
        pa.field("lane_sequence", pa.int64()),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("started_ns", pa.int64(), nullable=False),
        pa.field("wall_start", pa.float64(), nullable=False),
        pa.field("ttft_s", pa.float64()),
        pa.field("e2el_s", pa.float64()),
        # Single precision: 0.1 µs at one second, and half the size of by far the longest column.
        pa.field("itl_s", pa.list_(pa.float32()), nullable=False),
        pa.field("chunks", pa.int32(), nullable=False),
        pa.field("http_status", pa.int16()),
        pa.field("error_kind", pa.string()),
        pa.field("error_text", pa.string()),
        pa.field("prompt_tokens", pa.int64()),
        pa.field("completion_tokens", pa.int64()),
        pa.field("cached_tokens", pa.int64()),
        pa.field("finish_reason", pa.string()),
        pa.field("image_tokens", pa.int64()),
    ]
)


def to_batch(records: Sequence[RequestRecord]) -> pa.RecordBatch:
    """The records as one Arrow batch with `REQUEST_SCHEMA`, in the same order."""
    columns = zip(*records, strict=True) if records else [()] * len(REQUEST_SCHEMA)
    arrays = [pa.array(list(column), type=f.type) for column, f in zip(columns, REQUEST_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=REQUEST_SCHEMA)
