"""The load over TLS: kept connections, streams and faults are what they are without it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contract.records import RequestRecord
from contract.trust import AUTHORITY_VARIABLES, Trust
from runner.drivers.native.load import LoadSummary, send_load
from tests.certificates import Authority, server_context
from tests.runner.drivers.native.test_load import outgoing

Load = Callable[..., tuple[list[RequestRecord], LoadSummary, Any]]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def secure_load(run: Any, server_kit: Any, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Requests to a scripted server with a certificate of `authority`."""
    for name in AUTHORITY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    believed = Trust(str(authority.certificate))

    def go(
        count: int,
        script: dict[int, Any] | None = None,
        *,
        trust: Trust = believed,
        clients: Path | None = None,
        **options: Any,
    ) -> tuple[list[RequestRecord], LoadSummary, Any]:
        async def main() -> tuple[list[RequestRecord], LoadSummary, Any]:
            server = server_kit.ScriptedServer()
            server.script = lambda number: (script or {}).get(number, server_kit.GOOD)
            await server.start(server_context(authority.sign("server"), clients=clients))
            records: list[RequestRecord] = []
            options.setdefault("concurrency", 1)
            summary = await send_load(
                outgoing(count),
                url=server.url,
                on_record=records.append,
                stop=asyncio.Event(),
                trust=trust,
                **options,
            )
            await server.__aexit__()
            return records, summary, server

        found: tuple[list[RequestRecord], LoadSummary, Any] = run(main())
        return found

    return go


def test_many_connections_are_made_once_and_kept(secure_load: Load) -> None:
    records, summary, server = secure_load(400, concurrency=64)
    assert {(record.error_kind, record.chunks, record.prompt_tokens) for record in records} == {(None, 3, 10)}
    assert summary.finished == 400
    assert server.connections <= 64
    assert server.connections > 1
    assert summary.max_in_flight == 64


def test_a_kept_connection_that_was_closed_is_no_failure(secure_load: Load, server_kit: Any) -> None:
    async def last(_got: Any, writer: asyncio.StreamWriter) -> bool:
        writer.write(server_kit.GOOD)
        return False

    records, _, server = secure_load(10, dict.fromkeys((2, 5, 6), last))
    assert [record.error_kind for record in records] == [None] * 10
    assert server.connections == 4


def test_faults_are_told_apart(secure_load: Load, server_kit: Any) -> None:
    async def half(_got: Any, writer: asyncio.StreamWriter) -> bool:
        writer.write(server_kit.GOOD[:-20])
        return False

    script = {1: half, 2: server_kit.stall(), 3: server_kit.stall(server_kit.GOOD[:60])}
    records, *_ = secure_load(5, script, timeout_seconds=0.5)
    assert [record.error_kind for record in records] == ["reset", "timeout", "timeout", None, None]


def test_who_is_not_believed_and_who_does_not_believe_us(secure_load: Load, authority: Authority) -> None:
    records, *_ = secure_load(3, trust=Trust())
    assert [record.error_kind for record in records] == ["connect"] * 3
    assert "set service.ca_file" in str(records[0].error_text)
    client = authority.sign("client")
    shown = Trust(str(authority.certificate), str(client.both))
    records, *_ = secure_load(3, trust=shown, clients=authority.certificate)
    assert [record.error_kind for record in records] == [None] * 3
    records, *_ = secure_load(3, clients=authority.certificate)
    assert {record.error_kind for record in records} <= {"connect", "reset"}
