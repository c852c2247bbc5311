"""Settings of a bench: one schema for flags, config files and questions.

What is given on the command line wins over the config file, and both over defaults. A value that was not given is known
not to be: a flag that repeats a default still wins.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import click
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from contract.documents import read_document, write_document
from contract.errors import ScenarioError
from contract.options import Options, Unit, choices_of, field_option, flag, given
from contract.trust import Trust
from runner.workloads import WORKLOADS
from runner.workloads.plan import Parameters, Workload

TIMEOUT_SECONDS = 600.0
DESCRIPTION = "Send a workload to a running engine and report what its cache did."
WORKLOAD_NAMES = list(WORKLOADS)


class General(BaseModel):
    """Settings that every workload has. A field's name is its key in config files and, with dashes, its flag."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine_url: Annotated[
        str,
        Unit("URL"),
        Field(
            min_length=1, description="engine, as http://localhost:8000; the key is taken from OPENAI_API_KEY"
        ),
    ]
    workload: Annotated[str, Field(description="what to send")]
    tokens_per_gb_kvcache: Annotated[
        int | None,
        Unit("TOKENS"),
        Field(
            gt=0, description="tokens that a GB of KV cache holds; default: LMCache or the engine is asked"
        ),
    ] = None
    lmcache_url: Annotated[
        str | None, Unit("URL"), Field(min_length=1, description="LMCache's HTTP server")
    ] = None
    model: Annotated[
        str | None,
        Unit("NAME"),
        Field(min_length=1, description="served model; default: the first that the engine names"),
    ] = None
    kv_cache_volume: Annotated[
        float, Unit("GB"), Field(gt=0, allow_inf_nan=False, description="active KV cache to aim at, GB")
    ] = 100.0
    seed: Annotated[int, Field(description="of all texts and orders")] = 42
    output_dir: Annotated[
        Path, Unit("DIR"), Field(description="where result files and the run directory go")
    ] = Path()
    no_csv: Annotated[bool, Field(description="write no bench_results.csv")] = False
    json_summary: Annotated[bool, Field(alias="json", description="write bench_summary.json")] = False
    quiet: Annotated[bool, Field(description="show no progress; the summary is still printed")] = False
    ignore_eos: Annotated[
        bool, Field(description="let every answer be as long as it may, whatever the model says")
    ] = False
    no_warmup: Annotated[
        bool, Field(description="skip the warm phases: a cold start, not to be compared with a warm run")
    ] = False
    tokenizer: Annotated[
        str | None,
        Unit("PATH"),
        Field(
            min_length=1,
            description="the engine's tokenizer: directory, tokenizer.json or hub id; default: the engine counts "
            "(/tokenize), else --model is tried as folder and hub id, else lengths are approximate",
        ),
    ] = None
    timeout: Annotated[
        float,
        Unit("SECONDS"),
        Field(
            gt=0,
            allow_inf_nan=False,
            description="seconds without a new token after which a request has failed",
        ),
    ] = TIMEOUT_SECONDS
    reset_cache: Annotated[
        bool, Field(description="empty the engine's prefix cache first (needs VLLM_SERVER_DEV_MODE=1)")
    ] = False
    ca_file: Annotated[
        str | None,
        Unit("FILE"),
        Field(
            min_length=1,
            description="https: certificate of the authority to trust; default: SSL_CERT_FILE or REQUESTS_CA_BUNDLE, "
            "else the system's store",
        ),
    ] = None
    client_cert: Annotated[
        str | None,
        Unit("FILE"),
        Field(min_length=1, description="https: certificate to show, with its key (mutual TLS)"),
    ] = None
    client_key: Annotated[
        str | None,
        Unit("FILE"),
        Field(min_length=1, description="the key, where it is not in the file of --client-cert"),
    ] = None
    rag_output: Annotated[
        Path | None,
        Unit("FILE"),
        Field(
            description="results per sample of rag-qa-quality; default: rag_qa_quality.json in --output-dir"
        ),
    ] = None

    @property
    def trust(self) -> Trust:
        """For engines with https."""
        return trust_of(self.model_dump(include={"ca_file", "client_cert", "client_key"}))


def trust_of(values: Mapping[str, Any]) -> Trust:
    """For engines with https, from settings by key."""
    ca_file, client_cert, client_key = (
        None if values.get(key) is None else str(values[key])
        for key in ("ca_file", "client_cert", "client_key")
    )
    return Trust(ca_file, client_cert, client_key, "--ca-file", "--client-cert")


NOT_IN_FILES = ("engine_url", "lmcache_url", "ca_file", "client_cert", "client_key")
"""Of one environment, so a config file never holds them."""
NOT_EXPORTED = (*NOT_IN_FILES, "output_dir", "no_csv", "json", "quiet", "rag_output")
"""... nor what says where results go; a file written by hand may."""


@dataclass(frozen=True)
class Settings:
    """All settings, checked."""

    general: General
    workload: Workload
    parameters: Parameters

    def exported(self, **resolved: Any) -> dict[str, Any]:
        """What a config file holds: every parameter, `resolved` ones with the value that was found out."""
        general = self.general.model_dump(mode="json", by_alias=True) | resolved
        return {
            **{name: value for name, value in general.items() if name not in NOT_EXPORTED},
            **self.parameters.model_dump(mode="json"),
        }


@dataclass(frozen=True)
class CommandLine:
    """What was given: values by key, and how to go on."""

    given: Mapping[str, Any]
    config: Path | None
    export_config: Path | None
    interactive: bool


