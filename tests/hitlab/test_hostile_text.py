"""What an engine, or anybody, writes never does anything to the terminal, the log or the page that shows it."""

import json
import threading
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.table import Table

from analyzer.watch.annotations import annotations_of
from analyzer.watch.service import Watch
from analyzer.watch.web import _index_page
from contract.command_log import command_log
from contract.documents import write_document
from contract.errors import ServiceError
from contract.events import EventLog
from contract.redaction import Redactor
from hitlab.terminal import (
    Terminal,
    print_error,
    print_json,
    print_tables,
    print_text,
    print_thread_exception,
    print_traceback,
    print_warning,
)
from runner.control import Answer, refusal
from simulator.http import Request, Response
from tests.hitlab.conftest import REQUESTS, Ended, Hitlab, WriteScenario, prepared
from tests.misbehaving_server import (
    COMPLETIONS,
    METRICS,
    RESET,
    MisbehavingServer,
    answers,
    events,
    honest,
    metrics,
    replaces_event,
)
from tiers.report.page import write_page

HOSTILE = (
    "\x1b]0;owned\x07\x1b[2J\x1b[1A\u202eevil\u2066\x9b31m\x85\u2028\x7f\ufeff\u200f[red]\r\nERROR: forged"
)
TEXTS = st.text(
    st.one_of(
        st.sampled_from("\x00\x07\x08\x1b\x7f\x85\x9b\r\n\u061c\u200e\u2028\u202e\u2066\ufeff[]/"),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=30,
)


def harm(text: str) -> set[str]:
    """Characters that do something else than being seen."""
    return {
        character
        for character in text
        if (unicodedata.category(character)[0] == "C" or unicodedata.category(character) in ("Zl", "Zp"))
        and character not in "\n\t"
    }


def shows_traceback(text: str) -> None:
    try:
        try:
            raise ValueError(text)
        except ValueError as error:
            raise ServiceError(text) from error
    except ServiceError:
        print_traceback()


def shows_traceback_of_a_thread(text: str) -> None:
    error = ValueError(text)
    print_thread_exception(threading.ExceptHookArgs((ValueError, error, None, None)))


def shows_table(text: str) -> None:
    table = Table(text or "x", "value")
    table.add_row(text, text)
    print_tables(table)


def shows_step(text: str) -> None:
    with Terminal().progress() as progress:
        progress(text, 0, None)


PRINTERS: dict[str, Callable[[str], None]] = {
    "error": print_error,
    "warning": print_warning,
    "text": print_text,
    "json": lambda text: print_json({text: [text]}),
    "json on a line": lambda text: print_json({text: [text]}, one_line=True),
    "table": shows_table,
    "traceback": shows_traceback,
    "traceback of a thread": shows_traceback_of_a_thread,
    "what a driver says": lambda text: Terminal().say(f"{text}\n"),
    "step": shows_step,
    "refusal": lambda text: print(refusal(Answer(500, {"error": {"message": text}}, text))),
    "refusal without JSON": lambda text: print(refusal(Answer(500, None, text))),
}


@pytest.mark.parametrize("printer", PRINTERS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(text=TEXTS)
def test_nothing_but_what_is_seen_reaches_the_terminal(
    capsys: pytest.CaptureFixture[str], printer: str, text: str
) -> None:
    for shown in (text, f"{HOSTILE}{text}"):
        PRINTERS[printer](shown)
        printed = capsys.readouterr()
        assert not harm(printed.out + printed.err)


def logs(folder: Path, text: str) -> Path:
    path = folder / "log"
    with suppress(ValueError), command_log(path, Redactor()) as log:
        log.warning("the engine says %s", text)
        raise ValueError(text)
    return path


def logs_events(folder: Path, text: str) -> Path:
    path = folder / "events.jsonl"
    log = EventLog(path, Redactor())
    log.write("warning", code="X", message=text)
    log.close()
    assert json.loads(path.read_text().splitlines()[-1])["message"] == text
    return path


def writes_document(folder: Path, text: str) -> Path:
    path = folder / "document.json"
    write_document(path, {text: text})
    assert json.loads(path.read_text()) == {text: text}
    return path


def writes_page_of_tiers(folder: Path, text: str) -> Path:
    path = folder / "page.html"
    figures = {text or "x": text}
    document: dict[str, Any] = {
        "kind": "server",
        "title": text,
        "verdict": {"exit_code": 0, "line": text},
        "halted": text,
        "started_at": text,
        "host": dict.fromkeys(("name", "processor", "cores", "system"), text),
        "checks": [dict.fromkeys(("name", "status", "detail"), text)],
        "results": figures,
        "operations": {},
        "config": figures,
        "versions": figures,
        "profiled": False,
    }
    write_page(path, document, [])
    return path


WRITERS: dict[str, Callable[[Path, str], Path]] = {
    "log": logs,
    "events": logs_events,
    "document": writes_document,
    "page of tiers": writes_page_of_tiers,
}


@pytest.mark.parametrize("writer", WRITERS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(text=TEXTS)
def test_nothing_but_what_is_seen_reaches_a_file(tmp_path: Path, writer: str, text: str) -> None:
    for shown in (text, f"{HOSTILE}{text}"):
        path = WRITERS[writer](tmp_path, shown)
        assert not harm(path.read_text())
        path.unlink()


@given(TEXTS)
def test_nothing_but_what_is_seen_reaches_a_browser(text: str) -> None:
    told = [
        {"event": "run_started", "time": "2026-01-01T00:00:00Z"},
        {"event": "warning", "time": "2026-01-01T00:00:00Z", "code": text, "message": f"{HOSTILE}{text}"},
        {"event": "run_finished", "time": "2026-01-01T00:00:00Z", "status": "failed", "error": HOSTILE},
    ]
    for annotation in annotations_of("run", "stamp", told, None, ended=True, failure=text):
        assert not harm(annotation.text)
    assert not harm(_index_page([("/reports/x", f"{HOSTILE}{text}")]).decode())


def speak_evil(server: MisbehavingServer) -> None:
    """In every place where an engine may say something."""

    async def edit(number: int, event: bytes, response: Response) -> bytes:
        if event.startswith(b"data: [DONE]"):
            return event
        chunk = orjson.loads(event.removeprefix(b"data: "))
        chunk |= {"id": HOSTILE, HOSTILE: HOSTILE}
        for choice in chunk["choices"]:
            choice["text"] = HOSTILE
            if choice["finish_reason"]:
                choice["finish_reason"] = HOSTILE
        return b"data: " + orjson.dumps(chunk) + b"\n\n"

    async def completions(server: MisbehavingServer, request: Request, response: Response) -> None:
        streams = orjson.loads(request.body).get("stream")
        await (events(edit) if streams else honest)(server, request, response)

    label = HOSTILE.replace("\n", r"\n")
    comment = HOSTILE.replace("\n", " ")

    def page(text: str) -> str:
        own = text.removesuffix("# EOF\n")
        return f'{own}# HELP echo {comment}\n# TYPE echo gauge\necho{{key="{label}"}} 1.0\n'

    error = json.dumps({"error": {"message": HOSTILE}}).encode()
    server.instead = {
        "/version": answers(200, json.dumps({"version": HOSTILE}).encode()),
        METRICS: metrics(page),
        COMPLETIONS: completions,
    }
    server.formal = {
        3: answers(401, error),
        4: answers(500, HOSTILE.encode(), "text/plain"),
        5: replaces_event(1, f"data: {{{HOSTILE}\n\n".encode()),
        6: replaces_event(1, b"data: " + error + b"\n\n"),
    }


def test_an_engine_that_speaks_evil_is_only_quoted(
    hitlab: Hitlab,
    server: MisbehavingServer,
    write_scenario: WriteScenario,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scenario = write_scenario(server.url, requests={"count": REQUESTS})
    directory = prepared(hitlab, scenario)
    speak_evil(server)
    ended = [hitlab("--debug", "run", "--scenario", scenario)]
    assert ended[0].code == 1, ended[0].err
    stamp = max(directory.runs.iterdir()).name
    manifest = ("--manifest", directory.manifest)
    ended.append(hitlab("analyze", *manifest, "--measurement", stamp))
    ended.append(hitlab("report", *manifest, "--measurement", stamp))
    ended += refused_runs(hitlab, server, scenario)
    assert any(r"\x1b]0;owned\x07" in item.err for item in ended), "it is quoted"
    for item in ended:
        assert not harm(item.out + item.err)
        assert not [line for line in item.err.splitlines() if line.startswith("ERROR: forged")]
    files = [
        path
        for path in directory.root.rglob("*")
        if path.suffix in (".log", ".json", ".jsonl", ".html", ".csv")
    ]
    assert {"report.html", "analysis.json", "measurement.json", "events.jsonl"} <= {
        path.name for path in files
    }
    assert not [path for path in files if harm(path.read_text(encoding="utf-8"))]
    watch = Watch(directory.root.parent, None, "http://127.0.0.1:9400/")
    watch.one_pass(patient=False)
    assert not harm(_index_page(watch.reports()).decode())
    printed = capsys.readouterr()
    assert not harm(printed.out + printed.err)


def refused_runs(hitlab: Hitlab, server: MisbehavingServer, scenario: Path) -> list[Ended]:
    """One for every control call that may be refused with words of the engine's own."""
    found = []
    evil = json.dumps({"detail": HOSTILE}).encode()
    for route, answer in (
        ("/v1/models", answers(401, evil)),
        ("/v1/models", answers(200, json.dumps({"data": [{"id": HOSTILE}]}).encode())),
        (RESET, answers(500, HOSTILE.encode(), "text/plain")),
        (METRICS, answers(200, f'vllm:x{{a="{HOSTILE}'.encode(), "text/plain")),
        (METRICS, answers(200, b"", HOSTILE.splitlines()[0].replace("\x85", ""))),
        (COMPLETIONS, answers(503, evil)),
        (COMPLETIONS, answers(307, b"", Location=f"http://127.0.0.1:9/{HOSTILE.splitlines()[0]}")),
    ):
        before = dict(server.instead)
        server.instead[route] = answer
        found.append(hitlab("--debug", "run", "--scenario", scenario))
        assert found[-1].code == 4, found[-1].err
        server.instead = before
    return found
