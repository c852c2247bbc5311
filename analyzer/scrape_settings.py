"""With what two scrapes are read: ranks, their labels, the model, and the thresholds of warnings."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from analyzer.measurements import read_measurement
from contract.analysis import manifest_validation
from contract.data_identity import data_sha256
from contract.documents import reading
from contract.effective_config import effective_config
from contract.errors import ArtifactError, ScenarioError
from contract.files import read_file
from contract.manifest import Manifest
from contract.run_directory import MeasurementDirectory
from contract.scenario import Scenario, Validation, load_scenario


@dataclass(frozen=True)
class ScrapeSettings:
    """The sections `service` and `validation`, and where they come from."""

    service: dict[str, Any]
    validation: Validation
    source: Literal["scenario", "measurement", "manifest"]
    path: Path

    @property
    def line(self) -> str:
        what = {
            "scenario": "the scenario",
            "measurement": "the measurement with the same scrapes",
            "manifest": "the time of prepare",
        }
        return f"dp_size, engine_label_map and thresholds are those of {what[self.source]}: {self.path}"

    def document(self) -> dict[str, Any]:
        keys = ("model", "dp_size", "engine_label_map")
        return {
            "source": self.source,
            "path": str(self.path),
            **{key: self.service[key] for key in keys},
            **self.validation.model_dump(mode="json"),
        }


def scrape_settings(
    manifest: Manifest, baseline: Path, after: Path, scenario: Path | None = None
) -> ScrapeSettings:
    """Of the scenario file when one is named; else of the measurement whose scrapes these are; else of the manifest.

    Raises ScenarioError when the scenario cannot be read or has other ranks than the data was made for, ArtifactError
    when it describes other data, or a file cannot be read.
    """
    if scenario is not None:
        loaded = load_scenario(scenario)
        _require_this_data(loaded, scenario, manifest)
        return ScrapeSettings(effective_config(loaded)["service"], loaded.validation, "scenario", scenario)
    directory = _measured_with(manifest, baseline, after)
    if directory is not None:
        measurement = read_measurement(directory)
        return ScrapeSettings(
            measurement.service,
            Validation.model_validate(measurement.validation),
            "measurement",
            directory.measurement,
        )
    return ScrapeSettings(
        manifest.effective_config["service"],
        manifest_validation(manifest),
        "manifest",
        manifest.directory.manifest,
    )


def _measured_with(manifest: Manifest, *scrapes: Path) -> MeasurementDirectory | None:
    """The newest measurement that has these two scrapes."""
    wanted = [_content(path) for path in scrapes]
    runs = manifest.directory.runs
    for root in sorted(runs.iterdir(), reverse=True) if runs.is_dir() else ():
        directory = MeasurementDirectory(root)
        pair = (directory.baseline, directory.after)
        there = directory.measurement.is_file() and all(path.is_file() for path in pair)
        if there and [_content(path) for path in pair] == wanted:
            return directory
    return None


def _content(path: Path) -> bytes:
    """What tells a page from another. Newlines at its end do not: `jq -r` adds one when it takes a page out of JSON."""
    with reading(path):
        return hashlib.sha256(read_file(path).rstrip(b"\n")).digest()


def _require_this_data(scenario: Scenario, path: Path, manifest: Manifest) -> None:
    """dp_size may be another one, except where the data was made for that many ranks."""
    prepared = int(manifest.document["dp"]["size"])
    if scenario.prefix_cache.mode == "cold" and scenario.service.dp_size != prepared:
        raise ScenarioError(
            f"{path}: service.dp_size is {scenario.service.dp_size}; this data was prepared for {prepared} ranks, and in "
            "cold mode each request has its rank"
        )
    service = scenario.service.model_copy(update={"dp_size": prepared})
    identity = data_sha256(
        scenario.model_copy(update={"service": service}),
        corpus_sha256=manifest.document["corpus_sha256"],
        tokenizer_fingerprint=manifest.document["tokenizer"]["fingerprint_sha256"],
    )
    if identity != manifest.document["data_sha256"]:
        raise ArtifactError(
            f"{manifest.directory.manifest}: was prepared from other data than {path} describes; name the scenario that "
            "it was prepared from"
        )
