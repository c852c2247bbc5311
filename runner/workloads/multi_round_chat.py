"""multi-round-chat: users come back at a fixed rate, each with a conversation that grows.

Request k belongs to user k modulo their number. A user who still waits for an answer cannot write: such a request waits
for it, and holds up no other user. What has not started when the time is over is not sent, and counted.
"""

import math
from typing import Annotated

from pydantic import Field

from contract.options import Unit
from runner.workloads.plan import (
    Fixed,
    FixedRate,
    InFlight,
    Message,
    Parameters,
    Phase,
    Plan,
    Request,
    Resources,
    Words,
    Workload,
)

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class MultiRoundChat(Parameters):
    mrc_shared_prompt_length: Annotated[
        int, Unit("TOKENS"), Field(ge=0, description="tokens of the system prompt that all users share")
    ] = 2000
    mrc_chat_history_length: Annotated[
        int, Unit("TOKENS"), Field(ge=1, description="tokens of the history that each user begins with")
    ] = 10000
    mrc_user_input_length: Annotated[int, Unit("TOKENS"), Field(ge=1, description="tokens of each query")] = (
        50
    )
    mrc_output_length: Annotated[
        int, Unit("TOKENS"), Field(ge=1, description="most tokens of each answer")
    ] = 200
    mrc_qps: Annotated[Positive, Unit("QPS"), Field(description="queries per second, all users together")] = (
        1.0
    )
    mrc_duration: Annotated[
        Positive, Unit("SECONDS"), Field(description="seconds in which queries start")
    ] = 60.0


def plan(parameters: MultiRoundChat, resources: Resources) -> Plan:
    each = parameters.mrc_shared_prompt_length + parameters.mrc_chat_history_length
    users = max(1, int(resources.volume_tokens() / each))
    sessions = {f"session{i}": _context(parameters, i) for i in range(users)}
    # Offsets k / qps that lie within the time; the product first, so that 3 queries per second for 3 s are 9.
    count = math.ceil(round(parameters.mrc_qps * parameters.mrc_duration, 9))
    queries = [
        Request(
            f"session{k % users}_round{k // users}",
            (Message("user", (Words(f"multi-round-chat/query/{k}", parameters.mrc_user_input_length),)),),
            parameters.mrc_output_length,
            group=f"session{k % users}",
            session=f"session{k % users}",
            remember=True,
        )
        for k in range(count)
    ]
    primed = [
        Request(f"warmup_{name}", (Message("user", (Fixed("Hello"),)),), 1, group=name, session=name)
        for name in sessions
    ]
    return Plan(
        phases=(
            Phase("prime every session", False, primed, InFlight(1)),
            Phase("queries", True, queries, FixedRate(parameters.mrc_qps, parameters.mrc_duration)),
        ),
        sessions=sessions,
        facts={"Concurrent users": users, "Tokens of a session at first": each, "Queries planned": count},
    )


def _context(parameters: MultiRoundChat, user: int) -> tuple[Message, ...]:
    shared = Words("multi-round-chat/shared", parameters.mrc_shared_prompt_length)
    history = Words(f"multi-round-chat/history/{user}", parameters.mrc_chat_history_length)
    said = (Message("user", (history,)), Message("assistant", (Fixed("Thank you, I have read all of it."),)))
    return (Message("system", (shared,)), *said) if shared.tokens else said


MULTI_ROUND_CHAT = Workload(
    name="multi-round-chat",
    title="Multi-turn chat with stateful sessions",
    prefix="mrc_",
    parameters=MultiRoundChat,
    plan=plan,
    needs_size=True,
    uses_volume=True,
)
