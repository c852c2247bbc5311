"""Drawing token lengths. Draws come from `random.Random` whose streams do not change (reference 2.1, 2.2)."""

from pathlib import Path
from random import Random

from contract.errors import ScenarioError
from contract.scenario import InputLength, OutputLength
from contract.scenario.defaults import normal_shape
from contract.scenario.length_files import INPUT_COLUMNS, OUTPUT_COLUMNS, read_lengths


def draw_lengths(length: InputLength | OutputLength, count: int, seed: int, path: str) -> list[int]:
    """`count` lengths in tokens. `path` is the field's dotted path, for errors.

    The length object has passed the scenario's rules for this count.
    """
    random = Random(seed)
    if length.mode == "fixed":
        return [length.value] * count
    if length.mode == "csv":
        columns = INPUT_COLUMNS if isinstance(length, InputLength) else OUTPUT_COLUMNS
        return read_lengths(Path(str(length.path)), columns)
    if isinstance(length, InputLength) and length.mode == "explicit":
        return list(length.values or ())
    if isinstance(length, InputLength) and length.mode == "range":
        return [random.randint(part.min, part.max) for part in length.ranges or () for _ in range(part.count)]
    low, high = length.min or 1, length.max or 1
    if length.mode == "uniform":
        return [random.randint(low, high) for _ in range(count)]
    return _truncated_normal(random, low, high, *normal_shape(length), count, path)


def _truncated_normal(
    random: Random, low: int, high: int, mean: float, std: float, count: int, path: str
) -> list[int]:
    """Rounded normal draws, those outside [low, high] rejected."""
    if low == high:
        return [low] * count
    lengths: list[int] = []
    attempts = max(1000, 100 * count)
    for _ in range(attempts):
        value = round(random.gauss(mean, std))
        if low <= value <= high:
            lengths.append(value)
            if len(lengths) == count:
                return lengths
    raise ScenarioError(
        f"{path}: {len(lengths)} of {attempts} draws with mean {mean:g} and std {std:g} fall into "
        f"[{low}, {high}], {count} are needed; move the mean or widen std"
    )
