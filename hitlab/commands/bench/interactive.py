"""Questions that make a bench's settings: four phases, one setting at a time, and always a way back.

Arrow keys choose on a terminal; where there is none to draw on (stdout or stderr is redirected, TERM=dumb) lists are
numbered. `<` goes back to the question before.
"""

import os
import re
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import click
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from contract.errors import HitLabError, ScenarioError
from contract.options import Unit, default_text
from hitlab.terminal import shown
from runner.bench.engine import base_url
from runner.bench.qa_datasets import NAMED
from runner.bench.settings import General, choices, fields_of, resolve
from runner.bench.sizing import HOW_TO_COMPUTE
from runner.workloads import WORKLOADS

BACK = "<"
WIDTH = 50
START, EXPORT, BACK_TO, QUIT = "start", "export", "back", "quit"
DEFAULT_URL = "http://localhost:8000"
DEFAULT_LMCACHE_URL = "http://localhost:8080"
DEFAULT_EXPORT = "bench_config.json"
WORDS = {
    "url": "URL",
    "kv": "KV",
    "kvcache": "KV cache",
    "gb": "GB",
    "qps": "QPS",
    "eos": "EOS",
    "lmcache": "LMCache",
    "num": "number of",
    "no": "skip the",
    "inflight": "in-flight",
    "kwargs": "variables",
    "docs": "documents",
}
UNITS = ("TOKENS", "GB", "SECONDS", "DOCUMENTS", "QPS")
"""Units that say something beside the label."""
GENERAL_ASKED = ("model", "kv_cache_volume", "seed", "ignore_eos", "no_warmup")

KEYS = re.compile(r"\x1b[\[O][A-D]|.", re.DOTALL)
STEPS = {"\x1b[A": -1, "\x1bOA": -1, "k": -1, "\x1b[B": 1, "\x1bOB": 1, "j": 1}

Values = dict[str, Any]


class _Back(Exception):  # noqa: N818 - a wish, not an error
    """The user wants the question before."""


@dataclass(frozen=True)
class _Question:
    """`wanted`: whether it is asked, given what is known; `ask` gives the values it settles."""

    wanted: Callable[[Values], bool]
    ask: Callable[[Values], Values]


@dataclass(frozen=True)
class Found:
    """What an engine told: its model, and tokens in a GB of its KV cache (None: it does not report)."""

    model: str
    tokens_per_gb: int | None


@dataclass(frozen=True)
class Explorer:
    """How an address is tried as soon as it is typed. Both raise HitLabError with the reason.

    engine: address, and the model if one is given. lmcache: address and model; gives tokens in a GB.
    """

    engine: Callable[[str, str | None], Found]
    lmcache: Callable[[str, str], int]


def ask(given: Mapping[str, Any], explorer: Explorer) -> tuple[Values, Path | None] | None:
    """Values by key, and where to export them to; None when the user leaves. What was given is not asked.

    Raises click.Abort on Ctrl-C or the end of the input.
    """
    _say(f"\n{'═' * WIDTH}\n hitlab bench engine: interactive setup\n{'═' * WIDTH}\n(< goes back)")
    if "engine_url" in given:
        given = {**given, "_found": _tried(lambda: explorer.engine(given["engine_url"], given.get("model")))}
    questions = _questions(given, explorer)
    answered: list[tuple[int, Values]] = []
    position = 0
    while position < len(questions):
        known = _known(given, answered)
        question = questions[position]
        if not question.wanted(known):
            position += 1
            continue
        try:
            found = question.ask(known)
        except _Back:
            if answered:
                position, _ = answered.pop()
            continue
        answered.append((position, found))
        position += 1
    known = _known(given, answered)
    action = known.pop("_action")
    path = known.pop("_export_path", None)
    values = {key: value for key, value in known.items() if not key.startswith("_") and value is not None}
    return None if action == QUIT else (values, path)


def _known(given: Mapping[str, Any], answered: Sequence[tuple[int, Values]]) -> Values:
    known = dict(given)
    for _, values in answered:
        known |= values
    return known


