"""Run directories with events, without an engine."""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from analyzer.watch.grafana import Annotator, GrafanaAccess
from contract.run_directory import MeasurementDirectory
from tests.analyzer.conftest import Made
from tests.analyzer.watch.grafana_server import ADMIN, FakeGrafana, grafana_server

START = datetime(2026, 1, 1, tzinfo=UTC)
PHASES = ("precheck", "reset", "warmup", "baseline", "formal", "settle", "after")


def event(second: float, kind: str, **fields: Any) -> dict[str, Any]:
    moment = (START + timedelta(seconds=second)).isoformat(timespec="milliseconds")
    return {"time": moment, "event": kind, **fields}


def epoch_ms(second: float) -> int:
    return round((START + timedelta(seconds=second)).timestamp() * 1000)


def whole_run(*warnings: dict[str, Any]) -> list[dict[str, Any]]:
    """Every phase takes ten seconds; warnings come within the first one."""
    events = [event(0, "run_started", run_id="made", stamp="20260101_000000")]
    for number, phase in enumerate(PHASES):
        events.append(event(number * 10 + 1, "phase_started", phase=phase))
        if number == 0:
            events.extend(warnings)
        events.append(event(number * 10 + 10, "phase_finished", phase=phase))
    return [*events, event(71, "run_finished", status="complete", error=None)]


def write_events(directory: MeasurementDirectory, events: Sequence[dict[str, Any]]) -> None:
    with directory.events.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(item) + "\n" for item in events)


@pytest.fixture(autouse=True)
def logger() -> Iterator[None]:
    """The command sets its logger up for a process of its own; here it is put back."""
    logger = logging.getLogger("hitlab.watch")
    before = logger.handlers, logger.propagate, logger.level
    yield
    logger.handlers, logger.propagate, logger.level = before


@pytest.fixture
def grafana() -> Iterator[FakeGrafana]:
    with grafana_server(FakeGrafana()) as running:
        yield running


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "grafana_password"
    path.write_text(ADMIN[1] + "\n")
    return path


NewAnnotator = Callable[..., Annotator]


@pytest.fixture
def new_annotator(grafana: FakeGrafana, password_file: Path) -> NewAnnotator:
    """An annotator that knows nothing yet, as after a restart."""

    def made(**options: Any) -> Annotator:
        access = GrafanaAccess(grafana.url, ADMIN[0], password_file)
        return Annotator(access, **{"timeout_seconds": 0.5, **options})

    return made


def artifacts_of(made: Made) -> Path:
    return made.manifest.directory.root.parent
