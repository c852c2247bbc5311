"""Real vision engines, one after the other and behind all text engines: what each needs to start is part of the facts.

* `llava_engine`: vLLM's Transformers backend (`--model-impl transformers`), one rank, images processed by Pillow. The
  native implementation does not start: it imports torchvision, and it does not know the names that transformers 5 gives
  to CLIP's weights ("There is no module or parameter named 'vision_tower.embeddings'").
* `qwen2_vl_engine`: the native implementation under `vllm serve`, two ranks and two API servers, with the Python part of
  torchvision (without it: "No module named 'torchvision'"; with the wheel as it is: "operator torchvision::nms does not
  exist").
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from environments.cached import NotAvailableError, cache_directory
from tests.real.conftest import BLOCK_SIZE, free_port
from tests.real.engine import RunningEngine, start_vllm
from tests.real.vision.tiny_vision_model import vision_model_directory
from tests.real.vision.torchvision_without_cuda import torchvision_folder

HERE = Path(__file__).parent
StartVision = Callable[..., RunningEngine]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Behind everything else, so that no text engine is ended that somebody still needs."""
    items.sort(
        key=lambda item: (HERE in item.path.parents, "qwen2_vl_engine" in getattr(item, "fixturenames", ()))
    )


@pytest.fixture(scope="session")
def start_vision(
    vllm_python: Path, qwen_directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartVision]:
    running: list[RunningEngine] = []

    def start(kind: str, **options: Any) -> RunningEngine:
        while running:
            running.pop().stop()
        engine = start_vllm(
            vision_model_directory(kind, vllm_python, qwen_directory, cache_directory() / "models"),
            port=free_port(),
            block_size=BLOCK_SIZE,
            served_name=f"tiny-{kind}",
            log_path=tmp_path_factory.mktemp(kind) / "engine.log",
            python=vllm_python,
            **options,
        )
        running.append(engine)
        return engine

    yield start
    while running:
        running.pop().stop()


@pytest.fixture(scope="session")
def llava_engine(start_vision: StartVision) -> RunningEngine:
    """One rank; 256 placeholders for an image of any size."""
    return start_vision("llava", ranks=1, extra_args=["--model-impl", "transformers"])


@pytest.fixture(scope="session")
def qwen2_vl_engine(start_vision: StartVision, vllm_python: Path) -> RunningEngine:
    """Two ranks behind two API servers; the placeholders depend on the size."""
    try:
        folder = torchvision_folder(vllm_python, cache_directory())
    except NotAvailableError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        return start_vision("qwen2_vl", ranks=2, topology="serve")
