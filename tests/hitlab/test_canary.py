"""A key is planted, the server repeats it wherever it can, and nothing that HitLab leaves behind has it."""

import base64
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from contract.run_directory import RunDirectory
from prompts.tokenizer import Tokenizer
from simulator.config import SimulatorConfig
from simulator.http import Request, Response
from tests.hitlab.conftest import (
    BLOCK_SIZE,
    REQUESTS,
    Hitlab,
    WriteScenario,
    document,
    end_of,
    errors,
    prepared,
    start_command,
)
from tests.misbehaving_server import (
    COMPLETIONS,
    METRICS,
    Fault,
    MisbehavingServer,
    answers,
    events,
    honest,
    metrics,
    misbehaving_server,
    replaces_event,
)
from tests.secret_spellings import spellings, traces

CANARY = 'sk-canary-7f2a91+/"x'
PASSWORD = "pa55-canary=77&c"  # noqa: S105 - a canary
ECHO = " | ".join([*spellings(CANARY).values(), *spellings(PASSWORD).values()])
TRACES = [*traces(CANARY), *traces(PASSWORD)]


def echoing() -> Fault:
    """The key in every text of a chunk: what was generated, why it ended, and fields nobody knows."""

    async def edit(number: int, event: bytes, response: Response) -> bytes:
        if event.startswith(b"data: [DONE]"):
            return event
        chunk = orjson.loads(event.removeprefix(b"data: "))
        chunk |= {"id": CANARY, "system_fingerprint": ECHO, CANARY: ECHO}
        for choice in chunk["choices"]:
            choice |= {"text": ECHO}
            if choice["finish_reason"]:
                choice["finish_reason"] = f"stop {ECHO}"
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
    label = ECHO.replace("\\", r"\\").replace('"', r"\"")
    return f'{text.removesuffix("# EOF" + chr(10))}# HELP echo {ECHO}\n# TYPE echo gauge\necho{{key="{label}"}} 1.0\n'


