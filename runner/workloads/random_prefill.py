"""random-prefill: prompts that share nothing, all sent at once, one token of answer each. Nothing is warmed."""

from typing import Annotated

from pydantic import Field

from contract.options import Unit
from runner.workloads.plan import (
    AllAtOnce,
    Message,
    Parameters,
    Phase,
    Plan,
    Request,
    Resources,
    Words,
    Workload,
)


class RandomPrefill(Parameters):
    rp_request_length: Annotated[int, Unit("TOKENS"), Field(ge=1, description="tokens of each request")] = (
        10000
    )
    rp_num_requests: Annotated[int, Field(ge=1, description="requests, all sent at once")] = 50


def plan(parameters: RandomPrefill, _resources: Resources) -> Plan:
    requests = [
        Request(
            f"req{i}",
            (Message("user", (Words(f"random-prefill/{i}", parameters.rp_request_length),)),),
            1,
            group=f"req{i}",
        )
        for i in range(parameters.rp_num_requests)
    ]
    return Plan(
        phases=(Phase("prefills", True, requests, AllAtOnce()),),
        facts={"Requests at once": parameters.rp_num_requests},
    )


RANDOM_PREFILL = Workload(
    name="random-prefill",
    title="Prefill-only requests fired simultaneously",
    prefix="rp_",
    parameters=RandomPrefill,
    plan=plan,
)
