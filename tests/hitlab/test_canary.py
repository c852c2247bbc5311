"""A key is planted, the server repeats it wherever it can, and nothing that HitLab leaves behind has it."""

import json
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from contract.run_directory import RunDirectory
from simulator.http import Request, Response
from tests.hitlab.conftest import REQUESTS, Hitlab, WriteScenario, document, end_of, start_command
from tests.misbehaving_server import (
    COMPLETIONS,
    METRICS,
    Fault,
    MisbehavingServer,
    answers,
    events,
    honest,
    metrics,
    replaces_event,
)

CANARY = "sk-canary-7f2a91"


def echoing() -> Fault:
    """The key in every text of a chunk: what was generated, why it ended, and fields nobody knows."""

    async def edit(number: int, event: bytes, response: Response) -> bytes:
        if event.startswith(b"data: [DONE]"):
            return event
        chunk = orjson.loads(event.removeprefix(b"data: "))
        chunk |= {"id": CANARY, "system_fingerprint": CANARY, CANARY: CANARY}
        for choice in chunk["choices"]:
            choice |= {"text": CANARY}
            if choice["finish_reason"]:
                choice["finish_reason"] = f"stop {CANARY}"
        return b"data: " + orjson.dumps(chunk) + b"\n\n"

    return events(edit)


def with_header(fault: Fault) -> Fault:
    """The key in a header of the answer, beside whatever else is wrong with it."""

    async def echo(server: MisbehavingServer, request: Request, response: Response) -> None:
        response._head = partial(head_with_key, response._head)  # type: ignore[method-assign]
        await fault(server, request, response)

    return echo


def head_with_key(head: Callable[..., bytes], status: int, fields: list[tuple[str, str]]) -> bytes:
    return head(status, [*fields, ("x-key", CANARY)])


def in_metrics(text: str) -> str:
    return f'{text.removesuffix("# EOF" + chr(10))}# HELP echo {CANARY}\n# TYPE echo gauge\necho{{key="{CANARY}"}} 1.0\n'


def repeat_everywhere(server: MisbehavingServer) -> set[str]:
    """Returns the keys that will have been sent with completions."""
    keys: set[str] = set()

    async def completions(server: MisbehavingServer, request: Request, response: Response) -> None:
        keys.add(request.headers["authorization"])
        streams = orjson.loads(request.body).get("stream")
        await with_header(echoing() if streams else honest)(server, request, response)

    error = json.dumps(
        {"error": {"message": f"Incorrect API key provided: {CANARY}", "code": CANARY}}
    ).encode()
    server.instead = {
        "/version": answers(200, json.dumps({"version": f"0.9.{CANARY}"}).encode()),
        METRICS: metrics(in_metrics),
        COMPLETIONS: completions,
    }
    server.formal = {
        3: with_header(answers(401, error)),
        4: answers(500, f"Traceback: {CANARY}".encode(), "text/plain"),
        5: replaces_event(1, f"data: {{{CANARY}\n\n".encode()),
        6: replaces_event(1, b"data: " + error + b"\n\n"),
        7: answers(200, f"<html>{CANARY}".encode()),
    }
    return keys


def command_lines() -> Iterator[bytes]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended since


@pytest.mark.parametrize("source", ["scenario", "environment"])
def test_a_key_is_nowhere_in_what_a_run_leaves(
    hitlab: Hitlab,
    server: MisbehavingServer,
    write_scenario: WriteScenario,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
) -> None:
    service = {"api_key": CANARY} if source == "scenario" else {}
    if source == "environment":
        monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    scenario = write_scenario(server.url, service=service, requests={"count": REQUESTS})
    keys = repeat_everywhere(server)
    ended = hitlab("prepare", "--scenario", scenario, "--mode", "text")
    printed = [ended.out, ended.err]
    directory = RunDirectory.of_manifest(Path(json.loads(ended.out)["manifest"]))

    process = start_command("--debug", "run", "--scenario", scenario)
    seen = 0
    while True:
        for line in command_lines():
            assert CANARY.encode() not in line
            seen += str(scenario).encode() in line
        try:
            process.wait(0.1)
            break
        except subprocess.TimeoutExpired:
            continue
    assert seen, "the run itself was among the processes looked at"
    ended = end_of(process)
    assert ended.code == 1, ended.err
    printed += [ended.out, ended.err]
    assert keys == {f"Bearer {CANARY}"}, "the key was sent"
    stamp = max(directory.runs.iterdir()).name
    for arguments in (
        ("validate", "--manifest", directory.manifest),
        ("analyze", "--manifest", directory.manifest, "--measurement", stamp),
    ):
        ended = hitlab(*arguments)
        printed += [ended.out, ended.err]

    # And a run that ends because of what the server says.
    server.instead["/v1/models"] = answers(401, json.dumps({"error": f"no such key: {CANARY}"}).encode())
    ended = hitlab("--debug", "run", "--scenario", scenario)
    assert ended.code == 4
    printed += [ended.out, ended.err]
    assert "***" in ended.err

    assert not any(CANARY in text for text in printed)
    files = [path for path in directory.root.rglob("*") if path.is_file()]
    assert {"events.jsonl", "baseline.prom", "requests.parquet", "measurement.json"} <= {
        p.name for p in files
    }
    assert not [path for path in files if CANARY.encode() in decoded(path)]
    told = document(directory.runs / stamp / "measurement.json")
    assert told["engine"]["version"] == "0.9.***", "the place is marked"
    assert 'echo{key="***"}' in (directory.runs / stamp / "baseline.prom").read_text()


def decoded(path: Path) -> bytes:
    """The bytes of a file, and what compressed columns hold."""
    if path.suffix != ".parquet":
        return path.read_bytes()
    return path.read_bytes() + str(pq.read_table(path).to_pylist()).encode()


@pytest.mark.parametrize("value", [[CANARY], 123456789, {"key": CANARY}])
def test_a_key_of_the_wrong_kind_is_not_shown(
    hitlab: Hitlab, write_scenario: WriteScenario, value: Any
) -> None:
    ended = hitlab("inspect", "--scenario", write_scenario("http://127.0.0.1:9", service={"api_key": value}))
    assert ended.code == 2
    assert "service.api_key: found ***; must be a text" in ended.err
    assert CANARY not in ended.err
    assert "123456789" not in ended.err
