"""A real Prometheus scrapes an engine with https whose authority is the user's own. Needs the program prometheus."""

import time
from pathlib import Path

from contract.file_sd import TARGETS, EngineTarget, target_path, write_target
from prompts.tokenizer import load_tokenizer
from simulator.config import SimulatorConfig
from tests.certificates import Authority, server_context
from tests.misbehaving_server import misbehaving_server
from tests.stack.prometheus import free_port, running_prometheus

PATIENCE_SECONDS = 60.0


def test_prometheus_believes_whom_the_run_believes(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    tokenizer = load_tokenizer("builtin:demo", revision=None, trust_remote_code=False)
    tls = server_context(authority.sign("engine"))
    artifacts = tmp_path / "artifacts"
    with (
        misbehaving_server(SimulatorConfig(), tokenizer, tls) as server,
        running_prometheus(tmp_path, artifacts, free_port()) as prometheus,
    ):
        target = EngineTarget(
            metrics_urls=(f"{server.url}/metrics",),
            model="demo",
            run_id="run",
            measurement="stamp",
            engine_kind="external",
            authority=authority.certificate,
        )
        write_target(target_path(artifacts / TARGETS, server.url), target)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (up := prometheus.now('up{job="engine"} == 1')):
            found = prometheus.ask("targets")["activeTargets"]
            assert time.monotonic() < deadline, [item["lastError"] for item in found]
            time.sleep(0.2)
        assert up[0]["metric"]["run_id"] == "run"
