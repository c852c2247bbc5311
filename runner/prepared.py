"""Finding the data that was prepared for a scenario."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

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

    One scenario file can describe both kinds, so it is read as each of them. Raises ScenarioError when it describes
    neither, otherwise as `find_prepared`.
    """
    if manifest_path is not None:
        manifest = read_prepared_manifest(manifest_path)
        scenario = load_scenario(scenario_path, manifest.mode)
        return DataChoice(scenario, find_prepared(scenario_path, scenario, manifest_path, manifest.mode))
    problems: dict[Mode, HitLabError] = {}
    scenarios: dict[Mode, Scenario] = {}
    for mode in get_args(Mode):
        try:
            scenarios[mode] = load_scenario(scenario_path, mode)
        except ScenarioError as error:
            problems[mode] = error
    # A tokenizer and a corpus are not read in vain.
    there = {mode for mode, scenario in scenarios.items() if any(_prepared(scenario, mode))}
    found: list[DataChoice] = []
    for mode, scenario in scenarios.items():
        if there and mode not in there:
            continue
        try:
            found.append(DataChoice(scenario, find_prepared(scenario_path, scenario, None, mode)))
        except (ArtifactError, ScenarioError) as error:
            problems[mode] = error
    if not found:
        # Without a folder of images it is a text scenario, and what is wrong with it as such is what helps.
        likely: Mode = "mm" if _describes_images(scenario_path) else "text"
        raise problems.get(likely) or next(iter(problems.values()))
    found.sort(key=lambda choice: choice.prepared.manifest.directory.root.name)
    newest = found[-1]
    older = found[0].prepared.manifest.directory.manifest if len(found) > 1 else None
    return DataChoice(newest.scenario, newest.prepared, older)


def _describes_images(scenario_path: Path) -> bool:
    document = read_document(scenario_path)
    section = document.get("multimodal") if isinstance(document, dict) else None
    return isinstance(section, dict) and section.get("mmmu_parquet_dir") is not None


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
