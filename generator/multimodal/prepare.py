"""`prepare --mode mm` and `inspect --mode mm`: one native image, a text of its own for every request."""

import base64
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from contract.analysis import prepared_image_analysis
from contract.command_log import PhaseTimes, command_log, log_lines
from contract.documents import canonical_sha256, file_sha256, whole_file, write_document
from contract.effective_config import effective_config
from contract.events import utc_now
from contract.manifest import seal
from contract.multimodal import LAYOUTS, image_data_sha256, image_row, parquet_listing
from contract.progress import Progress, silent
from contract.redaction import Redactor
from contract.run_directory import RunDirectory, create_run_directory
from contract.scenario import Scenario, load_scenario
from contract.token_ids import ROWS_PER_BATCH, TOKEN_IDS_SCHEMA, token_ids_batch
from generator.corpus_selection import corpus_selection
from generator.inspect import write_inspected_manifest
from generator.multimodal.selection import ChosenImage, choose_image
from generator.multimodal.texts import ExactText, exact_texts
from generator.plan_log import artifact_lines, settings_lines
from generator.reuse import directory_for_prepare
from generator.sources import load_sources, source_lines
from generator.summary import analysis_artifact
from generator.version import plugin_version
from prompts.corpus import Corpus
from prompts.tokenizer import Tokenizer

MULTIMODAL_SCHEMA_VERSION = "2.0"
CORPUS_STREAM = 300
"""Offset of the seed that shuffles the corpus: the stream of the first group in text mode (reference 2.1)."""


@dataclass(frozen=True)
class _Job:
    """What is going to be written: `requests` is where rows of `name` go."""

    scenario: Scenario
    name: str
    image: ChosenImage
    parquet_folder: Path

    @property
    def count(self) -> int:
        return self.scenario.requests.count

    @property
    def text_tokens(self) -> int:
        return self.scenario.requests.input_length.value

    @property
    def output_tokens(self) -> int:
        return self.scenario.requests.output_length.value

    @property
    def images_per_request(self) -> int:
        return LAYOUTS[self.name].images_per_request

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.image.stored.content).hexdigest()

    @property
    def ref(self) -> str:
        return f"mmmu:{self.name}:{self.sha256[:16]}"


def _job(scenario_path: Path, output_dir: Path | None, progress: Progress) -> _Job:
    scenario = load_scenario(scenario_path, "mm")
    if output_dir is not None:
        run = scenario.run.model_copy(update={"output_dir": str(output_dir.resolve())})
        scenario = scenario.model_copy(update={"run": run})
    name = scenario.multimodal.scenarios[0]
    folder = Path(str(scenario.multimodal.mmmu_parquet_dir))
    image = choose_image(folder, LAYOUTS[name], progress)
    pa.default_memory_pool().release_unused()  # what the search needed, the tokenizer is going to need
    return _Job(scenario, name, image, folder)


