"""The questions, answered through a pseudo-terminal."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hitlab.conftest import REPOSITORY

UP, DOWN, ENTER = "\x1b[A", "\x1b[B", "\r"
SECONDS = 30.0
STARS = re.compile(r"^\s+\* (\S+)", re.MULTILINE)


class Dialogue:
    """A command on a terminal of its own: wait for a text, type an answer."""

    def __init__(
        self, folder: Path, *arguments: str, terminal: str = "xterm", redirect: bool = False
    ) -> None:
        self._master, slave = pty.openpty()
        environment = {**os.environ, "TERM": terminal, "PYTHONPATH": str(REPOSITORY)}
        self._file = (folder / "stderr").open("wb") if redirect else None
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from hitlab.main import main; main()", "bench", "engine", *arguments],
            cwd=folder,
            stdin=slave,
            stdout=slave,
            stderr=self._file or slave,
            env=environment,
            start_new_session=True,
        )
        os.close(slave)
        self._folder = folder
        self.shown = ""
        self._read_to = 0

    def wait_for(self, text: str) -> str:
        """Everything shown since the last wait, up to and including `text`."""
        deadline = time.monotonic() + SECONDS
        while text not in self.shown[self._read_to :]:
            self._more(deadline, text)
        end = self.shown.index(text, self._read_to) + len(text)
        piece, self._read_to = self.shown[self._read_to : end], end
        return piece

    def answer(self, prompt: str, typed: str) -> str:
        piece = self.wait_for(prompt)
        os.write(self._master, typed.encode())
        return piece

    def end(self) -> int:
        deadline = time.monotonic() + SECONDS
        while self.process.poll() is None:
            self._more(deadline, "its end")
        while self._more(deadline, "its end"):
            pass
        return self.process.returncode

    def _more(self, deadline: float, wanted: str) -> bool:
        if self._file is not None:
            self.shown = (self._folder / "stderr").read_text()
        ready, _, _ = select.select([self._master], [], [], 0.1)
        assert time.monotonic() < deadline, f"waited for {wanted!r} in:\n{self.shown}"
        if not ready:
            return False
        try:
            data = os.read(self._master, 4096)
        except OSError:
            return False  # the other end is closed
        if self._file is None:
            self.shown += data.decode(errors="replace")
        return bool(data)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)
        if self._file is not None:
            self._file.close()


Open = Callable[..., Dialogue]


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Open]:
    begun: list[Dialogue] = []

    def open_one(*arguments: str, **options: Any) -> Dialogue:
        begun.append(Dialogue(tmp_path, *arguments, **options))
        return begun[-1]

    yield open_one
    for dialogue in begun:
        dialogue.close()


def config(tmp_path: Path, name: str = "bench_config.json") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / name).read_text())
    return found


def test_four_phases_with_arrow_keys_and_a_way_back(talk: Open, engine: str, tmp_path: Path) -> None:
    dialogue = talk()
    dialogue.answer("[default: http://localhost:8000] > ", f"{engine}\n")
    dialogue.answer("random-prefill", "")
    dialogue.wait_for("kv-tier-pressure")
    os.write(dialogue._master, (DOWN * 2 + UP + ENTER).encode())
    dialogue.answer("Do you have a running LMCache server?", "")
    dialogue.answer("(Y/n) > ", "<\n")
    dialogue.wait_for("kv-tier-pressure")
    os.write(dialogue._master, ENTER.encode())
    dialogue.answer("(Y/n) > ", "n\n")
    dialogue.answer("[default: ask the engine] > ", "many\n")
    dialogue.answer("valid integer", "")
    dialogue.answer("[default: ask the engine] > ", "6000\n")
    dialogue.answer("Set model, volume, seed, warm phases?", "")
    dialogue.answer("(y/N) > ", "y\n")
    dialogue.answer("model\n".replace("\n", "\r\n"), "")
    dialogue.answer("> ", "\n")
    dialogue.answer("[default: 100] > ", "0.5\n")
    dialogue.answer("[default: 42] > ", "7\n")
    dialogue.answer("(y/N) > ", "\n")
    dialogue.answer("(y/N) > ", "y\n")
    dialogue.answer("Set the parameters of this workload?", "")
    dialogue.answer("(y/N) > ", "y\n")
    dialogue.answer("[default: 10000] > ", "0\n")
    dialogue.wait_for("greater than or equal to 1")
    dialogue.answer("[default: 10000] > ", "700\n")
    dialogue.answer("[default: 2] > ", "<\n")
    dialogue.answer("[default: 10000] > ", "800\n")
    dialogue.answer("[default: 2] > ", "1\n")
    dialogue.wait_for("tile")
    os.write(dialogue._master, (DOWN + ENTER).encode())
    dialogue.answer("[default: 3] > ", "\n")
    dialogue.answer("[default: 128] > ", "2\n")
    summary = dialogue.wait_for("What would you like to do?")
    for line in ("Workload:                       long-doc-qa", "Seed:                           7"):
        assert line in summary
    dialogue.wait_for("Leave")
    os.write(dialogue._master, (DOWN + ENTER).encode())
    dialogue.answer("[default: bench_config.json] > ", "\n")
    assert dialogue.end() == 0
    wanted = {
        "workload": "long-doc-qa",
        "model": "demo",
        "kv_cache_volume": 0.5,
        "tokens_per_gb_kvcache": 6000,
        "seed": 7,
        "no_warmup": True,
        "ignore_eos": False,
        "ldqa_document_length": 800,
        "ldqa_query_per_document": 1,
        "ldqa_shuffle_policy": "tile",
        "ldqa_num_inflight_requests": 3,
        "ldqa_max_output_length": 2,
    }
    stored = config(tmp_path)
    assert {key: stored[key] for key in wanted} == wanted


@pytest.mark.parametrize("options", [{"terminal": "dumb"}, {"redirect": True}])
def test_numbered_lists_where_nothing_can_be_drawn(
    talk: Open, engine: str, tmp_path: Path, options: dict[str, Any]
) -> None:
    dialogue = talk(**options)
    port = engine.rpartition(":")[2]
    dialogue.answer("[default: http://localhost:8000] > ", f"{port}\n")
    assert "6. random-prefill" in dialogue.answer("[default: 1] > ", "9\n")
    dialogue.answer("a number from 1 to 7, please", "")
    dialogue.answer("[default: 1] > ", "6\n")
    dialogue.answer("(y/N) > ", "maybe\n")
    dialogue.answer("y or n, please", "")
    dialogue.answer("(y/N) > ", "\n")
    dialogue.answer("(y/N) > ", "n\n")
    dialogue.answer("[default: 1] > ", "2\n")
    dialogue.answer("[default: bench_config.json] > ", "mine.json\n")
    assert dialogue.end() == 0
    stored = config(tmp_path, "mine.json")
    assert (stored["workload"], stored["rp_request_length"]) == ("random-prefill", 10000)
    assert "\x1b" not in dialogue.shown


@pytest.mark.parametrize("workload", ["prefix-suffix-tuner", "rag-qa-quality"])
def test_what_was_given_is_not_asked_and_the_bench_starts(
    talk: Open, engine: str, tmp_path: Path, workload: str
) -> None:
    """The original could not start these from its questions at all."""
    sample = {"question": "Who?", "answer": "Ann", "context": "Ann did it."}
    (tmp_path / "qa.jsonl").write_text(json.dumps(sample))
    given = {
        "prefix-suffix-tuner": [
            "--psf-thrash",
            "0.1",
            "--psf-context-length",
            "800",
            "--tokens-per-gb-kvcache",
            "6000",
        ],
        "rag-qa-quality": ["--rag-max-output-length", "4", "--rag-doc-align-tokens", "16"],
    }[workload]
    dialogue = talk("--workload", workload, "--no-warmup", *given, terminal="dumb")
    dialogue.answer("[default: http://localhost:8000] > ", f"{engine}\n")
    if workload == "rag-qa-quality":
        dialogue.answer("  > ", "\n")
        dialogue.answer("an answer is needed", "")
        dialogue.answer("  > ", "qa.jsonl\n")
    dialogue.answer("(y/N) > ", "\n")
    dialogue.answer("(y/N) > ", "\n")
    dialogue.answer("[default: 1] > ", "1\n")
    assert dialogue.end() == 0, dialogue.shown
    assert f"Engine Benchmark Result ({workload})" in dialogue.shown
    assert (tmp_path / "bench_results.csv").exists()


def test_leaving_starts_nothing(talk: Open, engine: str, tmp_path: Path) -> None:
    dialogue = talk("--engine-url", engine, terminal="dumb")
    dialogue.answer("[default: 1] > ", "6\n")
    dialogue.answer("(y/N) > ", "\n")
    dialogue.answer("(y/N) > ", "\n")
    dialogue.answer("[default: 1] > ", "3\n")
    assert dialogue.end() == 2
    assert "nothing was started" in dialogue.shown
    assert [path.name for path in tmp_path.iterdir()] == []


def test_ctrl_c_leaves(talk: Open) -> None:
    dialogue = talk()
    dialogue.answer("[default: http://localhost:8000] > ", "")
    dialogue.process.send_signal(2)
    assert dialogue.end() == 130
    assert "Traceback" not in dialogue.shown


def test_no_interactive_asks_nothing_on_a_terminal(talk: Open) -> None:
    dialogue = talk("--no-interactive")
    assert dialogue.end() == 2
    assert "missing --engine-url, --workload" in dialogue.shown


def test_the_live_panel_is_drawn_on_a_terminal(talk: Open, engine: str) -> None:
    arguments = [
        "--engine-url",
        engine,
        "--workload",
        "random-prefill",
        "--rp-num-requests",
        "4",
        "--rp-request-length",
    ]
    dialogue = talk(*arguments, "200")
    assert dialogue.end() == 0
    assert "Mean TTFT" in dialogue.shown
    assert "\x1b[" in dialogue.shown
    assert "4 answered, 0 in flight, 0 failed" in dialogue.shown
