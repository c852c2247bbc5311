"""Commands against engines with https: whom they believe, what they say when they do not, and that nothing is lost."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.trust import AUTHORITY_VARIABLES
from prompts.tokenizer import Tokenizer
from simulator.config import SimulatorConfig
from tests.certificates import Authority, server_context
from tests.hitlab.conftest import BLOCK_SIZE, Hitlab, WriteScenario, document, errors, prepared
from tests.misbehaving_server import MisbehavingServer, misbehaving_server


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in AUTHORITY_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def secure(authority: Authority, tokenizer: Tokenizer) -> Iterator[MisbehavingServer]:
    config = SimulatorConfig(block_size=BLOCK_SIZE)
    with misbehaving_server(config, tokenizer, server_context(authority.sign("server"))) as running:
        yield running


def test_a_run_over_https_counts_to_the_token(
    hitlab: Hitlab,
    secure: MisbehavingServer,
    authority: Authority,
    write_scenario: WriteScenario,
    tmp_path: Path,
) -> None:
    """Streams on kept connections, many at a time; the file is named relative to the scenario."""
    (tmp_path / "ca.pem").write_bytes(authority.certificate.read_bytes())
    sections = {"requests": {"count": 200}, "driver": {"kind": "native", "concurrency": 32}}
    scenario = write_scenario(secure.url, **sections)
    directory = prepared(hitlab, scenario)
    ended = hitlab("run", "--scenario", scenario)
    assert ended.code == 4
    (line,) = errors(ended)
    assert "its certificate is not trusted by the system's store" in line
    assert "set service.ca_file" in line
    assert not secure.seen

    write_scenario(secure.url, service={"ca_file": "ca.pem"}, **sections)
    ended = hitlab("run", "--scenario", scenario)
    assert ended.code == 0, ended.err
    run = max(directory.runs.iterdir())
    analysis = document(run / "analysis.json")
    assert analysis["validation"]["status"] == "PASS"
    assert analysis["actual"]["global_hit_rate"] == analysis["theoretical_hit_rate"]
    load = document(run / "measurement.json")["load"]
    assert (load["finished"], load["failed"]) == (200, 0)
    assert load["max_in_flight"] > 1
    (target,) = (directory.root.parent / ".prometheus" / "targets").iterdir()
    (group,) = json.loads(target.read_text())
    assert group["labels"]["__scheme__"] == "https"


@pytest.mark.parametrize("variable", AUTHORITY_VARIABLES)
def test_a_variable_is_believed_by_every_call(
    hitlab: Hitlab,
    secure: MisbehavingServer,
    authority: Authority,
    write_scenario: WriteScenario,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
) -> None:
    monkeypatch.setenv(variable, str(authority.certificate))
    scenario = write_scenario(secure.url, driver={"kind": "native", "concurrency": 4})
    prepared(hitlab, scenario)
    assert hitlab("run", "--scenario", scenario).code == 0


def test_both_show_who_they_are(
    hitlab: Hitlab, authority: Authority, tokenizer: Tokenizer, write_scenario: WriteScenario
) -> None:
    client = authority.sign("client")
    tls = server_context(authority.sign("server"), clients=authority.certificate)
    with misbehaving_server(SimulatorConfig(block_size=BLOCK_SIZE), tokenizer, tls) as server:
        believed = {"ca_file": str(authority.certificate)}
        scenario = write_scenario(server.url, service=believed)
        prepared(hitlab, scenario)
        ended = hitlab("run", "--scenario", scenario)
        assert ended.code == 4
        assert "service.client_cert" in errors(ended)[0]
        write_scenario(server.url, service=believed | {"client_cert": str(client.both)})
        assert hitlab("run", "--scenario", scenario).code == 0
        pair = {"client_cert": str(client.certificate), "client_key": str(client.key)}
        write_scenario(server.url, service=believed | pair)
        assert hitlab("run", "--scenario", scenario).code == 0


@pytest.mark.parametrize(
    ("service", "words"),
    [
        ({"ca_file": "gone.pem"}, "service.ca_file: "),
        ({"client_cert": "gone.pem"}, "service.client_cert: "),
        ({"client_key": "gone.pem"}, "service.client_cert: is missing"),
    ],
)
def test_a_file_that_is_not_there_is_told_before_anything_is_sent(
    hitlab: Hitlab,
    secure: MisbehavingServer,
    write_scenario: WriteScenario,
    service: dict[str, str],
    words: str,
) -> None:
    scenario = write_scenario(secure.url)
    prepared(hitlab, scenario)
    write_scenario(secure.url, service=service)
    ended = hitlab("run", "--scenario", scenario)
    assert ended.code == 2
    (line,) = errors(ended)
    assert words in line
    assert not secure.seen


def test_http_where_https_is_and_the_other_way_round(
    hitlab: Hitlab, engine_url: str, secure: MisbehavingServer, write_scenario: WriteScenario
) -> None:
    scenario = write_scenario(engine_url.replace("http://", "https://"))
    prepared(hitlab, scenario)
    ended = hitlab("run", "--scenario", scenario)
    assert (ended.code, "http://" in errors(ended)[0]) == (4, True), ended.err
    write_scenario(secure.url.replace("https://", "http://"))
    ended = hitlab("run", "--scenario", scenario)
    assert (ended.code, "https://" in errors(ended)[0]) == (4, True), ended.err


def test_bench_engine_over_https(
    hitlab: Hitlab, secure: MisbehavingServer, authority: Authority, tmp_path: Path
) -> None:
    arguments = (
        *("bench", "engine", "--no-interactive", "--engine-url", secure.url, "--workload", "random-prefill"),
        *("--rp-num-requests", "4", "--rp-request-length", "50", "--tokens-per-gb-kvcache", "1000"),
        *("--output-dir", tmp_path),
    )
    ended = hitlab(*arguments)
    assert ended.code == 4
    assert "set --ca-file" in errors(ended)[0]
    ended = hitlab(*arguments, "--ca-file", authority.certificate)
    assert ended.code == 0, ended.err
    ended = hitlab(*arguments, "--ca-file", tmp_path / "gone.pem")
    assert ended.code == 2
    assert "--ca-file: " in errors(ended)[0]
