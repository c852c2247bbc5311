"""The concurrency that was asked for, and how much of it a plan or a load reaches."""

from contract.measurement import Finding, LoadRecord

ENOUGH = 0.95
"""Share of the asked concurrency that counts as reached."""


def too_few_lanes(asked: int, *, lanes: int, groups: int, ranks: int) -> str | None:
    """Why a plan of so many lanes, whose requests go one at a time, can never reach `asked`; None when it can."""
    if lanes >= asked:
        return None
    made = f"{ranks} ranks x {groups} groups are {lanes} lanes"
    if lanes != ranks * groups:
        made = f"the requests of {groups} groups on {ranks} ranks are {lanes} lanes"
    return f"{lanes} of {asked}: {made}, one request each"


def not_reached(load: LoadRecord) -> Finding | None:
    """What to say of a load whose slots stayed empty while requests were left to start."""
    mean = load.mean_while_waiting
    if mean is None or mean >= ENOUGH * load.concurrency:
        return None
    message = (
        f"{mean:.1f} of {load.concurrency} requests were in flight on average while others were left to start, "
        f"{load.max_in_flight} at most: {_reason(load, load.concurrency - mean)}"
    )
    return Finding(code="CONCURRENCY_NOT_REACHED", message=message)


def _reason(load: LoadRecord, empty: float) -> str:
    """`empty`: slots without a request, on average while others were left to start."""
    if load.lane_wait_seconds is None:
        return "a request rate keeps slots empty"
    # Over the whole load, so never less than the slots that stayed empty while requests were left.
    if load.lane_wait_seconds >= 0.5 * empty * load.wall_seconds:
        return f"requests waited for their lanes, one at a time each ({load.lane_wait_seconds:.1f} s of empty slots)"
    if load.retried:
        return f"{load.retried} attempts were repeated, each after a pause"
    return f"the {load.driver} driver did not start the next request as soon as a slot was free"
