"""A cache that is smaller than all prompts together: it may hold what is shared all the same."""

import re
from collections.abc import Iterator

import pytest

from simulator.config import SimulatorConfig
from simulator.process import start_simulator
from tests.hitlab.conftest import BLOCK_SIZE, Hitlab, WriteScenario, document, prepared

BLOCKS = 1199
TOKENS = (BLOCKS - 1) * BLOCK_SIZE
INPUT, OUTPUT, CONCURRENCY = 4096, 16, 16


@pytest.fixture(scope="module")
def small_url() -> Iterator[str]:
    config = SimulatorConfig(block_size=BLOCK_SIZE, ranks=1, blocks_per_rank=BLOCKS)
    with start_simulator(config) as simulator:
        yield simulator.url


@pytest.mark.parametrize(("groups", "fits"), [(2, True), (8, False)])
def test_shared_prefixes_count_once(
    hitlab: Hitlab, write_scenario: WriteScenario, small_url: str, groups: int, fits: bool
) -> None:
    """16 requests of 4,096 tokens are 65,792 of 19,168 tokens where each is counted whole; 90 % of each is shared."""
    path = write_scenario(
        small_url,
        requests={
            "count": 40,
            "input_length": {"mode": "fixed", "value": INPUT},
            "output_length": {"mode": "fixed", "value": OUTPUT},
        },
        prefix_cache={"target_hit_rate": 0.9, "groups": {"count": groups}},
        service={"dp_size": 1, "timeout_seconds": 120},
        driver={"concurrency": CONCURRENCY},
    )
    assert CONCURRENCY * (INPUT + OUTPUT) > TOKENS
    prefix = int(0.9 * INPUT) // BLOCK_SIZE * BLOCK_SIZE
    assert (groups * prefix < TOKENS) is fits
    directory = prepared(hitlab, path)
    ended = hitlab("run", "--scenario", path)
    assert ended.code == 0, ended.err
    analysis = document(directory.analysis)
    theory, actual = analysis["theory"]["hit_tokens"], analysis["actual"]["global_hits"]
    told = [warning for warning in ended.err.splitlines() if "KV_CAPACITY" in warning]
    if fits:
        assert (told, actual) == ([], theory)
        return
    (warning,) = told
    assert f"of {TOKENS} tokens per rank" in warning
    lost = re.search(rf"the block model loses (\d+) of {theory} hit tokens", warning)
    assert lost is not None, warning
    assert int(lost[1]) > 0
    assert actual < theory
