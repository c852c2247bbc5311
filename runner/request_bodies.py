"""Requests for the native driver, read from full.jsonl one row at a time."""

import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, BinaryIO

import orjson

from contract.foreign import LARGEST_TOKENS, whole_number
from runner.drivers.native.lanes import OutgoingRequest


def outgoing_requests(
    full: BinaryIO, *, model: str, stream: bool, generation_kwargs: Mapping[str, Any]
) -> Iterator[OutgoingRequest]:
    """One request per row of the open file, in final order. A body is made only when its request starts, so waiting
    ones cost little; the file has to stay open until the last one has started.

    Rows with a lane (cold mode) carry it and their rank; other rows leave the rank to the server.
    """
    fixed = {**generation_kwargs, "model": model, "stream": stream}
    if stream:
        fixed["stream_options"] = {"include_usage": True}
    offset = 0
    for line in full:
        row = orjson.loads(line)
        rank = row["dp_rank"]
        yield OutgoingRequest(
            position=row["sequence_index"],
            request_id=row["request_id"],
            group=row["group_id"],
            body=partial(_body, full.fileno(), offset, len(line), fixed),
            lane=None if rank is None else (row["group_id"], rank),
            dp_rank=rank,
            lane_sequence=row["lane_sequence"],
            most_output_tokens=most_output_tokens(row["max_tokens"], generation_kwargs),
        )
        offset += len(line)


def most_output_tokens(max_tokens: int, generation_kwargs: Mapping[str, Any]) -> int:
    """What an engine may write in answer to a body with both; chats have a second name for it, which counts more."""
    other = whole_number(generation_kwargs.get("max_completion_tokens"), LARGEST_TOKENS) or 0
    answers = whole_number(generation_kwargs.get("n"), LARGEST_TOKENS) or 1
    return max(max_tokens, other) * answers


def _body(descriptor: int, offset: int, length: int, fixed: Mapping[str, Any]) -> bytes:
    row = orjson.loads(os.pread(descriptor, length, offset))
    return orjson.dumps({**fixed, "prompt": row["question"], "max_tokens": row["max_tokens"]})


def warmup_requests(plan: list[dict[str, Any]], *, model: str, ranks: int) -> Iterator[OutgoingRequest]:
    """The warmup plan, in its order, as requests that do not stream; one lane per rank, so ranks go in parallel."""
    for position, item in enumerate(plan):
        body = {
            "model": model,
            "prompt": item["prompt"],
            "max_tokens": item["max_tokens"],
            "temperature": 0,
            "stream": False,
        }
        yield OutgoingRequest(
            position=position,
            request_id=item["request_id"],
            group=item["group_id"],
            body=orjson.dumps(body),
            lane=item["dp_rank"],
            dp_rank=item["dp_rank"] if ranks > 1 else None,
            lane_sequence=position,
            most_output_tokens=item["max_tokens"],
        )