def repeat_everywhere(server: MisbehavingServer) -> set[str]:
    """Returns the keys that will have been sent with completions, and the logins with metrics."""
    keys: set[str] = set()

    async def completions(server: MisbehavingServer, request: Request, response: Response) -> None:
        keys.add(request.headers["authorization"])
        streams = orjson.loads(request.body).get("stream")
        await with_header(echoing() if streams else honest)(server, request, response)

    async def pages(server: MisbehavingServer, request: Request, response: Response) -> None:
        keys.add(request.headers["authorization"])
        await metrics(in_metrics)(server, request, response)

    error = json.dumps({"error": {"message": f"Incorrect API key provided: {ECHO}", "code": CANARY}}).encode()
    server.instead = {
        "/version": answers(200, json.dumps({"version": f"0.9.{CANARY}"}).encode()),
        METRICS: pages,
        COMPLETIONS: completions,
    }
    server.formal = {
        3: with_header(answers(401, error)),
        4: answers(500, f"Traceback: {ECHO}".encode(), "text/plain"),
        5: replaces_event(1, f"data: {{{ECHO}\n\n".encode()),
        6: replaces_event(1, b"data: " + error + b"\n\n"),
        7: answers(200, f"<html>{ECHO}".encode()),
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
    address = server.url.replace("http://", f"http://me:{PASSWORD}@")
    service = {"metrics_url": f"{address}/metrics", "reset_url": f"{address}/reset_prefix_cache"}
    if source == "environment":
        monkeypatch.setenv("OPENAI_API_KEY", f"{CANARY}\r\n")
    else:
        service["api_key"] = f" {CANARY}\n"
    scenario = write_scenario(server.url, service=service, requests={"count": REQUESTS})
    keys = repeat_everywhere(server)
    ended = hitlab("prepare", "--scenario", scenario, "--mode", "text")
    printed = [ended.out, ended.err]
    directory = RunDirectory.of_manifest(Path(json.loads(ended.out)["manifest"]))

    process = start_command("--debug", "run", "--scenario", scenario)
    seen = 0
    while True:
        for line in command_lines():
            assert not traces_in(line)
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
    login = base64.b64encode(f"me:{PASSWORD}".encode()).decode()
    assert keys == {f"Bearer {CANARY}", f"Basic {login}"}, "key and login were sent"
    stamp = max(directory.runs.iterdir()).name
    for arguments in (
        ("validate", "--manifest", directory.manifest),
        ("analyze", "--manifest", directory.manifest, "--measurement", stamp),
    ):
        ended = hitlab(*arguments)
        printed += [ended.out, ended.err]

    # And a run that ends because of what the server says.
    server.instead["/v1/models"] = answers(401, json.dumps({"error": f"no such key: {ECHO}"}).encode())
    ended = hitlab("--debug", "run", "--scenario", scenario)
    assert ended.code == 4
    printed += [ended.out, ended.err]
    assert "***" in ended.err

    # Or because a page is none: the line that is to blame is shown.
    del server.instead["/v1/models"]
    server.instead[METRICS] = answers(200, f'vllm:x{{a="{ECHO}'.encode(), "text/plain")
    ended = hitlab("--debug", "run", "--scenario", scenario)
    assert ended.code == 4
    printed += [ended.out, ended.err]

    assert not [text for text in printed if traces_in(text.encode())]
    files = [path for path in directory.root.parent.rglob("*") if path.is_file() and path != scenario]
    assert any(path.parent.name == "targets" for path in files)
    assert any(path.parent.name == ".hitlab-locks" for path in files)
    assert {"events.jsonl", "baseline.prom", "requests.parquet", "measurement.json"} <= {
        p.name for p in files
    }
    assert not [path for path in files if traces_in(decoded(path))]
    told = document(directory.runs / stamp / "measurement.json")
    assert told["engine"]["version"] == "0.9.***", "the place is marked"
    assert told["service"]["metrics_url"] == f"{server.url}/metrics".replace("http://", "http://***@")
    assert told["engine"]["metrics_urls"] == [f"{server.url}/metrics"]
    page = (directory.runs / stamp / "baseline.prom").read_text()
    assert re.search(r'^echo{key="\*\*\* \| .*"} 1\.0$', page, re.MULTILINE)


def traces_in(content: bytes) -> list[bytes]:
    return [trace for trace in TRACES if trace in content]


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


@pytest.mark.parametrize("key", ["vllm", "1"])
def test_a_short_key_breaks_nothing(
    hitlab: Hitlab, tokenizer: Tokenizer, write_scenario: WriteScenario, key: str
) -> None:
    """It is a word of the metrics page, and of many an answer."""
    config = SimulatorConfig.model_validate({"block_size": BLOCK_SIZE, "api_key": key})
    with misbehaving_server(config, tokenizer) as server:
        scenario = write_scenario(server.url, service={"api_key": key}, requests={"count": REQUESTS})
        directory = prepared(hitlab, scenario)
        ended = hitlab("run", "--scenario", scenario)
    assert ended.code == 0, ended.err
    run = max(directory.runs.iterdir())
    assert document(run / "analysis.json")["actual"]["global_hit_rate"] is not None
    assert "vllm:prefix_cache_queries_total{" in (run / "baseline.prom").read_text()


def test_an_address_of_the_load_with_a_password_is_refused_before_anything_is_sent(
    hitlab: Hitlab, server: MisbehavingServer, write_scenario: WriteScenario
) -> None:
    address = server.url.replace("http://", f"http://me:{PASSWORD}@")
    scenario = write_scenario(server.url, service={"inference_url": f"{address}/v1/completions"})
    directory = prepared(hitlab, scenario)
    ended = hitlab("--debug", "run", "--scenario", scenario)
    assert ended.code == 2
    assert "service.inference_url: holds a user or password" in ended.err
    assert not server.seen
    files = [path for path in directory.root.rglob("*") if path.is_file()]
    assert not [path for path in files if traces_in(decoded(path))]
    assert not traces_in(ended.err.encode())


@pytest.mark.parametrize("key", ["sk-canary\n-7f2a91", "sk-canary-7f2a91-\u043a\u043b\u044e\u0447"])
@pytest.mark.parametrize("source", ["scenario", "environment"])
def test_a_key_that_no_header_carries_ends_in_one_line(
    hitlab: Hitlab,
    engine_url: str,
    write_scenario: WriteScenario,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    source: str,
) -> None:
    scenario = write_scenario(engine_url)
    prepared(hitlab, scenario)
    if source == "environment":
        monkeypatch.setenv("OPENAI_API_KEY", key)
    else:
        write_scenario(engine_url, service={"api_key": key})
    ended = hitlab("--debug", "run", "--scenario", scenario)
    assert ended.code == 2
    assert len(errors(ended)) == 1
    assert "canary" not in ended.err
    assert "7f2a91" not in ended.err
