"""One rank, four ranks, and four ranks behind two metrics pages whose labels are not numbers: all exact."""

import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests

from simulator.config import SimulatorConfig
from simulator.process import start_simulator
from tests.hitlab.conftest import BLOCK_SIZE, Hitlab, WriteScenario, prepared
from tests.hitlab.test_main_job import assert_equal_to_the_token

NAMES = ("dp-a", "dp-b", 'pod "c}"', "north\\1")
"""What a gateway may call four engines; in the text of a page some of it is escaped."""

Serve = Callable[[str, Sequence[int]], str]


@pytest.fixture
def page_of() -> Iterator[Serve]:
    """Serves a metrics page that shows some ranks of an engine only, under other names. Answers with its URL."""
    servers: list[ThreadingHTTPServer] = []

    def serve(engine_url: str, ranks: Sequence[int]) -> str:
        class Page(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = renamed(requests.get(f"{engine_url}/metrics", timeout=10).text, ranks).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                """Nothing: stderr is for pytest."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/metrics"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def renamed(text: str, ranks: Sequence[int]) -> str:
    """The lines of some ranks, with their labels renamed, and those that belong to no rank."""
    lines = []
    for line in text.splitlines():
        label = line.partition('engine="')[2].partition('"')[0]
        if not label:
            lines.append(line)
        elif int(label) in ranks:
            escaped = NAMES[int(label)].replace("\\", "\\\\").replace('"', '\\"')
            lines.append(line.replace(f'engine="{label}"', f'engine="{escaped}"'))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(("ranks", "mode"), [(1, "warmup"), (1, "cold"), (4, "warmup")])
def test_one_rank_and_four(hitlab: Hitlab, write_scenario: WriteScenario, ranks: int, mode: str) -> None:
    with start_simulator(SimulatorConfig(block_size=BLOCK_SIZE, ranks=ranks)) as simulator:
        path = write_scenario(
            simulator.url,
            service={"dp_size": ranks},
            prefix_cache={"mode": mode, "target_hit_rate": 0.2, "groups": {"count": 5}},
            # Of lanes, of which some run out before the others, one at a time is all that is surely reached.
            driver={"concurrency": 8 if mode == "warmup" else 1},
        )
        directory = prepared(hitlab, path)
        ended = hitlab("run", "--scenario", path)
    assert ended.code == 0, ended.err
    analysis = assert_equal_to_the_token(directory)
    assert set(analysis["actual"]["by_dp"]) == {str(rank) for rank in range(ranks)}
    assert analysis["warnings"] == []
    if mode == "warmup":
        assert len(analysis["runtime"]["warmup"]) == 5 * ranks


def test_four_ranks_on_two_pages_with_names_of_their_own(
    hitlab: Hitlab, write_scenario: WriteScenario, page_of: Serve
) -> None:
    with start_simulator(SimulatorConfig(block_size=BLOCK_SIZE, ranks=4)) as simulator:
        # The second page comes first: the map alone says which rank is which.
        pages = [page_of(simulator.url, (3, 1)), page_of(simulator.url, (0, 2))]
        service = {"dp_size": 4, "metrics_urls": pages}
        cold = {"mode": "cold", "target_hit_rate": 0.2, "groups": {"count": 5}}
        labels = {name: rank for rank, name in enumerate(NAMES)}
        path = write_scenario(
            simulator.url,
            service=service | {"engine_label_map": labels},
            prefix_cache=cold,
            driver={"concurrency": 1},
        )
        directory = prepared(hitlab, path)
        ended = hitlab("run", "--scenario", path)
        assert ended.code == 0, ended.err
        analysis = assert_equal_to_the_token(directory)
        assert analysis["warnings"] == []
        assert analysis["runtime"]["engine"]["metrics_urls"] == pages

        # Swapped names are found out by the probe of the first rank, before anything is sent in earnest.
        swapped = labels | {NAMES[0]: 1, NAMES[1]: 0}
        path = write_scenario(
            simulator.url, service=service | {"engine_label_map": swapped}, prefix_cache=cold
        )
        ended = hitlab("run", "--scenario", path)
        assert ended.code == 4
        assert "engine_label_map" in ended.err

        path = write_scenario(simulator.url, service=service, prefix_cache=cold)
        ended = hitlab("run", "--scenario", path)
        assert ended.code == 4
        assert 'engine="dp-' in ended.err
        assert "service.engine_label_map" in ended.err