def prepare_images(
    scenario_path: Path,
    *,
    overwrite: bool = False,
    discard_measurements: bool = False,
    output_dir: Path | None = None,
    progress: Progress = silent,
    note: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Choose the image, write the rows and the manifest that holds it. Returns what to show (reference 4.6).

    `discard_measurements` and `note` as for texts.

    Raises ScenarioError when the data cannot be built; then no manifest is written.
    """
    phase = PhaseTimes()
    with phase("choose image"):
        job = _job(scenario_path, output_dir, progress)
    scenario = job.scenario
    tokenizer, corpus = load_sources(scenario, phase)
    scenario_sha256 = file_sha256(scenario_path)
    with phase("build texts"):
        texts = list(
            exact_texts(
                tokenizer,
                corpus,
                corpus_selection(scenario.corpus.selection, "corpus.selection"),
                count=job.count,
                tokens=job.text_tokens,
                seed=scenario.run.random_seed + CORPUS_STREAM,
            )
        )
    choice = directory_for_prepare(
        scenario,
        scenario_sha256=scenario_sha256,
        data_sha256=_identity(job, corpus, tokenizer),
        overwrite=overwrite or scenario.run.overwrite,
        discard_measurements=discard_measurements,
        mode="mm",
    )
    directory = choice.directory
    with command_log(directory.log("prepare"), Redactor(scenario.service.api_key)) as log:
        log_lines(log, settings_lines(scenario, scenario_path, scenario_sha256))
        phase.tell(log)
        if choice.note is not None:
            log.info(choice.note)
            if note is not None:
                note(choice.note)
        directory.manifest.unlink(missing_ok=True)  # from here on the directory holds no valid data
        requests = directory.result / f"{directory.run_id}.{job.name}.requests.jsonl"
        with phase("write requests"):
            _write_rows(requests, job, texts, progress)
            _write_token_ids(directory.token_ids, texts)
        document = _manifest(job, tokenizer, corpus, directory, requests)
        document |= {"scenario_path": str(scenario_path.resolve()), "scenario_sha256": scenario_sha256}
        write_document(directory.analysis, prepared_image_analysis(document))
        document["artifacts"] = {
            "token_ids": {
                "name": directory.token_ids.name,
                "path": str(directory.token_ids),
                "rows": job.count,
                "bytes": directory.token_ids.stat().st_size,
                "sha256": file_sha256(directory.token_ids),
            },
            "analysis": analysis_artifact(directory.analysis),
        }
        write_document(directory.manifest, seal(document))
        log_lines(log, _image_lines(job))
        log_lines(log, source_lines(tokenizer, corpus))
        log_lines(log, artifact_lines({**document["datasets"], **document["artifacts"]}))
        log.info("prepared: %s", directory.manifest)
    return {
        "ok": True,
        "request_count": job.count,
        "text_tokens": job.text_tokens,
        "output_tokens": job.output_tokens,
        "datasets": {job.name: str(requests)},
        "selected_images": {job.name: _image(job)},
        "selection": job.image.search.document(),
        "manifest": str(directory.manifest),
        "analysis": str(directory.analysis),
        "log": str(directory.log("prepare")),
    }


def _identity(job: _Job, corpus: Corpus, tokenizer: Tokenizer) -> str:
    return image_data_sha256(
        job.scenario,
        corpus_sha256=corpus.file_sha256,
        tokenizer_fingerprint=tokenizer.fingerprint,
        parquet_files=parquet_listing(job.parquet_folder),
    )


def _write_rows(path: Path, job: _Job, texts: list[ExactText], progress: Progress) -> None:
    with whole_file(path) as file:
        for position, text in enumerate(texts):
            row = image_row(
                position,
                text.text,
                ref=job.ref,
                images=job.images_per_request,
                text_tokens=job.text_tokens,
                output_tokens=job.output_tokens,
            )
            file.write(orjson.dumps(row) + b"\n")
            progress("Write requests", position + 1, job.count)


def _write_token_ids(path: Path, texts: list[ExactText]) -> None:
    """Token ids of the texts alone, as text data has those of whole prompts."""
    with whole_file(path) as file, pa.ipc.new_file(file, TOKEN_IDS_SCHEMA) as arrow:
        for start in range(0, len(texts), ROWS_PER_BATCH):
            arrow.write_batch(
                token_ids_batch([text.token_ids for text in texts[start : start + ROWS_PER_BATCH]])
            )


def _image(job: _Job) -> dict[str, Any]:
    """Everything about the image but the image."""
    stored, decoded = job.image.stored, job.image.decoded
    return {
        "ref": job.ref,
        "encoding": "base64",
        "byte_length": len(stored.content),
        "sha256": job.sha256,
        "format": decoded.format,
        "mime_type": decoded.mime_type,
        "width": decoded.width,
        "height": decoded.height,
        "parquet_path": str(stored.parquet_path),
        "row_index": stored.row_index,
        "sample_id": stored.sample_id,
        "image_column": stored.image_column,
        "original_path": stored.original_path,
    }


def _image_lines(job: _Job) -> Iterator[str]:
    """What the requests are made of, for the log."""
    yield (
        f"plan: {job.count} requests, {job.name}, {job.images_per_request} images and {job.text_tokens} text tokens "
        f"each, {job.output_tokens} output tokens"
    )
    yield f"image: {orjson.dumps(_image(job)).decode()}"
    yield f"search: {orjson.dumps(job.image.search.document()).decode()}"


def _manifest(
    job: _Job, tokenizer: Tokenizer, corpus: Corpus, directory: RunDirectory, requests: Path
) -> dict[str, Any]:
    """The manifest (reference 6.3) but for scenario file, artifacts and seal."""
    scenario = job.scenario
    config = effective_config(scenario)
    identity = tokenizer.identity()
    encoded = base64.b64encode(job.image.stored.content).decode()
    return {
        "schema_version": "1.0",
        "multimodal_schema_version": MULTIMODAL_SCHEMA_VERSION,
        "plugin_version": plugin_version(),
        "benchmark_mode": "mm",
        "status": "prepared",
        "run_id": directory.run_id,
        "created_at": utc_now(),
        "effective_config": config,
        "effective_config_sha256": canonical_sha256(config),
        "data_sha256": _identity(job, corpus, tokenizer),
        "corpus": {
            "path": scenario.corpus.path,
            "sha256": corpus.file_sha256,
            "rows_used": job.count,
            "field": scenario.corpus.field,
        },
        "tokenizer": {
            **identity,
            "trust_remote_code": scenario.tokenizer.trust_remote_code,
        },
        "request_count": job.count,
        "text_tokens": job.text_tokens,
        "output_tokens": job.output_tokens,
        "content_order": ["image", "text"],
        "image_encoding": "base64",
        "mmmu_parquet_dir": str(job.parquet_folder),
        "parquet_files": parquet_listing(job.parquet_folder),
        "selection": job.image.search.document(),
        "datasets": {
            job.name: {
                "name": requests.name,
                "path": str(requests),
                "bytes": requests.stat().st_size,
                "sha256": file_sha256(requests),
                "rows": job.count,
                "image_count_per_request": job.images_per_request,
                "same_image_within_request": True,
                "same_images_across_requests": True,
                "image": {
                    **_image(job),
                    "data_url": f"data:{job.image.decoded.mime_type};base64,{encoded}",
                },
            }
        },
    }


def inspect_images(
    scenario_path: Path, output_dir: Path | None = None, progress: Progress = silent
) -> dict[str, Any]:
    """Choose the image and leave an `inspected` manifest. Needs no tokenizer, no corpus and no engine."""
    phase = PhaseTimes()
    with phase("choose image"):
        job = _job(scenario_path, output_dir, progress)
    scenario = job.scenario
    directory = create_run_directory(Path(scenario.run.output_dir), scenario.run.run_id)
    with command_log(directory.log("inspect"), Redactor(scenario.service.api_key)) as log:
        summary = {
            "run_id": scenario.run.run_id,
            "mode": "mm",
            "scenario": job.name,
            "request_count": job.count,
            "images_per_request": job.images_per_request,
            "text_tokens": job.text_tokens,
            "output_tokens": job.output_tokens,
            "selected_images": {job.name: _image(job)},
            "selection": job.image.search.document(),
            "sends_requests": False,
            "content_validation_deferred_to_prepare": True,
            "log": str(directory.log("inspect")),
            "manifest": str(directory.manifest),
        }
        write_inspected_manifest(
            directory,
            scenario,
            scenario_path,
            "mm",
            summary,
            multimodal_schema_version=MULTIMODAL_SCHEMA_VERSION,
        )
        log_lines(log, settings_lines(scenario, scenario_path, file_sha256(scenario_path)))
        phase.tell(log)
        log_lines(log, _image_lines(job))
        log.info("inspected: %s", directory.manifest)
    return summary
