"""`aisbench.extra_args` in both shapes that users have, as a command line, and what of it a measurement can bear.

AISBench's parser (3.1.20260630) takes any unambiguous beginning of an option, so a beginning is judged by what it may
mean.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

REFUSED: Mapping[str, str] = {
    "--reuse": "results of an earlier run are not a measurement of this one",
    "--num-prompts": "all prepared requests have to be sent, or the planned hit rate is not what is measured",
    "--merge-ds": "there is one dataset, and its rows have an order",
    "--pressure": "it sends requests over and over, in no order that a hit rate could be known for",
    "--pressure-time": "it belongs to --pressure, which sends requests over and over",
    "--dry-run": "nothing would be sent",
    "--search": "nothing would be sent",
    "--models": "the model is what aisbench.model, service and the template say",
    "--datasets": "the requests are the prepared ones",
    "--summarizer": "set it in the template (aisbench.config)",
    "--custom-dataset-path": "the requests are the prepared ones",
    "--custom-dataset-meta-path": "the requests are the prepared ones",
    "--custom-dataset-data-type": "the requests are the prepared ones",
    "--custom-dataset-infer-method": "the requests are the prepared ones",
    "--work-dir": "set aisbench.work_dir instead",
}
_SHORT = {"-r": "--reuse", "-w": "--work-dir", "-s": "--search", "-m": "--mode"}
_MODE, _WARMUPS = "--mode", "--num-warmups"
_OTHERS = (
    "--debug",
    "--help",
    "--config-dir",
    "--max-num-workers",
    "--max-workers-per-gpu",
    "--dump-eval-details",
    "--dump-extract-rate",
)
OPTIONS = (*REFUSED, _MODE, _WARMUPS, *_OTHERS)


class Argument(NamedTuple):
    """One option as written, the option it means (None: unknown to us), and its values."""

    written: str
    option: str | None
    values: tuple[str, ...]


def command_line(extra_args: Mapping[str, Any] | Sequence[str]) -> list[str]:
    """The arguments as AISBench gets them: true is a bare switch, false is left out, a list is several values."""
    if not isinstance(extra_args, Mapping):
        return list(extra_args)
    words: list[str] = []
    for flag, value in extra_args.items():
        if value is False:
            continue
        values = [] if value is True else value if isinstance(value, list) else [value]
        words += [flag, *(str(item) for item in values)]
    return words


def read_arguments(words: Sequence[str]) -> list[Argument]:
    """The options of a command line. Words in front of the first option become an argument without a name."""
    found: list[Argument] = []
    for word in words:
        if len(word) > 1 and word.startswith("-") and not word[1:].replace(".", "", 1).isdigit():
            name, equals, value = word.partition("=")
            if not word.startswith("--") and word[:2] in _SHORT and len(word) > 2:
                name, value, equals = word[:2], word[2:].removeprefix("="), "="
            found.append(Argument(name, _meaning(name), (value,) if equals else ()))
        elif found:
            found[-1] = found[-1]._replace(values=(*found[-1].values, word))
        else:
            found.append(Argument("", None, (word,)))
    return found


def _meaning(name: str) -> str | None:
    if name in OPTIONS:
        return name
    if name in _SHORT:
        return _SHORT[name]
    possible = [option for option in OPTIONS if name.startswith("--") and option.startswith(name)]
    return next((option for option in possible if option in REFUSED), possible[0] if possible else None)


def refusals(words: Sequence[str]) -> Iterator[str]:
    """Why a command line cannot be given to AISBench, one reason per argument."""
    for argument in read_arguments(words):
        if not argument.written:
            yield f"{argument.values[0]!r} belongs to no option; the config file is aisbench.config"
        elif argument.option is not None and argument.option in REFUSED:
            yield f"{argument.written} cannot be used: {REFUSED[argument.option]}"
        elif argument.option == _MODE and argument.values != ("perf",):
            yield f"{argument.written} {' '.join(argument.values)} cannot be used: only perf measures"
        elif argument.option == _WARMUPS and (
            len(argument.values) != 1 or not argument.values[0].isdecimal()
        ):
            yield f"{argument.written} needs one number, 0 or more"


def warmups(words: Sequence[str]) -> int:
    """How many warmup requests are asked for; none unless the arguments say so (AISBench itself would send one)."""
    return next((int(item.values[0]) for item in read_arguments(words) if item.option == _WARMUPS), 0)


def forwarded(words: Sequence[str]) -> list[str]:
    """What AISBench itself gets: everything but the mode and the warmups, which are seen to before."""
    kept = [item for item in read_arguments(words) if item.option not in (_MODE, _WARMUPS)]
    return [word for item in kept for word in (item.written, *item.values)]
