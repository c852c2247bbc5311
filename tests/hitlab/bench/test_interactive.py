"""The questions, answered through a pseudo-terminal."""

import json
import math
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

from contract.errors import ServiceError
from hitlab.commands.bench import interactive
from runner.bench.settings import General, fields_of
from runner.workloads import WORKLOADS
from tests.hitlab.conftest import REPOSITORY, Hitlab

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

    def look(self) -> None:
        """What is shown in the next moment."""
        self._more(math.inf, "")

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
    dialogue.answer("Tokens per GB KV cache\r\n", "")
    dialogue.answer("  > ", "many\n")
    dialogue.answer("valid integer", "")
    dialogue.answer("  > ", "6000\n")
    dialogue.answer("Set model, volume, seed, warm phases?", "")
    dialogue.answer("(y/N) > ", "y\n")
    dialogue.answer("Model\r\n", "")
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
    for name, value in (
        ("Workload", "long-doc-qa"),
        ("Model", "demo"),
        ("Tokens per GB KV cache", "6000"),
        ("KV cache volume (GB)", "0.5"),
        ("Document length (tokens)", "800"),
        ("Number of in-flight requests", "3"),
    ):
        assert f"  {name + ':':<38}{value}" in summary
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
        dialogue.answer("  > ", "no.jsonl\n")
        dialogue.answer("there is no file no.jsonl; a name is one of musique, hotpotqa", "")
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
    dialogue.answer("[default: 1] > ", "3\n")  # back to the last question
    dialogue.answer("Set the parameters of this workload?", "")
    dialogue.answer("(y/N) > ", "\n")
    dialogue.answer("[default: 1] > ", "4\n")
    assert dialogue.end() == 2
    assert "The engine serves demo" in dialogue.shown
    assert "nothing was started" in dialogue.shown
    assert [path.name for path in tmp_path.iterdir()] == []


def test_a_dead_engine_is_noticed_at_once_and_the_answers_can_be_exported(talk: Open, tmp_path: Path) -> None:
    dialogue = talk(terminal="dumb")
    dialogue.answer("[default: http://localhost:8000] > ", "127.0.0.1:9\n")
    dialogue.wait_for("cannot be reached")
    dialogue.answer("Go on without it?", "")
    dialogue.answer("(y/N) > ", "\n")
    dialogue.answer("[default: http://127.0.0.1:9] > ", "\n")
    dialogue.answer("(y/N) > ", "y\n")
    dialogue.answer("[default: 1] > ", "6\n")
    dialogue.answer("(y/N) > ", "\n")
    dialogue.answer("(y/N) > ", "\n")
    dialogue.wait_for("The engine did not answer: export the configuration, or start it first.")
    dialogue.answer("[default: 2] > ", "\n")
    dialogue.answer("[default: bench_config.json] > ", "no/where.json\n")
    dialogue.answer("there is no folder", "")
    dialogue.answer("[default: bench_config.json] > ", "\n")
    assert dialogue.end() == 0, dialogue.shown
    assert "without the engine's model and size" in dialogue.shown
    stored = config(tmp_path)
    assert (stored["workload"], stored["seed"], "model" in stored) == ("random-prefill", 42, False)


class Asked:
    """Answers given in turn, without a terminal; what was said is kept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: str) -> None:
        self.said: list[str] = []
        left = iter(answers)

        def line(prompt: str) -> str:
            self.said.append(prompt)
            answer = next(left)
            if answer == interactive.BACK:
                raise interactive._Back
            return answer

        monkeypatch.setattr(interactive, "_line", line)
        monkeypatch.setattr(interactive, "_say", self.said.append)
        monkeypatch.setattr(interactive, "_can_draw", lambda: False)

    @property
    def text(self) -> str:
        return "\n".join(self.said)


def explorer(size: int | None = 6553, lmcache: int | None = None) -> interactive.Explorer:
    def cache(url: str, model: str) -> int:
        if lmcache is None:
            raise ServiceError(f"{url}/status: says nothing of {model!r}")
        return lmcache

    return interactive.Explorer(lambda _url, _model: interactive.Found("Qwen/Qwen3-14B", size), cache)


def test_what_was_found_is_in_the_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, "8000", "1", "n", "", "", "", "1")
    values, path = interactive.ask({}, explorer()) or ({}, None)
    assert (values, path) == ({"engine_url": "http://localhost:8000", "workload": "long-doc-qa"}, None)
    assert "  The engine serves Qwen/Qwen3-14B, 6553 tokens per GB of KV cache." in asked.said
    for line in (f"  {'Model:':<38}Qwen/Qwen3-14B", f"  {'Tokens per GB KV cache:':<38}6553"):
        assert line in asked.said


def test_a_size_that_nobody_tells_is_asked_for_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, "8000", "1", "n", "", "46020", "", "", "1")
    values, _ = interactive.ask({}, explorer(None)) or ({}, None)
    assert values["tokens_per_gb_kvcache"] == "46020"
    assert "567890 / 12.34 = 46020" in asked.text
    assert "an answer is needed" in asked.text


def test_an_lmcache_that_knows_nothing_is_noticed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, "8000", "1", "y", "", "n", interactive.BACK, "n", "", "", "", "1")
    values, _ = interactive.ask({}, explorer()) or ({}, None)
    assert "lmcache_url" not in values
    assert "http://localhost:8080/status: says nothing of 'Qwen/Qwen3-14B'" in asked.text
    asked = Asked(monkeypatch, "8000", "1", "y", "", "", "", "1")
    values, _ = interactive.ask({}, explorer(lmcache=77)) or ({}, None)
    assert values["lmcache_url"] == "http://localhost:8080"
    assert "77" in next(line for line in asked.said if line.startswith("  Tokens per GB"))


def test_going_back_from_the_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, "8000", "6", "", "", "3", "y", "500", "", "2", "")
    values, path = interactive.ask({}, explorer()) or ({}, None)
    assert values["rp_request_length"] == "500"
    assert path == Path("bench_config.json")
    assert asked.text.count("Configuration Summary") == 2


def test_labels_are_words() -> None:
    keys = [*fields_of(General), *(key for w in WORKLOADS.values() for key in fields_of(w.parameters))]
    labels = {key: interactive.label(key) for key in keys}
    assert all("_" not in text and text[0].isupper() for text in labels.values())
    assert labels["ldqa_document_length"] == "Document length (tokens)"
    assert labels["psf_thrash"] == "Thrash (GB)"
    assert labels["mrc_qps"] == "QPS"
    assert labels["no_warmup"] == "Skip the warmup"


def test_a_start_that_fails_offers_to_keep_the_answers(
    hitlab: Hitlab, engine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A prompt longer than the model takes is noticed when the texts are made, after the last question."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    Asked(monkeypatch, engine, "", "", "1", "", "kept.json")
    given = ("--workload", "random-prefill", "--rp-num-requests", "1", "--rp-request-length", "9000", "-q")
    ended = hitlab("bench", "engine", *given)
    assert ended.code == 2
    assert "--max-model-len" in ended.err
    assert config(tmp_path, "kept.json")["rp_request_length"] == 9000


def test_ctrl_c_leaves(talk: Open) -> None:
    dialogue = talk()
    dialogue.answer("[default: http://localhost:8000] > ", "")
    # A signal that comes just before the read does not end it, so a user presses the key again.
    while dialogue.process.poll() is None:
        dialogue.process.send_signal(2)
        dialogue.look()
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
