"""Every expression of every dashboard, every rule and every variable against a real Prometheus.

Prometheus scrapes a simulated engine under the load of real runs, and a real `hitlab watch`. Needs no Docker, only the
programs prometheus and promtool (Debian's package prometheus).
"""

import json
import math
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from contract.file_sd import TARGETS, EngineTarget, write_target
from simulator.config import SimulatorConfig
from simulator.process import start_simulator
from tests.grafana.dashboards import FILES, Query, load, queries, substituted
from tests.stack.prometheus import REPOSITORY, Prometheus, free_port, program, running_prometheus

MODEL = "demo"
BLOCK = 32
TIMEOUT_SECONDS = 120.0


def scenario(url: str, output_dir: Path, **prefix_cache: Any) -> dict[str, Any]:
    """Half a minute of load on two ranks that the plan chooses, so that each has a theory of its own."""
    return {
        "run": {"run_id": "live", "output_dir": str(output_dir)},
        "tokenizer": {"path": "builtin:demo", "block_size": BLOCK},
        "corpus": {"path": "builtin:word-problems"},
        "requests": {
            "count": 120,
            "input_length": {"mode": "truncated_normal", "min": 200, "max": 900},
            "output_length": {"mode": "uniform", "min": 8, "max": 24},
        },
        "prefix_cache": {"mode": "cold", "target_hit_rate": 0.5, "groups": {"count": 3}, **prefix_cache},
        "service": {
            "inference_url": f"{url}/v1/completions",
            "metrics_url": f"{url}/metrics",
            "reset_url": f"{url}/reset_prefix_cache",
            "model": MODEL,
            "dp_size": 2,
        },
        "driver": {"kind": "native", "concurrency": 6},
    }


def hitlab(*arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", "from hitlab.main import main; main()", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
        cwd=REPOSITORY,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@dataclass(frozen=True)
class Watched:
    """What happened between `start` and `end`."""

    prometheus: Prometheus
    start: float
    end: float
    run_id: str
    analysis: dict[str, Any]


class _OptionalMetrics(BaseHTTPRequestHandler):
    """What only a vLLM with --kv-cache-metrics reports; the simulator, as most engines, does not."""

    def do_GET(self) -> None:
        text = "".join(
            f'vllm:kv_block_lifetime_seconds_count{{model_name="m",engine="{rank}"}} {time.monotonic()}\n'
            for rank in (0, 1)
        )
        payload = ("# TYPE vllm:kv_block_lifetime_seconds_count counter\n" + text).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture(scope="session")
def optional_metrics() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _OptionalMetrics)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def watched(tmp_path_factory: pytest.TempPathFactory, optional_metrics: str) -> Iterator[Watched]:
    """Two runs, one with a warning, on one engine, with Prometheus and `hitlab watch` beside them."""
    program()
    folder = tmp_path_factory.mktemp("watched")
    artifacts = folder / "artifacts"
    artifacts.mkdir()
    port = free_port()
    command = [
        *(sys.executable, "-c", "from hitlab.main import main; main()", "watch"),
        *("--artifacts", str(artifacts), "--port", str(port)),
    ]
    # Slow enough that a run is scraped many times.
    config = SimulatorConfig(
        block_size=BLOCK, ranks=2, prefill_tokens_per_second=4000, decode_tokens_per_second=20
    )
    with (folder / "watch.log").open("wb") as log, start_simulator(config) as simulator:
        watch = subprocess.Popen(command, stdout=log, stderr=log, cwd=REPOSITORY)
        try:
            with running_prometheus(folder, artifacts, port) as prometheus:
                start = time.time()
                labels = {"model": "m", "run_id": "optional", "measurement": "x", "engine_kind": "external"}
                write_target(
                    artifacts / TARGETS / "optional.json", EngineTarget((optional_metrics,), **labels)
                )
                # A target that cannot be met is a warning.
                for name, target in (("warned", 0.97), ("live", 0.5)):
                    path = folder / f"{name}.json"
                    path.write_text(
                        json.dumps(scenario(simulator.url, artifacts / name, target_hit_rate=target))
                    )
                    manifest = Path(
                        json.loads(hitlab("prepare", "--scenario", path, "--mode", "text"))["manifest"]
                    )
                    hitlab("run", "--scenario", path)
                # The last tokens are scraped, and what the analyzer exposes of the result.
                time.sleep(5)
                analysis = json.loads(
                    manifest.with_name(manifest.name.replace(".manifest", ".analysis")).read_text()
                )
                yield Watched(prometheus, start, time.time(), analysis["run_id"], analysis)
        finally:
            watch.terminate()
            assert watch.wait(10) == 0, "a signal is how the service ends"


def finite(series: dict[str, Any]) -> list[float]:
    values = series["values"] if "values" in series else [series["value"]]
    return [float(value) for _, value in values if math.isfinite(float(value))]


ALL = {"engine": ".*", "model": ".*", "run": ".*", "rank": ".*"}


def chosen(watched: Watched) -> dict[str, str]:
    """One of each; several, as a variable that allows it writes them."""
    return {"engine": "external", "model": MODEL, "run": f"({watched.run_id}|other)", "rank": "(0|1)"}


