"""One measurement: engine, preflight, reset, warmup, baseline, formal load, settling, after."""

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from contract.artifact_check import check_artifacts
from contract.command_log import command_log, log_lines
from contract.concurrency import not_reached
from contract.effective_config import effective_config
from contract.errors import ExitCode, Interruption, ServiceError
from contract.events import utc_now
from contract.measurement import EngineRecord, Finding, ImageRecord, Measurement
from contract.progress import Progress, silent
from contract.redaction import Redactor, service_api_key
from contract.run_directory import MeasurementDirectory
from contract.scenario import Scenario
from contract.scenario.aisbench_arguments import command_line, warmups
from runner.control import ControlClient, Scrape
from runner.drivers.aisbench.load import AisbenchLoad, aisbench_load
from runner.drivers.aisbench.warmup import send_warmups
from runner.engines.engine import Engine
from runner.formal import run_formal_phase
from runner.lock import engine_lock
from runner.measurement_record import MeasurementRecord
from runner.multimodal.preflight import image_preflight
from runner.multimodal.reset import reset_image_caches
from runner.preflight import Preflight, PreflightError, finding_of, preflight
from runner.prepared import PreparedData
from runner.prometheus_target import published
from runner.reset import reset_cache
from runner.run_log import begin_lines, check_lines, engine_line, load_lines, warmup_lines
from runner.settle import Settled, quiet_scrape, settled_scrape
from runner.undisturbed import last_words, undisturbed
from runner.warmup import contamination, warm_up

LOGGER = logging.getLogger("hitlab.runner")
SCRAPE_ATTEMPTS = 3
SCRAPE_PAUSE_SECONDS = 0.5


class StoppedRun(Interruption):
    """The user stopped the run; what was measured has been kept."""

    def __init__(self, directory: MeasurementDirectory) -> None:
        super().__init__(f"interrupted; what was measured is kept in {directory.root}")


def _to_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def measure(
    scenario: Scenario,
    prepared: PreparedData,
    engine: Engine,
    *,
    overrides: dict[str, Any],
    stop: threading.Event,
    progress: Progress = silent,
    scenario_folder: Path | None = None,
    say: Callable[[str], None] = _to_stderr,
    warn: Callable[[str], None] = lambda _text: None,
    on_begin: Callable[[MeasurementDirectory], None] = lambda _directory: None,
) -> ExitCode:
    """Measure once and leave everything in a new directory under `result/runs/`, which `on_begin` is told.

    Returns how the measurement ended (`Measurement.ending`). Setting `stop`, or KeyboardInterrupt, ends the run early;
    what was measured is kept and StoppedRun is raised. Any other error is recorded in measurement.json before it goes on
    to the caller. `scenario_folder` is where relative paths of an AISBench template start (default: the current
    directory); `say` gets what AISBench prints, as it comes; `warn` what the checks warn of, before the load.
    """
    manifest = prepared.manifest
    api_key = service_api_key(scenario.service.api_key)
    redact = Redactor(api_key)
    with (
        command_log(manifest.directory.log("run"), redact),
        engine_lock(engine, manifest.directory.root.parent, manifest.directory.run_id),
    ):
        check_artifacts(manifest, progress)
        directory = manifest.directory.new_measurement()
        on_begin(directory)
        if engine.log_to is not None:
            engine.log_to(directory.engine_log)
        config = effective_config(scenario)
        log_lines(
            LOGGER, begin_lines(str(manifest.directory.manifest), str(directory.root), config, overrides)
        )
        first = Measurement(
            status="running",
            run_id=manifest.document["run_id"],
            stamp=directory.stamp,
            manifest_sha256=manifest.sha256,
            started_at=utc_now(),
            overrides=overrides,
            service=config["service"],
            validation=config["validation"],
        )
        client = ControlClient(
            engine,
            api_key=api_key,
            timeout_seconds=scenario.service.timeout_seconds,
            engine_label_map=scenario.service.engine_label_map,
        )
        record: MeasurementRecord | None = None
        try:
            with undisturbed():  # from its first file on, an end is written into it
                record = MeasurementRecord(directory, first, redact)
            with (
                published(engine, manifest.directory, directory) as unseen,
                _driver(
                    scenario, prepared, engine, directory, scenario_folder or Path.cwd(), api_key, redact, say
                ) as aisbench,
            ):
                record.mention(unseen)
                _run_phases(
                    scenario, prepared, client, directory, record, api_key, stop, progress, warn, aisbench
                )
        except (StoppedRun, KeyboardInterrupt) as error:
            with last_words():
                if record is not None:
                    record.interrupt()
            raise StoppedRun(directory) from error
        except BaseException as error:
            if record is None:
                raise
            checks = {"preflight": list(error.checks)} if isinstance(error, PreflightError) else {}
            log_lines(LOGGER, check_lines(checks.get("preflight", ())))
            if stop.is_set() and isinstance(error, ServiceError):
                # A step that was cut short says nothing about the engine.
                with last_words():
                    record.interrupt(**checks)
                raise StoppedRun(directory) from error
            findings = (
                [*record.state.findings, found] if (found := finding_of(error)) else record.state.findings
            )
            record.fail(error, findings=findings, **checks)
            raise
    return record.state.ending


