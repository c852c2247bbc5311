"""Measure an engine with prepared data and analyse the result."""

import re
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contract.errors import ExitCode, ScenarioError
from contract.kinds import Mode
from contract.progress import Progress
from contract.run_directory import MeasurementDirectory, RunDirectory
from contract.warnings import warning_message
from hitlab.arguments import ScenarioPath
from hitlab.signals import stop_on_signals
from hitlab.terminal import Terminal, print_error, print_note, print_tables, print_text, print_warning

if TYPE_CHECKING:
    from analyzer.analysis import Analysis
    from contract.scenario import Scenario
    from runner.engines.engine import Engine

CHAT_ROUTE = "/v1/chat/completions"


def command(
    context: typer.Context,
    scenario: ScenarioPath,
    manifest: Annotated[
        Path | None,
        typer.Option(
            "--manifest",
            metavar="FILE",
            help="Use this prepared data instead of the newest.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            metavar="KIND",
            help="external, simulator or vllm, instead of engine.kind.",
            show_default=False,
        ),
    ] = None,
    driver: Annotated[
        str | None,
        typer.Option(
            "--driver", metavar="KIND", help="aisbench or native, instead of driver.kind.", show_default=False
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="AISBench template, instead of aisbench.config.",
            show_default=False,
        ),
    ] = None,
    work_dir: Annotated[
        Path | None,
        typer.Option(
            "--work-dir",
            metavar="DIR",
            help="AISBench's results, instead of aisbench.work_dir.",
            show_default=False,
        ),
    ] = None,
    measure_only: Annotated[
        bool,
        typer.Option(
            "--measure-only",
            help="Measure, print the measurement's path, and leave the analysis to `hitlab analyze`.",
        ),
    ] = False,
) -> int:
    from contract.scenario.load import read_document
    from contract.scenario.model import DEFAULT_TEMPLATE
    from runner.measure import measure
    from runner.open_files import require_open_files
    from runner.prepared import choose_data

    terminal: Terminal = context.obj
    read_document(scenario)  # a file that cannot be read is told before anything else
    require_kinds(engine=engine, driver=driver)
    choice = choose_data(scenario, manifest)
    prepared, mode = choice.prepared, choice.prepared.manifest.mode
    if mode == "mm" and config is not None:
        raise ScenarioError("--config is for text data; leave it out, or name the text data with --manifest")
    loaded, overrides = with_overrides(
        choice.scenario, engine=engine, driver=driver, config=config, work_dir=work_dir
    )
    require_endpoint(loaded, mode)
    if mode == "mm" and loaded.driver_kind == "aisbench" and loaded.aisbench.config != DEFAULT_TEMPLATE:
        print_note(f"aisbench.config: {loaded.aisbench.config} is for texts; images are sent without it")
    require_open_files(min(loaded.concurrency, loaded.requests.count), "driver.concurrency")
    if choice.passed_over is not None:
        terminal.say(
            f"Both kinds of data are prepared; using the newest, {mode}: {prepared.manifest.directory.manifest} "
            f"(older: {choice.passed_over}; --manifest decides)\n"
        )
    begun: list[MeasurementDirectory] = []
    said: set[str] = set()

    def warn(text: str) -> None:
        said.add(text)
        print_warning(text)

    try:
        with (
            terminal.progress() as progress,
            running_engine(loaded, scenario, prepared.manifest.directory, progress, mode) as target,
            stop_on_signals() as stop,  # the innermost: an engine of ours is started and ended without its clock
        ):
            code = measure(
                loaded,
                prepared,
                target,
                overrides=overrides,
                stop=stop,
                progress=progress,
                scenario_folder=scenario.resolve().parent,
                say=terminal.say,
                warn=warn,
                on_begin=begun.append,
            )
    finally:
        if measure_only and begun:
            # However it ended: `analyze --measurement` goes on with what was measured.
            print(begun[0].root)
    if measure_only:
        return int(code)
    return show_result(prepared.manifest.directory.manifest, begun[0], said)


def show_result(manifest: Path, measured: MeasurementDirectory, said: Set[str] = frozenset()) -> int:
    """Analyse, print title, table, path and the warnings that have not been `said` before; return the exit code."""
    from analyzer.analyze import analyze_measurement
    from analyzer.table import result_table, result_title
    from contract.manifest import read_prepared_manifest

    def show(analysis: "Analysis") -> None:
        print_text(result_title(analysis.document["run_id"]))
        print_tables(result_table(analysis.document))
        print_text(f"Detailed analysis is available at: {analysis.path}")

    analysis = analyze_measurement(
        read_prepared_manifest(manifest), measured.stamp, show=show, warn=print_warning
    )
    print_ledgers(analysis.document)
    for warning in analysis.document["warnings"]:
        text = f"{warning['code']}: {warning_message(warning)}"
        if text not in said:
            print_warning(text)
    if analysis.message and analysis.exit_code != ExitCode.DONE:
        print_error(analysis.message)
    return int(analysis.exit_code)


