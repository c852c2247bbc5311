"""Letting Prometheus see the engine of a run while the run goes on."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from contract.errors import ArtifactError
from contract.file_sd import EngineTarget, out_of_reach, target_folder, target_path, write_target
from contract.measurement import Finding
from contract.run_directory import MeasurementDirectory, RunDirectory
from runner.engines.engine import Engine

LOGGER = logging.getLogger("hitlab.runner")


@contextmanager
def published(
    engine: Engine, run: RunDirectory, measurement: MeasurementDirectory
) -> Iterator[Finding | None]:
    """The engine is a target of Prometheus inside the block, and a while longer when it outlives the run.

    Yields why Prometheus cannot see it, where that is plain. A target that cannot be written is no reason to end a
    measurement: the log says so.
    """
    path = target_path(target_folder(run.root), engine.base_url)
    target = EngineTarget(
        metrics_urls=engine.metrics_urls,
        model=engine.model,
        run_id=run.run_id,
        measurement=measurement.stamp,
        engine_kind=engine.kind,
    )
    try:
        write_target(path, target)
    except ArtifactError as error:
        LOGGER.warning("Prometheus is not told of the engine: %s", error)
    reason = out_of_reach(engine.metrics_urls)
    try:
        yield None if reason is None else Finding(code="PROMETHEUS_CANNOT_REACH", message=reason)
    finally:
        if engine.kind != "external":
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                LOGGER.warning("%s: cannot be removed (%s)", path, error.strerror)
