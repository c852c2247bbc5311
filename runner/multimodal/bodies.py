"""Chat requests with images, put together when they are sent: the image is one object in all of them."""

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, BinaryIO

import orjson

from contract.multimodal import ImageDataset
from runner.drivers.native.lanes import OutgoingRequest
from runner.request_bodies import most_output_tokens

IMAGE_MARK = b"\0"
"""Stands where the image is going to be. JSON escapes this byte in texts, so it cannot be anything else."""


def chat_messages(images: Sequence[str], text: str) -> list[dict[str, Any]]:
    """One turn of a user: the images (data URLs), then the text."""
    content: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in images]
    content.append({"type": "text", "text": text})
    return [{"role": "user", "content": content}]


def outgoing_image_requests(
    rows: BinaryIO, dataset: ImageDataset, *, model: str, stream: bool, generation_kwargs: Mapping[str, Any]
) -> Iterator[OutgoingRequest]:
    """One request per row of the open file, in its order; the service chooses the rank.

    A body is made when its request starts, and even then the image is not copied: it is a piece between others. The
    file has to stay open until the last request has started.
    """
    fixed = {**generation_kwargs, "model": model, "stream": stream}
    if stream:
        fixed["stream_options"] = {"include_usage": True}
    # A data URL holds nothing that JSON would escape.
    image = orjson.dumps(dataset.data_url)
    offset = 0
    for position, line in enumerate(rows):
        row = orjson.loads(line)
        yield OutgoingRequest(
            position=position,
            request_id=row["request_id"],
            group=dataset.name,
            most_output_tokens=most_output_tokens(row["max_out_len"], generation_kwargs),
            body=partial(_body, rows.fileno(), offset, len(line), fixed, image),
        )
        offset += len(line)


def _body(
    descriptor: int, offset: int, length: int, fixed: Mapping[str, Any], image: bytes
) -> tuple[bytes, ...]:
    row = orjson.loads(os.pread(descriptor, length, offset))
    turns = [{**turn, "content": [_part(part) for part in turn["content"]]} for turn in row["prompt"]]
    body = orjson.dumps({**fixed, "max_tokens": row["max_out_len"], "messages": turns})
    first, *others = body.split(IMAGE_MARK)
    return (first, *(piece for other in others for piece in (image, other)))


def _part(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """A part of a message, the image's place marked."""
    if part["type"] != "image_url":
        return part
    return {"type": "image_url", "image_url": {"url": orjson.Fragment(IMAGE_MARK)}}