def fields_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Key -> field."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


# ---- the command line ----------------------------------------------------------------------------------------------


def parse_arguments(arguments: Sequence[str], program: str) -> CommandLine:
    """What a command line gives.

    Raises:
        ScenarioError: an unknown flag, or one without its value.
        SystemExit: --help.
    """
    values = given(program, DESCRIPTION, _sections(), arguments)
    config, export = (Path(values.pop(key)) if key in values else None for key in ("config", "export_config"))
    interactive = not values.pop("no_interactive", False)
    return CommandLine(values, config, export, interactive)


def _sections() -> list[Options]:
    """The options in the order of the help: what all workloads have, then each workload's own."""
    own = [
        click.Option(
            ["--config"],
            type=click.UNPROCESSED,
            metavar="FILE",
            help="Read settings from this JSON file; flags override it.",
        ),
        click.Option(
            ["--export-config"],
            type=click.UNPROCESSED,
            metavar="FILE",
            help="Write all settings, detected ones included, and send no load.",
        ),
        click.Option(["--no-interactive"], is_flag=True, help="Never ask; what is missing is an error."),
    ]
    general = [
        field_option(
            key,
            field,
            short="-q" if key == "quiet" else None,
            choices=WORKLOAD_NAMES if key == "workload" else None,
        )
        for key, field in fields_of(General).items()
    ]
    return [
        Options("Options", [*own, *general]),
        *(
            Options(
                f"{workload.name} ({workload.title})",
                [field_option(key, field) for key, field in fields_of(workload.parameters).items()],
            )
            for workload in WORKLOADS.values()
        ),
    ]


def choices(key: str, field: FieldInfo) -> list[str] | None:
    """What a value may be, where that is a list."""
    return WORKLOAD_NAMES if key == "workload" else choices_of(field)


# ---- config files --------------------------------------------------------------------------------------------------


def read_config(path: Path) -> dict[str, Any]:
    """The keys of a config file.

    Raises:
        ScenarioError: there is none, it is not a JSON object, or holds a URL or a key that no setting has.
    """
    try:
        document = read_document(path, "config file")
    except Exception as error:
        raise ScenarioError(str(error)) from error
    for key in NOT_IN_FILES:
        if key in document:
            raise ScenarioError(f"{path}: {key} does not belong into a config file; give it as {flag(key)}")
    known = {*fields_of(General), *(key for w in WORKLOADS.values() for key in fields_of(w.parameters))}
    unknown = sorted(document.keys() - known)
    if unknown:
        raise ScenarioError(f"{path}: unknown {', '.join(unknown)}; remove or correct it")
    return document


def write_config(path: Path, document: Mapping[str, Any]) -> None:
    if not path.absolute().parent.is_dir():
        raise ScenarioError(f"--export-config {path}: there is no folder {path.absolute().parent}")
    write_document(path, dict(document))


# ---- both together -------------------------------------------------------------------------------------------------


def missing(values: Mapping[str, Any]) -> list[str]:
    """Keys of required settings that are not there. Size is not required: LMCache and the engine can be asked."""
    wanted = [key for key, field in fields_of(General).items() if field.is_required()]
    workload = WORKLOADS.get(str(values.get("workload")))
    if workload is not None:
        wanted += [key for key, field in fields_of(workload.parameters).items() if field.is_required()]
    return [key for key in wanted if values.get(key) is None]


def resolve(values: Mapping[str, Any]) -> Settings:
    """Settings from values by key, all problems in one message.

    Raises:
        ScenarioError: names each flag, what was found and what would be right.
    """
    absent = missing(values)
    if absent:
        raise ScenarioError(f"missing {', '.join(map(flag, absent))}; --help says what they are")
    name = str(values["workload"])
    if name not in WORKLOADS:
        raise ScenarioError(f"--workload {name}: must be one of {', '.join(WORKLOADS)}")
    workload = WORKLOADS[name]
    general = {key: value for key, value in values.items() if key in fields_of(General)}
    rest = {key: value for key, value in values.items() if key not in general}
    foreign = [key for key in rest if key not in fields_of(workload.parameters)]
    if foreign:
        raise ScenarioError(
            f"{', '.join(map(flag, foreign))}: belongs to another workload than {name}; remove it"
        )
    problems: list[str] = []
    checked = [
        _checked(model, part, problems) for model, part in ((General, general), (workload.parameters, rest))
    ]
    if problems:
        raise ScenarioError("; ".join(problems))
    found_general, parameters = checked
    if not isinstance(found_general, General) or not isinstance(parameters, Parameters):
        raise TypeError("settings of an unexpected kind")
    return Settings(found_general, workload, parameters)


def _checked(model: type[BaseModel], values: Mapping[str, Any], problems: list[str]) -> BaseModel | None:
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        problems += _problems(error.errors(include_url=False))
        return None


def _problems(errors: Iterable[Any]) -> list[str]:
    found = []
    for error in errors:
        message = str(error["msg"]).removeprefix("Value error, ")
        where = str(error["loc"][0]) if error["loc"] else ""
        found.append(f"{flag(where)}: {message}, found {error['input']!r}" if where else message)
    return found


def load_values(line: CommandLine) -> dict[str, Any]:
    """What the config file and the command line give together."""
    from_file = {} if line.config is None else read_config(line.config)
    return {**from_file, **line.given}