def print_ledgers(document: dict[str, Any]) -> None:
    """The line on stderr that says which ledgers agree."""
    from analyzer.ledger_states import ledger_line

    print_note(ledger_line(document["validation"]["ledgers"]))
    caveats = {
        item["caveat"]: item["between"]
        for item in document["ledgers"].get("differences", [])
        if item["caveat"]
    }
    for caveat, between in caveats.items():
        print_note(f"{' and '.join(between)}: {caveat}")


KINDS = {"engine": ("external", "simulator", "vllm"), "driver": ("aisbench", "native")}


def require_kinds(**chosen: str | None) -> None:
    """Options that choose a kind know it. Raises ScenarioError."""
    for option, value in chosen.items():
        if value is not None and value not in KINDS[option]:
            raise ScenarioError(f"--{option} {value}: must be {' or '.join(KINDS[option])}")


def with_overrides(
    scenario: "Scenario",
    *,
    engine: str | None = None,
    driver: str | None = None,
    config: Path | None = None,
    work_dir: Path | None = None,
) -> tuple["Scenario", dict[str, Any]]:
    """The scenario with the command line's choices, and which they were."""
    overrides: dict[str, Any] = {}
    require_kinds(engine=engine, driver=driver)
    for section, value in (("engine", engine), ("driver", driver)):
        if value is None:
            continue
        changed = getattr(scenario, section).model_copy(update={"kind": value})
        scenario = scenario.model_copy(update={section: changed})
        overrides[f"{section}.kind"] = value
    if config is not None and not config.is_file():
        raise ScenarioError(f"--config {config}: no such file")
    paths = {"config": config, "work_dir": work_dir}
    for field, path in paths.items():
        if path is None:
            continue
        if scenario.driver_kind != "aisbench":
            raise ScenarioError(f"--{field.replace('_', '-')} is for AISBench; add --driver aisbench")
        overrides[f"aisbench.{field}"] = str(path.resolve())
        changed = scenario.aisbench.model_copy(update={field: str(path.resolve())})
        scenario = scenario.model_copy(update={"aisbench": changed})
    return scenario, overrides


def require_endpoint(scenario: "Scenario", mode: Mode) -> None:
    """Texts go to completions (a chat template would shift their blocks), images to chat completions."""
    url = scenario.service.inference_url
    chat = url.rstrip("/").endswith("/chat/completions")
    if scenario.engine.kind != "external" or chat == (mode == "mm"):
        return
    if mode == "mm":
        right = re.sub(r"(/v1)?(/completions)?/*$", "", url) + "/v1/chat/completions"
        raise ScenarioError(
            f"service.inference_url: {url} takes no images; data of --mode mm needs chat completions: {right}"
        )
    right = url.rstrip("/").removesuffix("/chat/completions") + "/completions"
    raise ScenarioError(
        f"service.inference_url: {url} wraps texts in a chat template, which shifts their blocks; data of --mode text "
        f"needs completions: {right}"
    )


@contextmanager
def running_engine(
    scenario: "Scenario", path: Path, directory: RunDirectory, progress: Progress, mode: Mode = "text"
) -> Iterator[Any]:
    """The engine of the scenario, started where it is ours to start, stopped at the end of the block."""

    def for_mode(engine: "Engine") -> "Engine":
        """A started engine is addressed as the data needs it."""
        return engine if mode == "text" else replace(engine, inference_url=f"{engine.base_url}{CHAT_ROUTE}")

    from contract.redaction import service_api_key
    from runner.engines.external import external_engine
    from runner.engines.simulator import simulator_engine, simulator_settings

    if scenario.engine.kind == "external":
        yield external_engine(scenario.service)
        return
    if scenario.engine.kind == "vllm":
        from runner.engines.vllm import managed_engine

        folder = path.resolve().parent
        with managed_engine(scenario, directory, scenario_folder=folder, progress=progress) as engine:
            yield for_mode(engine)
        return
    from simulator.options import checked_config
    from simulator.process import start_simulator

    settings = simulator_settings(scenario, service_api_key(scenario.service.api_key), images=mode == "mm")
    with start_simulator(checked_config(settings)) as simulator:
        yield for_mode(simulator_engine(scenario, simulator.url))
