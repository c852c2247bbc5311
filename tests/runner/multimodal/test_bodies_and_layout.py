"""Bodies put together from pieces, and finding the text between what surrounds it."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from contract.multimodal import ImageDataset, image_row
from runner.control import Answer
from runner.multimodal.bodies import chat_messages, outgoing_image_requests
from runner.multimodal.layout import TextPlaces, find_texts

TEXTS = ['quotes " and \\ and mmmu:x:1', "zero \x00 byte", "ä 苹果 🍎", "a\nline"]


@pytest.fixture
def dataset(tmp_path: Path) -> ImageDataset:
    path = tmp_path / "rows.jsonl"
    rows = [
        image_row(n, text, ref="mmmu:x:1", images=3, text_tokens=5, output_tokens=7)
        for n, text in enumerate(TEXTS)
    ]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    image = {"ref": "mmmu:x:1", "data_url": "data:image/png;base64," + "QUJD" * 250_000}
    return ImageDataset("single_1080p", path, {"image": image, "image_count_per_request": 3})


def test_a_body_is_the_row_with_its_images(dataset: ImageDataset) -> None:
    with dataset.requests.open("rb") as rows:
        made = list(
            outgoing_image_requests(
                rows, dataset, model="m", stream=True, generation_kwargs={"temperature": 0, "model": "other"}
            )
        )
        bodies = [request.body() for request in made if callable(request.body)]
    assert [request.position for request in made] == list(range(len(TEXTS)))
    assert all(request.lane is None and request.dp_rank is None for request in made)
    for text, pieces in zip(TEXTS, bodies, strict=True):
        assert json.loads(b"".join(pieces)) == {
            "temperature": 0,
            "model": "m",
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 7,
            "messages": chat_messages([dataset.data_url] * 3, text),
        }


def test_the_image_is_one_object_in_all_bodies(dataset: ImageDataset) -> None:
    with dataset.requests.open("rb") as rows:
        made = list(outgoing_image_requests(rows, dataset, model="m", stream=False, generation_kwargs={}))
        tracemalloc.start()
        bodies = [request.body() for request in made * 50 if callable(request.body)]
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert len(bodies) == 200
    assert peak < 2_000_000  # 200 bodies of 3 MB


class Tokenizing:
    """An engine whose template puts `before` and `after` around a text of one token per character."""

    def __init__(self, before: list[int], after: list[int], status: int = 200) -> None:
        self.before, self.after, self.status = before, after, status
        self.engine = type("E", (), {"model": "m", "base_url": "http://e"})()

    def call(self, method: str, url: str, json: dict[str, Any]) -> Answer:
        assert (method, url) == ("POST", "http://e/tokenize")
        *images, text = json["messages"][0]["content"]
        assert [part["image_url"]["url"] for part in images] == ["data:x", "data:x"]
        tokens = [*self.before, *map(ord, text["text"]), *self.after]
        return Answer(self.status, {"tokens": tokens} if self.status == 200 else None, "")


def test_the_text_is_found_between_what_all_have_in_common() -> None:
    engine = Tokenizing([1, 2, 2, 2, 3], [4, 5])
    found = find_texts(engine, ["data:x", "data:x"], ["abc", "xyzw", "aw"])  # type: ignore[arg-type]
    assert found == TextPlaces(([97, 98, 99], [120, 121, 122, 119], [97, 119]), 2)


def test_an_engine_that_does_not_tokenize_images_says_so() -> None:
    reason = find_texts(Tokenizing([], [], 404), ["data:x", "data:x"], ["abc", "xyz"])  # type: ignore[arg-type]
    assert reason == "the engine does not tokenize conversations with images (/tokenize: HTTP 404)"
