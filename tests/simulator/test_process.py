"""The simulator as a child process: it starts, says where it is, and never outlives its parent."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests

from contract.errors import ServiceError
from simulator.__main__ import main
from simulator.config import SimulatorConfig
from simulator.process import start_simulator


def gone(pid: int) -> bool:
    """No process, or one that has ended and waits for its parent."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def within(seconds: float, pid: int) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if gone(pid):
            return True
        time.sleep(0.02)
    return False


def test_it_serves_inside_the_block_and_is_gone_after_it() -> None:
    with start_simulator(SimulatorConfig(model_name="mine", api_key="canary")) as simulator:
        assert requests.get(f"{simulator.url}/health", timeout=5).status_code == 200
        assert simulator.running
        assert b"canary" not in Path(f"/proc/{simulator.pid}/cmdline").read_bytes()
        assert b"canary" not in Path(f"/proc/{simulator.pid}/environ").read_bytes()
        started = time.monotonic()
    assert time.monotonic() - started < 2
    assert gone(simulator.pid)
    assert not simulator.running
    simulator.stop()


def test_it_stops_in_the_middle_of_a_request() -> None:
    with start_simulator(SimulatorConfig(decode_tokens_per_second=1)) as simulator:
        body = {"prompt": "x", "max_tokens": 1000, "stream": True}
        with requests.post(f"{simulator.url}/v1/completions", json=body, stream=True, timeout=5) as response:
            next(response.iter_content(10))
            started = time.monotonic()
            simulator.stop()
            assert time.monotonic() - started < 2


def test_it_ends_with_a_parent_that_is_killed() -> None:
    parent = (
        "import os, signal\n"
        "from simulator.config import SimulatorConfig\n"
        "from simulator.process import start_simulator\n"
        "print(start_simulator(SimulatorConfig()).pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    run = subprocess.run([sys.executable, "-c", parent], capture_output=True, check=False, timeout=30)
    assert within(2, int(run.stdout))


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=r"did not start: tokenizer.path: there is no /nowhere"):
        start_simulator(SimulatorConfig(tokenizer="/nowhere"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = SimulatorConfig(port=taken.getsockname()[1])
        log = tmp_path / "simulator.log"
        with pytest.raises(ServiceError, match=r"cannot listen on .* choose another port"):
            start_simulator(config, log=log)
        assert "cannot listen" in log.read_text()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--ranks", "0"], "simulator: --ranks: "),
        (["--tokenizer", "/nowhere"], "tokenizer.path: there is no"),
    ],
)
def test_a_bad_command_line_is_one_line_and_an_exit_code(
    arguments: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["simulator", *arguments])
    assert main() == 2
    stdout, stderr = capsys.readouterr()
    assert stdout == ""
    assert stderr.startswith(complaint)
    assert stderr.count("\n") == 1


def test_standalone_it_prints_its_address_and_obeys_sigterm() -> None:
    with subprocess.Popen([sys.executable, "-m", "simulator"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert requests.get(f"{url}/version", timeout=5).json() == {"version": "0.32.0"}
        process.terminate()
        assert process.wait(2) == 0