@contextmanager
def _driver(
    scenario: Scenario,
    prepared: PreparedData,
    engine: Engine,
    directory: MeasurementDirectory,
    scenario_folder: Path,
    api_key: str,
    redact: Redactor,
    say: Callable[[str], None],
) -> Iterator[AisbenchLoad | None]:
    """AISBench, being started while the engine is checked; None: the native driver, which needs no start."""
    if scenario.driver_kind != "aisbench":
        yield None
        return
    with aisbench_load(
        scenario,
        scenario_folder,
        prepared.manifest,
        prepared.tokenizer,
        engine,
        directory,
        api_key=api_key,
        redact=redact,
        say=say,
    ) as load:
        yield load


def _run_phases(
    scenario: Scenario,
    prepared: PreparedData,
    client: ControlClient,
    directory: MeasurementDirectory,
    record: MeasurementRecord,
    api_key: str,
    stop: threading.Event,
    progress: Progress,
    warn: Callable[[str], None],
    aisbench: AisbenchLoad | None,
) -> None:
    manifest = prepared.manifest

    def go_on() -> None:
        if stop.is_set():
            raise StoppedRun(directory)

    with record.phase("precheck"):
        if aisbench is not None:
            progress("Start AISBench", 0, None)
            aisbench.wait_until_ready(stop)
            go_on()
        progress("Check the engine", 0, None)
        images: ImageRecord | None = None
        if manifest.mode == "mm":
            found = image_preflight(client, scenario, manifest, prepared.tokenizer, stop)
            checked, images = found.checked, found.images
        else:
            asked = aisbench.concurrency if aisbench is not None else scenario.concurrency
            checked = preflight(client, scenario, manifest, prepared.tokenizer, stop, asked)
        record.update(
            preflight=list(checked.checks), engine=_engine_record(client.engine, checked), images=images
        )
        log_lines(LOGGER, check_lines(checked.checks))
        if record.state.engine is not None:
            LOGGER.info("%s", engine_line(record.state.engine))
        for finding in checked.findings:
            record.find(finding)
            warn(f"{finding.code}: {finding.message}")
    go_on()
    with record.phase("reset"):
        reset = reset_cache(
            client, checked, assume_empty_cache=scenario.service.assume_empty_cache, stop=stop
        )
        record.update(preflight=[*record.state.preflight, reset.check])
        log_lines(LOGGER, check_lines([reset.check]))
        for finding in reset.findings:
            record.find(finding)
        count = warmups(command_line(scenario.aisbench.extra_args))  # the native driver's as well
        if count and not stop.is_set():
            send_warmups(client, scenario, manifest, count, api_key=api_key, stop=stop, progress=progress)
        if images is not None:
            # Last: the proof of the reset and the warmups sent the very image.
            emptied = reset_image_caches(client, stop, emptied=not reset.findings)
            emptied_now = {"primed": not emptied.prefix, "image_caches_reset": emptied.images}
            record.update(images=images.model_copy(update=emptied_now))
            for finding in emptied.findings:
                record.find(finding)
    go_on()
    if manifest.mode == "text" and manifest.document["warmup"]["enabled"]:
        with record.phase("warmup"):
            warmed = warm_up(client, scenario, manifest, api_key=api_key, stop=stop, progress=progress)
            check, contaminated = contamination(warmed)
            record.update(warmup=warmed, preflight=[*record.state.preflight, check])
            log_lines(LOGGER, (*warmup_lines(warmed), *check_lines([check])))
            record.find(contaminated)
        go_on()
    with record.phase("baseline"):
        progress("Wait for an idle engine", 0, None)
        baseline = quiet_scrape(client, stop)
        record.find(baseline.finding)
        record.keep_scrape(directory.baseline, baseline.scrape)
    go_on()
    with record.phase("formal"):
        formal = run_formal_phase(
            client,
            scenario,
            manifest,
            directory,
            api_key=api_key,
            stop=stop,
            progress=progress,
            aisbench=aisbench,
        )
        outcome = formal.outcome
        record.update(
            load=outcome.load, aisbench=outcome.aisbench, kv_polling_failures=formal.kv_polling_failures
        )
        log_lines(LOGGER, load_lines(outcome.load, outcome.aisbench))
        for finding in outcome.findings:
            record.find(finding)
        lighter = not_reached(outcome.load)
        if lighter is not None and lighter.code not in {finding.code for finding in record.state.findings}:
            record.find(lighter)
    record.seal_parts()
    # Counters that are known to stand still are not waited for.
    expected = formal.expected_queries if checked.ranks.not_counting is None else None
    counted = _finish(client, directory, record, baseline, expected, stop, progress)
    go_on()
    if outcome.failure is not None:
        raise outcome.failure
    record.finish("complete" if counted and outcome.load.failed == 0 else "partial")


