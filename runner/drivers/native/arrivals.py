"""When requests arrive, for an open loop: offsets in seconds from the begin of the load. Pure.

The gaps of a load without ramp are constant, or drawn from a gamma distribution with the mean 1 / rate: burstiness is its
shape, as in `vllm bench serve`. 1 is a Poisson process, below 1 requests bunch together, above 1 they spread out.
"""

import random
from collections.abc import Iterator

from contract.errors import DriverError


def arrival_times(
    request_rate: float,
    *,
    burstiness: float | None = None,
    ramp_up_seconds: float = 0.0,
    seed: int = 0,
) -> Iterator[float]:
    """Endless ascending offsets; the first request arrives at once.

    Args:
        request_rate: requests per second.
        burstiness: shape of the gamma distribution of gaps; None: all gaps are 1 / rate.
        ramp_up_seconds: the rate rises linearly from 0 to `request_rate` over this time.

    Raises:
        DriverError: a number that is not positive (ramp_up_seconds: negative).
    """
    if request_rate <= 0 or ramp_up_seconds < 0 or (burstiness is not None and burstiness <= 0):
        shape = "not set" if burstiness is None else f"{burstiness:g}"
        raise DriverError(
            f"request_rate {request_rate:g}, burstiness {shape}, ramp_up_seconds {ramp_up_seconds:g}: rate and "
            "burstiness must be above 0, ramp_up_seconds at least 0"
        )
    return _times(request_rate, burstiness, ramp_up_seconds, random.Random(seed))


def _times(rate: float, burstiness: float | None, ramp_up: float, rng: random.Random) -> Iterator[float]:
    # In units of expected requests; a product, not a sum, so that constant gaps do not drift.
    drawn, index = 0.0, 0
    while True:
        due = index if burstiness is None else drawn
        yield _when(due, rate, ramp_up)
        index += 1
        if burstiness is not None:
            drawn += rng.gammavariate(burstiness, 1 / burstiness)


def _when(due: float, rate: float, ramp_up: float) -> float:
    """The moment by which `due` requests are expected: while the rate rises rate * t^2 / (2 * ramp_up) are."""
    during_ramp = rate * ramp_up / 2
    if due < during_ramp:
        return float((2 * due * ramp_up / rate) ** 0.5)
    return ramp_up + (due - during_ramp) / rate
