"""Finding the data that was prepared for a scenario."""

from dataclasses import dataclass
from pathlib import Path

from contract.data_identity import data_sha256
from contract.errors import ArtifactError
from contract.manifest import Manifest, read_manifest, read_prepared_manifest
from contract.run_directory import existing_run_directories
from contract.scenario import Scenario
from prompts.corpus import load_corpus
from prompts.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class PreparedData:
    """A prepared manifest and the tokenizer its data was made with."""

    manifest: Manifest
    tokenizer: Tokenizer


def find_prepared(scenario_path: Path, scenario: Scenario, manifest_path: Path | None) -> PreparedData:
    """The newest prepared data whose content is what `scenario` would give, or the data of `manifest_path`.

    Raises ArtifactError that names the prepare command when there is none, and when a manifest named explicitly was
    made from other data.
    """
    tokenizer = load_tokenizer(
        scenario.tokenizer.path,
        revision=scenario.tokenizer.revision,
        trust_remote_code=scenario.tokenizer.trust_remote_code,
    )
    corpus = load_corpus(scenario.corpus.path, scenario.corpus.field)
    wanted = data_sha256(
        scenario,
        corpus_sha256=corpus.file_sha256,
        tokenizer_fingerprint=str(tokenizer.identity()["fingerprint_sha256"]),
    )
    prepare = f"hitlab prepare --scenario {scenario_path} --mode text"
    if manifest_path is not None:
        manifest = read_prepared_manifest(manifest_path)
        if manifest.document["data_sha256"] != wanted:
            raise ArtifactError(
                f"{manifest_path}: was prepared from other data than {scenario_path} describes; run: {prepare}"
            )
        return PreparedData(manifest, tokenizer)
    older = 0
    for directory in existing_run_directories(Path(scenario.run.output_dir), scenario.run.run_id):
        manifest = read_manifest(directory.manifest)
        if manifest.status != "prepared":
            continue
        if manifest.document["data_sha256"] == wanted:
            return PreparedData(manifest, tokenizer)
        older += 1
    reason = "no data has been prepared for it"
    if older:
        reason = (
            f"the data prepared for it ({older} times) is of another scenario, corpus, CSV file or tokenizer"
        )
    raise ArtifactError(f"{scenario_path}: {reason}; run: {prepare}")
