"""Rules between the fields of a scenario (reference 1.2 and 1.3, design sections 3 and 11).

Each rule yields every problem it sees, with the dotted path of the field to change. Rules take only the sections they
need, so that a mistake in one section does not hide those in another.
"""

from collections.abc import Iterator
from pathlib import Path
from unicodedata import category
from urllib.parse import urlsplit

from contract.errors import ScenarioError
from contract.scenario.aisbench_arguments import command_line, refusals
from contract.scenario.group_sizes import group_sizes
from contract.scenario.length_files import INPUT_COLUMNS, OUTPUT_COLUMNS, read_lengths
from contract.scenario.model import (
    Aisbench,
    Corpus,
    Groups,
    InputLength,
    Multimodal,
    OutputLength,
    PrefixCache,
    Requests,
    Run,
    Selection,
    Service,
    Tokenizer,
)
from contract.scenario.problems import Problem, show

UNSEEN = ("Cc", "Cf", "Zl", "Zp")
"""Unicode categories of what does not show: controls, formats (bidirectional overrides among them), line separators."""
LONGEST_NAME = 200
"""Bytes: a file system takes 255, and the stamp and endings of the artifacts' names come behind it."""


def run_rules(run: Run) -> Iterator[Problem]:
    """These names become parts of file names, of labels and of lines on a terminal."""
    for path, name in (("run.run_id", run.run_id), ("run.output_dir", Path(run.output_dir).name)):
        if any(category(character) in UNSEEN for character in name):
            yield Problem(path, f"found {show(name)}; names files, so it must hold no control characters")
        if len(name.encode()) > LONGEST_NAME:
            yield Problem(
                path, f"has {len(name.encode())} bytes; names files, so it must have at most {LONGEST_NAME}"
            )
    if "/" in run.run_id or "\\" in run.run_id or run.run_id in (".", ".."):
        yield Problem(
            "run.run_id", f"found {show(run.run_id)}; names files, so it must hold no path separator"
        )


def selection_rules(path: str, selection: Selection) -> Iterator[Problem]:
    if selection.mode == "mixed":
        if not selection.indices and not selection.question_sha256:
            yield Problem(path, "mode mixed needs indices or question_sha256, not both empty")
    elif selection.mode == "indices":
        if not (selection.values if selection.values is not None else selection.indices):
            place = f"{path}.{_listed(selection, 'indices')}"
            yield Problem(place, "mode indices needs a list of record numbers that is not empty")
        for index, value in enumerate(selection.values or ()):
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                yield Problem(f"{path}.values[{index}]", f"found {show(value)}; must be an integer >= 0")
    elif selection.mode == "question_sha256":
        if not (selection.values if selection.values is not None else selection.question_sha256):
            place = f"{path}.{_listed(selection, 'question_sha256')}"
            yield Problem(place, "mode question_sha256 needs a list of hashes that is not empty")
        for index, value in enumerate(selection.values or ()):
            if not isinstance(value, str) or not value:
                yield Problem(f"{path}.values[{index}]", f"found {show(value)}; must be a SHA-256 as text")


def _listed(selection: Selection, name: str) -> str:
    """The field that stands in the file for the list of the mode: `values` wins over the one that it is named after."""
    return name if selection.values is None and getattr(selection, name) is not None else "values"


def length_rules(
    path: str, length: InputLength | OutputLength, count: int, *, files: bool = True
) -> Iterator[Problem]:
    """Rules of one length object for `count` requests. `files`: the one that it names is read and checked, too."""
    if length.mode in ("uniform", "truncated_normal"):
        for name in ("min", "max"):
            if getattr(length, name) is None:
                yield Problem(f"{path}.{name}", f"is missing; mode {length.mode} needs it")
        if length.min is not None and length.max is not None and length.max < length.min:
            yield Problem(f"{path}.max", f"found {length.max}; must be >= min {length.min}")
    elif length.mode == "csv":
        yield from _csv_rules(path, length, count, files=files)
    elif isinstance(length, InputLength) and length.mode == "explicit":
        if not length.values:
            yield Problem(f"{path}.values", "mode explicit needs a list of lengths that is not empty")
        elif len(length.values) != count:
            yield Problem(f"{path}.values", f"has {len(length.values)} lengths for {count} requests")
    elif isinstance(length, InputLength) and length.mode == "range":
        if not length.ranges:
            yield Problem(f"{path}.ranges", "mode range needs a list of {min, max, count} that is not empty")
            return
        for index, part in enumerate(length.ranges):
            if part.max < part.min:
                yield Problem(f"{path}.ranges[{index}].max", f"found {part.max}; must be >= min {part.min}")
        total = sum(part.count for part in length.ranges)
        if total != count:
            yield Problem(f"{path}.ranges", f"counts add up to {total} for {count} requests")


def _csv_rules(
    path: str, length: InputLength | OutputLength, count: int, *, files: bool
) -> Iterator[Problem]:
    if length.path is None:
        yield Problem(f"{path}.path", "is missing; mode csv needs it")
        return
    if not files:
        return
    try:
        rows = read_lengths(Path(length.path), _columns(length), at_most=count)
    except ScenarioError as error:
        yield Problem(f"{path}.path", str(error))
        return
    if len(rows) != count:
        found = str(len(rows)) if len(rows) < count else f"more than {count}"
        yield Problem(f"{path}.path", f"{length.path} has {found} rows for {count} requests")


def _columns(length: InputLength | OutputLength) -> tuple[str, ...]:
    return INPUT_COLUMNS if isinstance(length, InputLength) else OUTPUT_COLUMNS


