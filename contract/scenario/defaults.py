"""Defaults that follow from other fields: a scenario leaves them null, and what takes effect is said here."""

from typing import Any

from contract.scenario.model import InputLength, OutputLength, Scenario


def normal_shape(length: InputLength | OutputLength) -> tuple[float, float]:
    """Mean and standard deviation, in tokens, of a truncated_normal length: the midpoint and a quarter of the width."""
    low, high = length.min or 1, length.max or 1
    mean = (low + high) / 2 if length.mean is None else length.mean
    std = max(1.0, (high - low) / 4) if length.std is None else length.std
    return mean, std


def filled_in(scenario: Scenario) -> Scenario:
    """The scenario with the values that it left to be derived from others. It means the same."""
    requests, cache = scenario.requests, scenario.prefix_cache
    overrides = {
        name: override.model_copy(
            update=_lengths(input_length=override.input_length, output_length=override.output_length)
        )
        for name, override in cache.groups.overrides.items()
    }
    driver = {
        "kind": scenario.driver_kind,
        "concurrency": scenario.concurrency,
        "retries": scenario.retries,
    }
    return scenario.model_copy(
        update={
            "requests": requests.model_copy(
                update=_lengths(input_length=requests.input_length, output_length=requests.output_length)
            ),
            "prefix_cache": cache.model_copy(
                update={
                    "minimum_non_shared_length": scenario.minimum_non_shared_length,
                    "groups": cache.groups.model_copy(update={"overrides": overrides}),
                }
            ),
            "driver": scenario.driver.model_copy(update=driver),
        }
    )


def _lengths(**lengths: InputLength | OutputLength | None) -> dict[str, Any]:
    filled: dict[str, Any] = {}
    for name, length in lengths.items():
        if length is not None and length.mode == "truncated_normal":
            mean, std = normal_shape(length)
            filled[name] = length.model_copy(update={"mean": mean, "std": std})
    return filled
