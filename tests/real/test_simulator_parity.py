"""The simulator beside a real vLLM: the same requests, one after another, must get the same answers.

Equal means: status, the keys and types of every body and event, usage, error text, and afterwards what every counter
and histogram moved. Texts, ids and times are the engines' own.
"""

from collections.abc import Iterator

import pytest

from tests.real.engine import RunningEngine
from tests.real.parity import CHAT, Facts, cases, compare, facts_of, names_and_labels, simulator_for

REQUESTS = 260


@pytest.fixture(scope="module")
def pair(vllm_engine: RunningEngine) -> Iterator[tuple[Facts, str]]:
    facts = facts_of(vllm_engine)
    with simulator_for(facts, vllm_engine.model_directory) as simulator:
        yield facts, simulator.url


def test_the_same_requests_get_the_same_answers_and_move_the_same_counters(pair: tuple[Facts, str]) -> None:
    facts, simulated = pair
    made = cases(facts, seed=20261129, count=REQUESTS)
    assert sum(case.path == CHAT for case in made) > 20
    compared = compare(facts.url, simulated, made)
    print(f"[parity] {compared}")
    assert not compared.differing, f"{compared}:\n" + "\n".join(compared.differing)
    assert compared.hits > 5000, "requests that never hit prove nothing about hits"
    assert {answer.status for answer in compared.answers} >= {200, 400, 404}


def test_the_model_chats(pair: tuple[Facts, str]) -> None:
    assert pair[0].chats, "without a chat template no chat is compared"


def test_the_simulator_has_the_metrics_of_the_real_engine(pair: tuple[Facts, str]) -> None:
    facts, simulated = pair
    assert names_and_labels(facts.url) == names_and_labels(simulated)