def shortest(length: InputLength, count: int, *, files: bool = True) -> int | None:
    """The least input length that can come out of `count`; None: the object is not usable, or its file not to be read."""
    candidates: list[int] = []
    if length.mode == "fixed":
        candidates = [length.value]
    elif length.mode == "explicit":
        candidates = length.values or []
    elif length.mode == "range":
        candidates = [part.min for part in length.ranges or ()]
    elif length.mode == "truncated_normal" and length.min is not None:
        candidates = [length.min]
    elif length.mode == "csv" and length.path is not None and files:
        try:
            candidates = read_lengths(Path(length.path), INPUT_COLUMNS, at_most=count)
        except ScenarioError:
            return None  # reported by length_rules
    return min(candidates, default=None)


def corpus_rules(corpus: Corpus) -> Iterator[Problem]:
    yield from selection_rules("corpus.selection", corpus.selection)


def requests_rules(requests: Requests, *, files: bool = True) -> Iterator[Problem]:
    for name in ("input_length", "output_length"):
        yield from length_rules(f"requests.{name}", getattr(requests, name), requests.count, files=files)


def assignment_rules(groups: Groups) -> Iterator[Problem]:
    assignment = groups.assignment
    if assignment.mode != "weights":
        return
    path = "prefix_cache.groups.assignment.weights"
    if not assignment.weights:
        yield Problem(path, "is missing; mode weights needs one weight per group")
    elif len(assignment.weights) != groups.count:
        yield Problem(path, f"has {len(assignment.weights)} weights for groups.count {groups.count}")
    elif sum(assignment.weights) <= 0:
        yield Problem(path, "must not all be 0")


def override_rules(requests: Requests, groups: Groups, *, files: bool = True) -> Iterator[Problem]:
    """Overrides name an existing group and fit the number of requests it really gets."""
    sizes = None if list(assignment_rules(groups)) else group_sizes(requests.count, groups)
    for name, override in groups.overrides.items():
        path = f"prefix_cache.groups.overrides.{name}"
        index = int(name.removeprefix("group-"))
        if index >= groups.count:
            yield Problem(
                path, f"no such group; groups.count is {groups.count} (group-0 to group-{groups.count - 1})"
            )
            continue
        if override.corpus_selection is not None:
            yield from selection_rules(f"{path}.corpus_selection", override.corpus_selection)
        if sizes is None or sizes[index] == 0:
            continue
        for field in ("input_length", "output_length"):
            length = getattr(override, field)
            if length is not None:
                yield from length_rules(f"{path}.{field}", length, sizes[index], files=files)


def non_shared_rules(
    tokenizer: Tokenizer, requests: Requests, prefix_cache: PrefixCache, *, files: bool = True
) -> Iterator[Problem]:
    """Every input length that can come out leaves room for the seed and the non-shared minimum."""
    seed_tokens = prefix_cache.seed_blocks * tokenizer.block_size
    minimum = prefix_cache.minimum_non_shared_length
    if minimum is None:
        minimum = seed_tokens
    elif minimum < seed_tokens:
        yield Problem(
            "prefix_cache.minimum_non_shared_length",
            f"found {minimum}; must be >= seed_blocks x block_size = {seed_tokens}",
        )
    lengths = {"requests.input_length": requests.input_length}
    for name, override in prefix_cache.groups.overrides.items():
        if override.input_length is not None:
            lengths[f"prefix_cache.groups.overrides.{name}.input_length"] = override.input_length
    for path, length in lengths.items():
        least = shortest(length, requests.count, files=files)
        if least is not None and least < minimum:
            yield Problem(path, f"can be {least} tokens; must be >= the {minimum} that are never shared")


def service_rules(service: Service) -> Iterator[Problem]:
    for label, rank in service.engine_label_map.items():
        if rank >= service.dp_size:
            yield Problem(
                f"service.engine_label_map.{label}",
                f"found {rank}; must be below service.dp_size {service.dp_size}",
            )
    if service.client_key and not service.client_cert:
        yield Problem("service.client_cert", "is missing; service.client_key is the key of its certificate")
    if service.metrics_urls == []:
        yield Problem("service.metrics_urls", "must not be empty; leave it out to use metrics_url")
    urls = {name: getattr(service, name) for name in ("inference_url", "metrics_url", "reset_url")}
    urls |= {f"metrics_urls[{index}]": url for index, url in enumerate(service.metrics_urls or ())}
    for name, url in urls.items():
        if url and not _is_address(url):
            yield Problem(f"service.{name}", f"found {show(url)}; must be a full http:// or https:// address")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    if any(character.isspace() or category(character) == "Cc" for character in url):
        return False
    return url.startswith(("http://", "https://")) and bool(parts.hostname) and port != 0


def aisbench_rules(aisbench: Aisbench) -> Iterator[Problem]:
    for reason in refusals(command_line(aisbench.extra_args)):
        yield Problem("aisbench.extra_args", reason)
    repeats = aisbench.model.generation_kwargs.get("num_return_sequences", 1)
    if repeats != 1:
        yield Problem(
            "aisbench.model.generation_kwargs.num_return_sequences",
            f"found {show(repeats)}; every request is sent once, remove it",
        )


def multimodal_rules(requests: Requests, multimodal: Multimodal) -> Iterator[Problem]:
    """For images alone: what a text scenario says of them is not looked at."""
    if len(multimodal.scenarios) != 1:
        yield Problem(
            "multimodal.scenarios", f"has {len(multimodal.scenarios)} entries; must have exactly one"
        )
    if multimodal.mmmu_parquet_dir is None:
        yield Problem("multimodal.mmmu_parquet_dir", "is missing; --mode mm needs it")
    for name in ("input_length", "output_length"):
        length = getattr(requests, name)
        if length.mode != "fixed":
            yield Problem(f"requests.{name}.mode", f"found {show(length.mode)}; --mode mm needs 'fixed'")
