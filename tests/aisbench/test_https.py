"""AISBench against an engine with https, believed and shown who one is as HitLab's own calls do."""

from pathlib import Path

import pytest

from prompts.tokenizer import load_tokenizer
from simulator.config import SimulatorConfig
from tests.aisbench.conftest import MakeJob
from tests.aisbench.scenarios import simulated
from tests.aisbench.test_simulator import assert_exact
from tests.certificates import Authority, server_context
from tests.misbehaving_server import misbehaving_server


@pytest.mark.parametrize("named_by", ["service", "environment"])
def test_every_request_is_sent_and_counted(make_job: MakeJob, tmp_path: Path, named_by: str) -> None:
    authority = Authority(tmp_path / "authority")
    client = authority.sign("client")
    tls = server_context(authority.sign("server"), clients=authority.certificate)
    tokenizer = load_tokenizer("builtin:demo", revision=None, trust_remote_code=False)
    with misbehaving_server(SimulatorConfig(block_size=16), tokenizer, tls) as server:
        document = simulated(server.url)
        document["service"] |= {"client_cert": str(client.certificate), "client_key": str(client.key)}
        environment = {}
        if named_by == "service":
            document["service"]["ca_file"] = str(authority.certificate)
        else:
            environment["SSL_CERT_FILE"] = str(authority.certificate)
        assert_exact(make_job(document, **environment).run())
