"""How many requests each prefix group gets."""

import numpy as np

from contract.scenario.model import Groups


def group_weights(groups: Groups) -> list[float]:
    """Relative weight of each group: 1, 1/(i+1)^exponent, or as listed."""
    assignment = groups.assignment
    if assignment.mode == "weights":
        return [float(weight) for weight in assignment.weights or ()]
    if assignment.mode == "zipf":
        return [1.0 / (index + 1) ** assignment.exponent for index in range(groups.count)]
    return [1.0] * groups.count


def group_sizes(request_count: int, groups: Groups) -> list[int]:
    """Largest-remainder rounding of `request_count * weight / sum`; ties go to the lower group (reference 2.3)."""
    weights = group_weights(groups)
    total = sum(weights)
    exact = [request_count * weight / total for weight in weights]
    sizes = [int(share) for share in exact]
    remainders = np.array([size - share for size, share in zip(sizes, exact, strict=True)])
    for index in np.argsort(remainders, kind="stable")[: request_count - sum(sizes)]:
        sizes[index] += 1
    return sizes