EVERY_QUERY = [query for path in FILES for query in queries(path)]
OPTIONAL = {"vllm:kv_block_lifetime_seconds_count", "hitlab_run_warning{"}
"""Series that the chosen run does not have: only All shows them."""


@pytest.mark.parametrize("query", EVERY_QUERY, ids=str)
def test_every_expression_returns_data_with_the_labels_of_its_legend(watched: Watched, query: Query) -> None:
    choices = [ALL] if any(name in query.expression for name in OPTIONAL) else [ALL, chosen(watched)]
    for values in choices:
        expression = substituted(query.expression, values)
        if query.legend in ("", "__auto"):
            found = watched.prometheus.now(expression, watched.end)
        else:
            found = watched.prometheus.over_time(expression, watched.start, watched.end)
        assert any(finite(series) for series in found), expression
        for series in found:
            missing = {label for label in query.labels if not series["metric"].get(label)}
            assert not missing, f"{expression}: {series['metric']} has no {missing}"
        identities = [tuple(sorted(series["metric"].items())) for series in found]
        assert len(set(identities)) == len(identities)


def test_a_choice_that_nothing_fits_shows_nothing(watched: Watched) -> None:
    """Variables do choose: except for what is about Prometheus itself, no panel ignores the run."""
    nothing = ALL | {"run": "no-such-run"}
    for query in EVERY_QUERY:
        found = watched.prometheus.over_time(
            substituted(query.expression, nothing), watched.start, watched.end
        )
        assert not found or "vector(0)" in query.expression, str(query)


VARIABLES = {
    (path.stem, variable["name"]): variable["query"]["query"]
    for path in FILES
    for variable in load(path)["templating"]["list"]
}


@pytest.mark.parametrize(("dashboard", "name"), VARIABLES)
def test_every_variable_offers_what_was_there(watched: Watched, dashboard: str, name: str) -> None:
    parts = re.fullmatch(r"label_values\((.*), (\w+)\)", VARIABLES[dashboard, name])
    assert parts is not None
    match = substituted(parts[1], chosen(watched))
    found = watched.prometheus.ask(
        f"label/{parts[2]}/values", **{"match[]": match, "start": watched.start, "end": watched.end}
    )
    expected = {"engine": {"external"}, "model": {MODEL}, "run": {watched.run_id}, "rank": {"0", "1"}}
    assert set(found) >= expected[name]


RULES = [
    rule["record"]
    for group in yaml.safe_load((REPOSITORY / "prometheus" / "rules" / "engine.yml").read_text())["groups"]
    for rule in group["rules"]
]


@pytest.mark.parametrize("record", sorted(set(RULES)))
def test_every_rule_returns_data(watched: Watched, record: str) -> None:
    selector = f'{record}{{run_id="{watched.run_id}"}}'
    found = watched.prometheus.over_time(selector, watched.start, watched.end)
    assert any(finite(series) for series in found)
    for series in found:
        assert {"run_id", "measurement", "model", "engine_kind"} <= set(series["metric"])
        assert ("rank" in series["metric"]) is record.startswith("rank:")
        assert "instance" not in series["metric"]


def test_prometheus_found_no_fault(watched: Watched) -> None:
    groups = watched.prometheus.ask("rules")["groups"]
    assert [rule["name"] for group in groups for rule in group["rules"] if rule["health"] != "ok"] == []
    targets = watched.prometheus.ask("targets")["activeTargets"]
    assert {target["labels"]["job"] for target in targets} == {"engine", "hitlab", "prometheus"}
    assert [target["lastError"] for target in targets if target["health"] != "up"] == []


def test_the_live_curve_ends_at_the_number_of_the_verdict(watched: Watched) -> None:
    """To the token: the counters since the load began are those that the analysis has."""
    for record, total in (
        ("rank:prefix_cache_hit_tokens:formal", "global_hits"),
        ("rank:prefix_cache_query_tokens:formal", "global_queries"),
    ):
        (found,) = watched.prometheus.now(
            f'sum(last_over_time({record}{{run_id="{watched.run_id}"}}[1m]))', watched.end
        )
        assert float(found["value"][1]) == watched.analysis["actual"][total] > 0
    (curve,) = watched.prometheus.over_time(
        f'run:prefix_cache_hit_ratio:formal{{run_id="{watched.run_id}"}}', watched.start, watched.end
    )
    assert finite(curve)[-1] == pytest.approx(watched.analysis["actual"]["global_hit_rate"], abs=1e-12)
    assert len(set(finite(curve))) > 5, "it is seen to grow"
    for rank, part in watched.analysis["actual"]["by_dp"].items():
        (found,) = watched.prometheus.now(
            f'hitlab_run_rank_actual_hit_rate{{run_id="{watched.run_id}", rank="{rank}"}}', watched.end
        )
        assert float(found["value"][1]) == pytest.approx(part["hit_rate"], abs=1e-12)


def test_theory_of_a_rank_is_its_own(watched: Watched) -> None:
    for rank, part in watched.analysis["theory"]["dp"].items():
        found = watched.prometheus.over_time(
            f'rank:theoretical_hit_ratio:live{{run_id="{watched.run_id}", rank="{rank}"}}',
            watched.start,
            watched.end,
        )
        assert {value for series in found for value in finite(series)} == {part["hit_rate"]}
