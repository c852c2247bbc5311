"""Command lines whose options are the fields of models: a field, an option, in the style of all other commands."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
from click.core import ParameterSource
from pydantic.fields import FieldInfo

from contract.errors import ScenarioError

METAVARS = {int: "N", float: "F", Path: "PATH", str: "TEXT"}


@dataclass(frozen=True)
class Unit:
    """In a field's annotation: what its values are of, as the help names it: TOKENS, GB, SECONDS."""

    metavar: str


@dataclass(frozen=True)
class Options:
    """A section of the help."""

    title: str
    options: Sequence[click.Option]


def flag(key: str) -> str:
    return "--" + key.replace("_", "-")


def choices_of(field: FieldInfo) -> list[str] | None:
    """What a value may be, where that is a list."""
    return list(get_args(field.annotation)) if get_origin(field.annotation) is Literal else None


def default_text(field: FieldInfo) -> str:
    """As shown to people; "" for none."""
    default = field.get_default(call_default_factory=True)
    if default is None or isinstance(default, dict | bool):
        return ""
    return f"{default:g}" if isinstance(default, float) else str(default)


def field_option(
    key: str, field: FieldInfo, *, short: str | None = None, choices: Sequence[str] | None = None
) -> click.Option:
    """The option of a field. Its value stays text: the model checks it.

    A switch has an opposite: `--x` and `--no-x`; of `no_x` that is `--x`.
    """
    names = [*([short] if short else []), flag(key)]
    help_text = _sentence(field.description or "")
    if field.annotation is bool:
        opposite = flag(key.removeprefix("no_")) if key.startswith("no_") else f"--no-{flag(key)[2:]}"
        standing = (flag(key) if field.default else opposite).removeprefix("--")
        shown = f"{help_text}  [default: {standing}]"
        return click.Option([f"{flag(key)}/{opposite}", *names[:-1], key], default=None, help=shown)
    allowed = choices or choices_of(field)
    default = "" if field.is_required() else default_text(field)
    return click.Option(
        [*names, key],
        type=click.Choice(allowed) if allowed else click.UNPROCESSED,
        metavar=None if allowed else metavar_of(field),
        multiple=get_origin(field.annotation) is dict,
        required=False,  # what a file or an answer may give is asked for later
        help=help_text + (f"  [default: {default}]" if default else "  [required]" * field.is_required()),
    )


def metavar_of(field: FieldInfo) -> str:
    unit = next((item for item in field.metadata if isinstance(item, Unit)), None)
    if unit is not None:
        return unit.metavar
    kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if isinstance(kind, type)]
    return next((METAVARS[kind] for kind in kinds if kind in METAVARS), "VALUE")


def given(
    program: str, description: str, sections: Sequence[Options], arguments: Sequence[str]
) -> dict[str, Any]:
    """The values that a command line gives, by key; what it leaves out is not there.

    Raises:
        ScenarioError: an unknown option, or one without its value.
        SystemExit: `--help`, which is printed.
    """
    command = _Command(program, description, sections)
    try:
        context = command.make_context(program, list(arguments))
    except click.exceptions.Exit as ending:
        raise SystemExit(ending.exit_code) from ending
    except click.UsageError as error:
        message = error.format_message().rstrip(".")
        raise ScenarioError(f"{program}: {message} (see {program} --help)") from error
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in context.params.items()
        if context.get_parameter_source(key) is ParameterSource.COMMANDLINE
    }


class _Command(click.Command):
    """One with its options in sections."""

    def __init__(self, program: str, description: str, sections: Sequence[Options]) -> None:
        options = [option for section in sections for option in section.options]
        super().__init__(program, params=list(options), help=description)
        self._sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        last = len(self._sections) - 1
        for number, section in enumerate(self._sections):
            records = [record for option in section.options if (record := option.get_help_record(ctx))]
            help_option = self.get_help_option(ctx)
            if number == (0 if last else last) and help_option is not None:
                records += [record for record in [help_option.get_help_record(ctx)] if record]
            with formatter.section(section.title):
                formatter.write_dl(records)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
