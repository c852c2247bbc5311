"""In which order requests are sent (reference 2.3, 2.4). Groups go by number: group-2 comes before group-10."""

from itertools import zip_longest
from random import Random

from contract.scenario import Groups


def assign_groups(sizes: list[int], groups: Groups, seed: int) -> list[int]:
    """Group of each request before ordering: contiguous, shuffled only when groups are drawn by zipf."""
    assigned = [group for group, size in enumerate(sizes) for _ in range(size)]
    if groups.assignment.mode == "zipf":
        Random(seed).shuffle(assigned)
    return assigned


def order_requests(strategy: str, groups: list[int], input_tokens: list[int], seed: int) -> list[int]:
    """Request numbers in the order of sending."""
    random = Random(seed)
    if strategy == "sequential":
        return list(range(len(groups)))
    if strategy == "global_shuffle":
        order = list(range(len(groups)))
        random.shuffle(order)
        return order
    members: dict[int, list[int]] = {group: [] for group in sorted(set(groups))}
    for request, group in enumerate(groups):
        members[group].append(request)
    if strategy == "within_group_shuffle":
        for requests in members.values():
            random.shuffle(requests)
        return [request for requests in members.values() for request in requests]
    if strategy == "input_len_asc":
        for requests in members.values():
            requests.sort(key=lambda request: (input_tokens[request], request))
    return [request for turn in zip_longest(*members.values()) for request in turn if request is not None]
