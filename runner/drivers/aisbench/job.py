"""What AISBench is told: the job file of `hitlab_aisbench`, made from the scenario. No secret is in it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contract.errors import ScenarioError
from contract.manifest import Manifest
from contract.multimodal import ImageDataset, image_dataset
from contract.scenario import Aisbench, Scenario
from contract.scenario.aisbench_arguments import command_line, forwarded
from contract.scenario.model import DEFAULT_TEMPLATE, PLUGIN_TEMPLATE
from runner.engines.engine import Engine

DEFAULT_WORK_DIR = str(Aisbench.model_fields["work_dir"].default)


def template_of(scenario: Scenario) -> Path | None:
    """The user's template; None: the one that we ship.

    The latter is meant by the plugin's default, and by the place of the plugin's in a checkout that is not here.

    Raises ScenarioError: there is no such file.
    """
    path = Path(scenario.aisbench.config)
    if scenario.aisbench.config == DEFAULT_TEMPLATE:
        return None
    if path.is_file():
        return path
    if path.as_posix().endswith(PLUGIN_TEMPLATE):
        return None
    raise ScenarioError(f"aisbench.config: {path}: no such file; leave it out to use HitLab's own template")


def file_name(text: str) -> str:
    """An abbreviation names files and folders of AISBench's: a separator in it would make others of them."""
    return text.replace("/", "_").replace("\\", "_")


def aisbench_job(
    scenario: Scenario,
    scenario_folder: Path,
    manifest: Manifest,
    engine: Engine,
    *,
    tokenizer: Path,
    config: Path,
    scratch: Path,
) -> dict[str, Any]:
    """The content of the job file.

    Every setting of dataset and model is `fixed` (HitLab's), `chosen` (said in the scenario: counts more than the
    template) or a default (counts less). `scenario_folder` is where relative paths of the template start.
    """
    aisbench, run_id = scenario.aisbench, manifest.directory.run_id
    images = image_dataset(manifest) if manifest.mode == "mm" else None
    work_dir = (scenario_folder / aisbench.work_dir).resolve()
    default_work_dir = (scenario_folder / DEFAULT_WORK_DIR).resolve()
    template = None if images is not None else template_of(scenario)  # it is for texts, as --config is
    chosen_work_dir = work_dir if template is None or work_dir != default_work_dir else None
    return {
        "template": None if template is None else str(template),
        "template_environment": {
            "AISBENCH_PREFIX_CACHE_SCENARIO": manifest.document["scenario_path"],
            "AISBENCH_PREFIX_CACHE_MANIFEST": str(manifest.directory.manifest),
            "AISBENCH_PREFIX_CACHE_WORK_DIR": str(work_dir),
        },
        "config": str(config),
        "folder": str(scenario_folder),
        "scratch": str(scratch),
        "work_dir": None if chosen_work_dir is None else str(chosen_work_dir),
        "arguments": [*forwarded(command_line(aisbench.extra_args)), "--num-warmups", "0"],
        "images": images is not None,
        "dataset": {
            "fixed": {
                "abbr": file_name(aisbench.dataset.abbr or (run_id if images is None else images.name)),
                "full_path": str(manifest.directory.full if images is None else images.requests),
                "input_columns": aisbench.dataset.input_columns,
                "output_column": aisbench.dataset.output_column,
                "prompt_template": aisbench.dataset.prompt_template,
                "pred_role": aisbench.dataset.pred_role,
            },
            "chosen": {},
            "defaults": {},
        },
        "model": {
            "fixed": {
                "attr": aisbench.model.attr,
                "abbr": file_name(aisbench.model.abbr or f"{run_id}-vllm"),
                "path": str(tokenizer),
                "trust_remote_code": scenario.tokenizer.trust_remote_code,
                "model": engine.model,
                "url": engine.inference_url,
                "timeout_seconds": scenario.request_timeout_seconds,
                **({"tls": engine.trust.files()} if engine.inference_url[:6].lower() == "https:" else {}),
                **_image_settings(images, scratch),
            },
            **_model_settings(scenario),
        },
    }


def _image_settings(images: ImageDataset | None, scratch: Path) -> dict[str, Any]:
    """Where the image is, as a data URL in a file: the config of AISBench is no place for megabytes."""
    if images is None:
        return {}
    file = scratch / "image.data-url"
    file.write_text(images.data_url, encoding="ascii")
    return {"image_file": str(file), "images_per_request": images.images_per_request}


def _model_settings(scenario: Scenario) -> Mapping[str, dict[str, Any]]:
    model, driver = scenario.aisbench.model, scenario.driver
    values = {
        "stream": model.stream,
        "max_out_len": model.max_out_len,
        "generation_kwargs": model.generation_kwargs,
        "batch_size": scenario.concurrency,
        "retry": scenario.retries + 1,  # AISBench counts attempts
    }
    said = {name for name in values if name in model.model_fields_set}
    said |= {"batch_size"} if driver.concurrency is not None else set()
    said |= {"retry"} if driver.retries is not None else set()
    return {
        "chosen": {name: value for name, value in values.items() if name in said},
        "defaults": {name: value for name, value in values.items() if name not in said},
    }
