"""Letting Prometheus see the engine of a run while the run goes on."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contract.errors import ArtifactError
from contract.file_sd import (
    PROMETHEUS_VARIABLE,
    EngineTarget,
    out_of_reach,
    remove_target,
    target_folder,
    target_path,
    write_target,
)
from contract.measurement import Finding
from contract.run_directory import MeasurementDirectory, RunDirectory
from runner.engines.engine import Engine

LOGGER = logging.getLogger("hitlab.runner")


def _has_https(engine: Engine) -> bool:
    return any(url[:6].lower() == "https:" for url in engine.metrics_urls)


def _authority(engine: Engine) -> Path | None:
    """The file that Prometheus has to believe as well; None: it needs none, or it is a folder."""
    named = engine.trust.authority() if _has_https(engine) else None
    return Path(named[0]) if named is not None and Path(named[0]).is_file() else None


def _not_let_in(engine: Engine) -> str | None:
    prometheus = os.environ.get(PROMETHEUS_VARIABLE)
    if not prometheus or not engine.trust.client_cert or not _has_https(engine):
        return None
    return (
        f"Prometheus ({prometheus}) has no certificate to show to this engine ({engine.trust.client_field} is HitLab's "
        "own), so dashboards show nothing live where its metrics ask for one; the result does not depend on it"
    )


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
        authority=_authority(engine),
    )
    try:
        write_target(path, target)
    except ArtifactError as error:
        LOGGER.warning("Prometheus is not told of the engine: %s", error)
    reason = out_of_reach(engine.metrics_urls, engine.metrics_setting) or _not_let_in(engine)
    try:
        yield None if reason is None else Finding(code="PROMETHEUS_CANNOT_REACH", message=reason)
    finally:
        if engine.kind != "external":
            try:
                remove_target(path)
            except OSError as error:
                LOGGER.warning("%s: cannot be removed (%s)", path, error.strerror)