def _finish(
    client: ControlClient,
    directory: MeasurementDirectory,
    record: MeasurementRecord,
    baseline: Settled,
    expected_queries: int | None,
    stop: threading.Event,
    progress: Progress,
) -> bool:
    """Wait for the counters and take the last scrape; after an interruption without waiting.

    Returns whether there is one. The records are worth keeping without it, so an engine that is gone is a finding.
    """
    with record.phase("settle"):
        progress("Wait for the counters", 0, None)
        try:
            settled = _settled(client, baseline.scrape, expected_queries, stop)
        except ServiceError as error:
            record.update(settled=False)
            message = f"no metrics after the load, so its counters are not known: {error}"
            record.find(finding_of(error) or Finding(code="AFTER_SCRAPE_MISSING", message=message))
            return False
        record.update(settled=settled.settled)
        record.find(settled.finding)
    with record.phase("after"):
        record.keep_scrape(directory.after, settled.scrape)
    return True


def _settled(
    client: ControlClient, baseline: Scrape, expected_queries: int | None, stop: threading.Event
) -> Settled:
    """`settled_scrape`, which one failed scrape among many does not end."""
    for _ in range(SCRAPE_ATTEMPTS - 1):
        try:
            return settled_scrape(client, baseline, expected_queries, stop)
        except ServiceError as error:
            LOGGER.warning("scrape after the load: %s", error)
        if stop.wait(SCRAPE_PAUSE_SECONDS):
            break
    return settled_scrape(client, baseline, expected_queries, stop)


def _engine_record(engine: Engine, checked: Preflight) -> EngineRecord:
    configs = [rank.cache_config for rank in checked.ranks.scrape.snapshot.ranks]
    first = configs[0]
    return EngineRecord(
        kind=engine.kind,
        inference_url=engine.inference_url,
        metrics_urls=list(engine.metrics_urls),
        reset_url=engine.reset_url,
        model=engine.model,
        version=checked.version,
        max_model_len=checked.max_model_len,
        block_size=first.block_size if first else None,
        num_gpu_blocks=[config.num_gpu_blocks if config else None for config in configs],
        container=engine.container,
    )
