"""Finding the data that was prepared for a scenario."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from contract.data_identity import data_sha256
from contract.errors import ArtifactError, HitLabError, ScenarioError
from contract.kinds import Mode
from contract.manifest import Manifest, read_manifest, read_prepared_manifest
from contract.multimodal import image_data_sha256, parquet_listing
from contract.run_directory import existing_run_directories
from contract.scenario import Scenario, load_scenario
from contract.scenario.load import read_document
from prompts.corpus import load_corpus
from prompts.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class PreparedData:
    """A prepared manifest and the tokenizer its data was made with."""

    manifest: Manifest
    tokenizer: Tokenizer


@dataclass(frozen=True)
class DataChoice:
    """The scenario, read as its data was made, and that data. `passed_over`: an older manifest of the other kind."""

    scenario: Scenario
    prepared: PreparedData
    passed_over: Path | None = None


def choose_data(scenario_path: Path, manifest_path: Path | None) -> DataChoice:
    """The newest prepared data, text or images, that `scenario_path` describes; or the data of `manifest_path`.

    One scenario file can describe both kinds, so it is read as each of them. What is wrong is told of the kind that it
    is likely to be. Raises ScenarioError when it describes neither, otherwise as `find_prepared`.
    """
    if manifest_path is not None:
        manifest = read_prepared_manifest(manifest_path)
        scenario = load_scenario(scenario_path, manifest.mode)
        return DataChoice(scenario, find_prepared(scenario_path, scenario, manifest_path, manifest.mode))
    meant = likely_kind(read_document(scenario_path))
    readings, problems = _readings(scenario_path, meant)
    # Where a task writes to is read alike for both kinds, so data is also found of a kind that cannot be read now.
    any_reading = next(iter(readings.values()))
    there: set[Mode] = {mode for mode in get_args(Mode) if any(_prepared(any_reading, mode))}
    blamed = there.copy().pop() if len(there) == 1 else meant
    if blamed in problems:
        raise problems[blamed]
    missing: dict[Mode, HitLabError] = {}
    found: list[DataChoice] = []
    for mode, scenario in readings.items():
        if mode in (there or {meant}):  # a tokenizer and a corpus are not read in vain
            try:
                found.append(DataChoice(scenario, find_prepared(scenario_path, scenario, None, mode)))
            except (ArtifactError, ScenarioError) as error:
                missing[mode] = error
    if not found:
        if meant in problems:
            raise problems[meant]
        if meant not in missing:  # only data of the other kind is there, and of another scenario
            find_prepared(scenario_path, readings[meant], None, meant)
        raise missing[meant]
    found.sort(key=lambda choice: choice.prepared.manifest.directory.root.name)
    newest = found[-1]
    older = found[0].prepared.manifest.directory.manifest if len(found) > 1 else None
    return DataChoice(newest.scenario, newest.prepared, older)


def _readings(scenario_path: Path, meant: Mode) -> tuple[dict[Mode, Scenario], dict[Mode, ScenarioError]]:
    """The scenario as each kind, and what is wrong with it as one. Raises ScenarioError when it is neither: of both, and
    of text alone where there is no section for images."""
    readings: dict[Mode, Scenario] = {}
    problems: dict[Mode, ScenarioError] = {}
    for mode in get_args(Mode):
        try:
            readings[mode] = load_scenario(scenario_path, mode)
        except ScenarioError as error:
            problems[mode] = error
    if readings:
        return readings, problems
    if not _has_images(read_document(scenario_path)):
        raise problems["text"]
    lines = {mode: str(problems[mode]).splitlines() for mode in (meant, *get_args(Mode))}
    shared = [line for line in lines["text"] if line in lines["mm"]]
    own = [f"{line} (read as --mode {mode})" for mode in lines for line in lines[mode] if line not in shared]
    raise ScenarioError("\n".join([*shared, *own]))


def likely_kind(document: Any) -> Mode:
    """The kind of data that a scenario means, by itself: text where it has no section for images, else by the route of
    its requests, else text where it has a section prefix_cache.

    The address of an engine of ours says nothing: that one is addressed as the data needs it.
    """
    if not _has_images(document):
        return "text"
    url = _at(document, "service", "inference_url")
    if isinstance(url, str) and url and _at(document, "engine", "kind") in (None, "external"):
        return "mm" if url.rstrip("/").endswith("/chat/completions") else "text"
    if "prefix_cache" in document:
        return "text"
    return "text" if _at(document, "multimodal", "mmmu_parquet_dir") is None else "mm"


def _has_images(document: Any) -> bool:
    return _at(document, "multimodal") is not None


def _at(document: Any, *steps: str) -> Any:
    for step in steps:
        document = document.get(step) if isinstance(document, Mapping) else None
    return document


def find_prepared(
    scenario_path: Path, scenario: Scenario, manifest_path: Path | None, mode: Mode = "text"
) -> PreparedData:
    """The newest prepared data of this kind whose content is what `scenario` would give, or the data of `manifest_path`.

    Raises ArtifactError that names the prepare command when there is none, and when a manifest named explicitly was
    made from other data.
    """
    tokenizer = load_tokenizer(
        scenario.tokenizer.path,
        revision=scenario.tokenizer.revision,
        trust_remote_code=scenario.tokenizer.trust_remote_code,
    )
    corpus = load_corpus(scenario.corpus.path, scenario.corpus.field)
    content = {
        "corpus_sha256": corpus.file_sha256,
        "tokenizer_fingerprint": str(tokenizer.identity()["fingerprint_sha256"]),
    }

    def wanted(manifest: Manifest) -> str:
        """Identity of what the scenario would give now."""
        if mode == "text":
            return data_sha256(scenario, **content)
        return image_data_sha256(scenario, **content, parquet_files=_parquet_files(scenario, manifest))

    prepare = f"hitlab prepare --scenario {scenario_path} --mode {mode}"
    if manifest_path is not None:
        manifest = read_prepared_manifest(manifest_path)
        if manifest.mode != mode or manifest.document["data_sha256"] != wanted(manifest):
            raise ArtifactError(
                f"{manifest_path}: was prepared from other data than {scenario_path} describes; run: {prepare}"
            )
        return PreparedData(manifest, tokenizer)
    older = 0
    for manifest in _prepared(scenario, mode):
        if manifest.document["data_sha256"] == wanted(manifest):
            return PreparedData(manifest, tokenizer)
        older += 1
    reason = "no data has been prepared for it"
    if older:
        reason = (
            f"the data prepared for it ({older} times) is of another scenario, corpus, CSV file or tokenizer"
        )
    raise ArtifactError(f"{scenario_path}: {reason}; run: {prepare}")


def _prepared(scenario: Scenario, mode: Mode) -> Iterator[Manifest]:
    """Manifests of data of this kind that was prepared for the scenario's task, newest first."""
    for directory in existing_run_directories(Path(scenario.run.output_dir), scenario.run.run_id):
        manifest = read_manifest(directory.manifest)
        if manifest.status == "prepared" and manifest.mode == mode:
            yield manifest


def _parquet_files(scenario: Scenario, manifest: Manifest) -> list[list[str | int]]:
    """The folder's files now; where it is not at hand, those that the data was made from: the image came along."""
    folder = Path(str(scenario.multimodal.mmmu_parquet_dir))
    if folder.is_dir():
        return parquet_listing(folder)
    made_from: list[list[str | int]] = manifest.document["parquet_files"]
    return made_from