def _questions(given: Mapping[str, Any], explorer: Explorer) -> list[_Question]:
    first = [
        _Question(lambda _: "engine_url" not in given, partial(_ask_engine_url, explorer)),
        _Question(lambda _: "workload" not in given, _ask_workload),
        _Question(lambda known: _sized(known, given), _ask_lmcache),
        _Question(
            lambda known: known.get("_lmcache") is True,
            partial(_ask_lmcache_url, explorer),
        ),
        _Question(lambda known: known.get("_lmcache") is False, _ask_size),
        *(_workload_question(key, field, given, required=True) for key, field in _workload_fields()),
    ]
    optional = [
        _gate("_general", "General options", "Set model, volume, seed, warm phases?"),
        *(_general_question(key, given) for key in GENERAL_ASKED),
        _gate("_workload", "Workload options", "Set the parameters of this workload?"),
        *(_workload_question(key, field, given, required=False) for key, field in _workload_fields()),
    ]
    last = [
        _Question(lambda _: True, _ask_action),
        _Question(
            lambda known: known.get("_action") == EXPORT,
            lambda _: {"_export_path": ask_file()},
        ),
    ]
    return [*first, *optional, *last]


def _workload_fields() -> list[tuple[str, FieldInfo]]:
    return [item for workload in WORKLOADS.values() for item in fields_of(workload.parameters).items()]


def _workload_question(key: str, field: FieldInfo, given: Mapping[str, Any], *, required: bool) -> _Question:
    def wanted(known: Values) -> bool:
        mine = (
            key in fields_of(WORKLOADS[known["workload"]].parameters)
            if known.get("workload") in WORKLOADS
            else False
        )
        asked = required or known.get("_workload") is True
        return mine and key not in given and field.is_required() == required and asked

    return _Question(wanted, lambda _: _ask_field(key, field))


def _general_question(key: str, given: Mapping[str, Any]) -> _Question:
    field = fields_of(General)[key]
    return _Question(
        lambda known: known.get("_general") is True and key not in given, lambda _: _ask_field(key, field)
    )


def _sized(known: Values, given: Mapping[str, Any]) -> bool:
    workload = WORKLOADS.get(str(known.get("workload")))
    sized = workload is not None and (workload.needs_size or workload.name == "kv-tier-pressure")
    return sized and "lmcache_url" not in given and "tokens_per_gb_kvcache" not in given


def _gate(name: str, title: str, text: str) -> _Question:
    return _Question(lambda _: True, lambda _: {name: _yes_no(title, text, default=False)})


# ---- single questions ----------------------------------------------------------------------------------------------


def _tried(found_out: Callable[[], Any]) -> Any:
    """What an address told, shown; None and the reason when it told nothing."""
    try:
        found = found_out()
    except HitLabError as error:
        _say(f"  {error}")
        return None
    if isinstance(found, Found):
        size = "" if found.tokens_per_gb is None else f", {found.tokens_per_gb} tokens per GB of KV cache"
        _say(f"  The engine serves {found.model}{size}.")
    else:
        _say(f"  {found} tokens per GB of KV cache.")
    return found


def _ask_address(title: str, text: str, default: str, found_out: Callable[[str], Any]) -> tuple[str, Any]:
    """An address that was tried: asked again until it answers, or the user goes on without it."""
    while True:
        url = _text(title, text, default, base_url)
        found = _tried(lambda url=url: found_out(url))  # type: ignore[misc]
        if found is not None:
            return url, found
        later = "The answers can be exported, and the bench be started when it is there."
        if _yes_no("Go on without it?", later, default=False):
            return url, None
        default = url


def _ask_engine_url(explorer: Explorer, known: Values) -> Values:
    url, found = _ask_address(
        "Engine URL",
        "URL of the inference engine.",
        DEFAULT_URL,
        lambda url: explorer.engine(url, known.get("model")),
    )
    return {"engine_url": url, "_found": found}


def _ask_lmcache_url(explorer: Explorer, known: Values) -> Values:
    found: Found | None = known.get("_found")
    if found is None:  # LMCache is asked about a model
        return {"lmcache_url": _text("LMCache URL", "Its HTTP server.", DEFAULT_LMCACHE_URL, base_url)}
    url, size = _ask_address(
        "LMCache URL", "Its HTTP server.", DEFAULT_LMCACHE_URL, lambda url: explorer.lmcache(url, found.model)
    )
    return {"lmcache_url": url, "_size": size}


