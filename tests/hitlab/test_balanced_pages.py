"""A metrics page that is, or may be, another engine's gives no number and no wrong cause, by whatever policy."""

import re
from collections.abc import Callable, Iterator

import pytest

from contract.run_directory import MeasurementDirectory
from prompts.tokenizer import Tokenizer
from simulator.config import SimulatorConfig
from tests.balancer import POLICIES, Balancer, balancer, round_robin
from tests.hitlab.conftest import BLOCK_SIZE, Hitlab, Job, document, errors
from tests.misbehaving_server import METRICS, MisbehavingServer, metrics, misbehaving_server

CODE = "METRICS_NOT_THIS_ENGINE"
WRONG_CAUSES = ("restarted", "somebody else", "nobody else", "is prefix caching on")


def started_at(seconds: float) -> Callable[[str], str]:
    """Without the begin of single counters, which engines of some versions do not report."""

    def edit(text: str) -> str:
        text = re.sub(r"^\S+_created\b.*\n", "", text, flags=re.MULTILINE)
        return re.sub(
            r"^process_start_time_seconds .*",
            f"process_start_time_seconds {seconds}",
            text,
            flags=re.MULTILINE,
        )

    return edit


def no_start(text: str) -> str:
    """As behind several API servers."""
    text = re.sub(r"^\S+_created\b.*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"^process_start_time_seconds .*\n", "", text, flags=re.MULTILINE)


STARTS: dict[str, tuple[Callable[[str], str], Callable[[str], str]]] = {
    "the second later": (started_at(100.0), started_at(100.02)),
    "the first later": (started_at(100.02), started_at(100.0)),
    "equal": (started_at(100.0), started_at(100.0)),
    "not told": (no_start, no_start),
}


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.settle.POLL_SECONDS", 0.02)
    monkeypatch.setattr("runner.counting.POLL_SECONDS", 0.02)
    monkeypatch.setattr("runner.counting.WAIT_SECONDS", 0.3)


@pytest.fixture
def second(tokenizer: Tokenizer) -> Iterator[MisbehavingServer]:
    with misbehaving_server(SimulatorConfig(block_size=BLOCK_SIZE), tokenizer) as running:
        yield running


@pytest.fixture
def balanced(server: MisbehavingServer, second: MisbehavingServer) -> Iterator[Balancer]:
    with balancer([server.url, second.url], round_robin()) as running:
        yield running


@pytest.mark.parametrize(
    ("policy", "starts"),
    [
        *((policy, starts) for policy in POLICIES for starts in ("equal", "not told")),
        ("round robin", "the second later"),
        ("round robin", "the first later"),
        ("sticky", "the second later"),
    ],
)
def test_a_run_behind_a_balancer_is_refused_with_the_cause(
    hitlab: Hitlab,
    server: MisbehavingServer,
    second: MisbehavingServer,
    balanced: Balancer,
    job: Job,
    policy: str,
    starts: str,
) -> None:
    server.instead[METRICS], second.instead[METRICS] = (metrics(edit) for edit in STARTS[starts])
    balanced.choose = POLICIES[policy]()
    directory = job(service=service_of(balanced.url))
    ended = hitlab("run", "--scenario", directory.root.parent / "scenario.json")
    assert ended.code == 4, ended.err
    (error,) = errors(ended)
    assert error.startswith(f"ERROR: {CODE}: ")
    assert not any(cause in error for cause in WRONG_CAUSES), error
    assert server.formal_requests == second.formal_requests == 0
    told = document(MeasurementDirectory(max(directory.runs.iterdir())).measurement)
    assert [finding["code"] for finding in told["findings"]] == [CODE]
    assert (told["preflight"][-1]["name"], told["preflight"][-1]["status"]) == ("metrics_page", "failed")


def service_of(url: str) -> dict[str, str]:
    return {
        "inference_url": f"{url}/v1/completions",
        "metrics_url": f"{url}/metrics",
        "reset_url": f"{url}/reset_prefix_cache",
    }


@pytest.mark.parametrize(
    ("readiness", "metrics_status", "said"),
    [
        (
            b'{"status":"ready","healthy_workers":2,"total_workers":2}',
            None,
            "a router with 2 engines answers here",
        ),
        (None, 404, "HTTP 404, there is no metrics page"),
    ],
)
def test_a_router_that_tells_is_believed(
    hitlab: Hitlab,
    server: MisbehavingServer,
    job: Job,
    readiness: bytes | None,
    metrics_status: int | None,
    said: str,
) -> None:
    """Even where everything goes to one engine: its page would be right by luck."""
    with balancer([server.url], round_robin()) as running:
        running.readiness, running.metrics_status = readiness, metrics_status
        directory = job(service=service_of(running.url))
        ended = hitlab("run", "--scenario", directory.root.parent / "scenario.json")
    assert ended.code == 4
    (error,) = errors(ended)
    assert CODE in error
    assert said in error


def test_one_engine_behind_a_proxy_is_measured(hitlab: Hitlab, server: MisbehavingServer, job: Job) -> None:
    with balancer([server.url], round_robin()) as running:
        running.readiness = b'{"total_workers":1}'
        directory = job(service=service_of(running.url))
        ended = hitlab("run", "--scenario", directory.root.parent / "scenario.json")
    assert ended.code == 0, ended.err
    analysis = document(directory.analysis)
    assert analysis["actual"]["global_hits"] == analysis["theory"]["hit_tokens"]


def test_the_page_of_a_router_itself_is_named(hitlab: Hitlab, server: MisbehavingServer, job: Job) -> None:
    server.instead[METRICS] = metrics(lambda text: text + 'vllm_router_worker_health{worker="a"} 1\n')
    directory = job()
    ended = hitlab("run", "--scenario", directory.root.parent / "scenario.json")
    assert ended.code == 4
    (error,) = errors(ended)
    assert CODE in error
    assert "the page of vllm-router" in error