def _ask_size(known: Values) -> Values:
    """Required where the engine has been asked and does not report it."""
    field = fields_of(General)["tokens_per_gb_kvcache"]
    found: Found | None = known.get("_found")
    if found is None:
        return _ask_field("tokens_per_gb_kvcache", field, "ask the engine")
    if found.tokens_per_gb is not None:
        return _ask_field("tokens_per_gb_kvcache", field, f"{found.tokens_per_gb}, from the engine")
    _say(f"\n  The engine does not report how many tokens a GB of KV cache holds. {HOW_TO_COMPUTE}.")
    needed = WORKLOADS[known["workload"]].needs_size
    return _ask_field("tokens_per_gb_kvcache", field, "" if needed else "not needed", required=needed)


def ask_file() -> Path:
    def check(answer: str) -> Path:
        path = Path(answer)
        if not path.absolute().parent.is_dir():
            raise ValueError(f"there is no folder {path.absolute().parent}")
        return path

    path: Path = _text("File name", "Where the configuration goes.", DEFAULT_EXPORT, check)
    return path


def keep_answers(write: Callable[[Path], None]) -> None:
    """After a start that failed: nothing that was typed has to be lost."""
    try:
        if _yes_no("Export the configuration?", "It can be started again with --config.", default=True):
            path = ask_file()
            write(path)
            _say(f"{path} written")
    except _Back:
        return


def _ask_workload(_known: Values) -> Values:
    options = [(workload.name, workload.title) for workload in WORKLOADS.values()]
    return {"workload": _choose("Workload", "The type of benchmark workload to run.", options)}


def _ask_lmcache(_known: Values) -> Values:
    text = "Do you have a running LMCache server?\nIt can tell how many tokens a GB of KV cache holds."
    return {"_lmcache": _yes_no("LMCache Server", text, default=True)}


def label(key: str) -> str:
    """A setting in words: `ldqa_num_inflight_requests` is "Number of inflight requests"."""
    owner = next((w for w in WORKLOADS.values() if key in fields_of(w.parameters)), None)
    field = fields_of(General if owner is None else owner.parameters)[key]
    words = key.removeprefix("" if owner is None else owner.prefix).split("_")
    said = [WORDS.get(word, word) for word in words]
    unit = next((item.metavar for item in field.metadata if isinstance(item, Unit)), "")
    in_unit = (
        f" ({unit if unit in ('GB', 'QPS') else unit.lower()})"
        if unit in UNITS and unit not in said and unit.lower() not in said
        else ""
    )
    text = " ".join(said)
    return text[:1].upper() + text[1:] + in_unit


def _ask_field(key: str, field: FieldInfo, blank: str = "", *, required: bool | None = None) -> Values:
    title, text = label(key), field.description or ""
    needed = field.is_required() if required is None else required
    options = choices(key, field)
    if options:
        return {key: _choose(title, text, [(option, "") for option in options], default=field.default)}
    if field.annotation is bool:
        return {key: _yes_no(title, text, default=bool(field.default))}
    default = "" if field.is_required() else default_text(field)

    def check(answer: str) -> Any:
        if not answer:
            if needed:
                raise ValueError("an answer is needed")
            return None
        return _checked(key, answer)

    return {key: _text(title, text, default or blank, check, replace_default=not default)}


def _checked(key: str, answer: str) -> Any:
    """The answer, when the setting's own checks take it."""
    models: list[type[BaseModel]] = [General, *(workload.parameters for workload in WORKLOADS.values())]
    owner = next(model for model in models if key in fields_of(model))
    if key == "rag_dataset" and answer not in NAMED and not Path(answer).expanduser().is_file():
        raise ValueError(f"there is no file {answer}; a name is one of {', '.join(NAMED)}")
    value: Any = answer.split() if dict in _origins(fields_of(owner)[key].annotation) else answer
    try:
        owner.model_validate({key: value})
    except ValidationError as error:
        mine = [entry for entry in error.errors() if entry["loc"] and entry["loc"][0] == key]
        if mine:
            raise ValueError(mine[0]["msg"]) from error
    return value


def _origins(annotation: Any) -> set[Any]:
    return {getattr(kind, "__origin__", kind) for kind in (annotation, *get_args(annotation))}


def _ask_action(known: Values) -> Values:
    values = {key: value for key, value in known.items() if not key.startswith("_") and value is not None}
    try:
        settings = resolve(values)
    except ScenarioError as error:
        # Settings that do not go together: the last of them is asked again.
        _say(f"  {error}")
        raise _Back from error
    _say(f"{'─' * WIDTH}\n Configuration Summary\n{'─' * WIDTH}")
    found: Found | None = known.get("_found")
    told = {} if found is None else {"model": found.model, "tokens_per_gb_kvcache": found.tokens_per_gb}
    told |= {"tokens_per_gb_kvcache": known["_size"]} if known.get("_size") else {}
    stored = settings.exported()
    shown_settings = {
        "engine_url": settings.general.engine_url,
        "lmcache_url": settings.general.lmcache_url,
        **{key: told.get(key) if value is None else value for key, value in stored.items()},
    }
    for key, value in shown_settings.items():
        if value is not None:
            _say(f"  {label(key) + ':':<38}{value}")
    _say("─" * WIDTH)
    if found is None:
        _say("  The engine did not answer: export the configuration, or start it first.")
    options = [
        (START, "Start benchmark"),
        (EXPORT, "Export configuration for later use and exit"),
        (BACK_TO, "Go back to the last question"),
        (QUIT, "Leave"),
    ]
    action = _choose("What would you like to do?", "", options, default=START if found else EXPORT)
    if action == BACK_TO:
        raise _Back
    return {"_action": action}


# ---- prompts -------------------------------------------------------------------------------------------------------


def _say(text: str) -> None:
    print(shown(text), file=sys.stderr, flush=True)


def _line(prompt: str) -> str:
    """A line of input; `<` goes back."""
    print(prompt, end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise click.Abort
    answer = line.strip()
    if answer == BACK:
        raise _Back
    return answer


def _text(
    title: str, text: str, default: str, check: Callable[[str], Any], *, replace_default: bool = False
) -> Any:
    """Asked until `check` takes it. With `replace_default` the default is only shown, and an empty answer stays empty."""
    _say(f"\n{title}" + (f"\n  {text}" if text else ""))
    while True:
        answer = _line(f"  [default: {default}] > " if default else "  > ")
        try:
            return check(answer or ("" if replace_default else default))
        except (ValueError, ScenarioError) as error:
            _say(f"  {error}")


def _yes_no(title: str, text: str, *, default: bool) -> bool:
    _say(f"\n{title}")
    for line in text.splitlines():
        _say(f"  {line}")
    shown = "Y/n" if default else "y/N"
    while True:
        answer = _line(f"  ({shown}) > ").lower()
        if not answer:
            return default
        if answer in ("y", "yes", "n", "no"):
            return answer.startswith("y")
        _say("  y or n, please")


def _choose(title: str, text: str, options: Sequence[tuple[str, str]], *, default: str | None = None) -> str:
    _say(f"\n{title}" + (f"\n  {text}" if text else ""))
    at = next((number for number, (name, _) in enumerate(options) if name == default), 0)
    return _choose_by_arrows(options, at) if _can_draw() else _choose_by_number(options, at)


def _can_draw() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _choose_by_number(options: Sequence[tuple[str, str]], default: int) -> str:
    for number, (name, title) in enumerate(options, start=1):
        _say(f"  {number}. {name:<22} {title}".rstrip())
    while True:
        answer = _line(f"  [default: {default + 1}] > ") or str(default + 1)
        if answer.isdigit() and 1 <= int(answer) <= len(options):
            return options[int(answer) - 1][0]
        _say(f"  a number from 1 to {len(options)}, please")


def _choose_by_arrows(options: Sequence[tuple[str, str]], at: int) -> str:
    _say("  Use up/down to navigate, Enter to select.\n")
    with _single_keys() as keys:
        while True:
            for number, (name, title) in enumerate(options):
                _say(f"\x1b[2K  {'*' if number == at else ' '} {name:<22} {title}".rstrip())
            for key in keys():
                if key in ("\r", "\n"):
                    return options[at][0]
                if key == BACK:
                    raise _Back
                at = (at + STEPS.get(key, 0)) % len(options)
            print(f"\x1b[{len(options)}A", end="", file=sys.stderr, flush=True)


@contextmanager
def _single_keys() -> Iterator[Callable[[], list[str]]]:
    """Keys as they are pressed, not echoed. What was typed before is not thrown away, and Ctrl-C works as ever."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def keys() -> list[str]:
        pressed = os.read(descriptor, 64).decode(errors="replace")
        if not pressed or pressed == "\x04":
            raise click.Abort
        return KEYS.findall(pressed)

    tty.setcbreak(descriptor, termios.TCSADRAIN)
    try:
        yield keys
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
