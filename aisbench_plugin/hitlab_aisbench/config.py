"""From a user's AISBench template and HitLab's settings to the config that AISBench reads.

The template is Python that defines `datasets`, `models` and, where wanted, `infer`, `summarizer`, `work_dir` and other
values. It runs as it is, also AISBench's `read_base`. The result is one file of literals; classes become their import
path, which is what AISBench's own dump does with them.
"""

import inspect
import pprint
import runpy
from pathlib import Path
from typing import Any

FIXED, CHOSEN, DEFAULTS = "fixed", "chosen", "defaults"
"""Whose value counts: HitLab's always; the scenario's over the template's; the template's over the default."""

Settings = dict[str, dict[str, Any]]


class TemplateError(ValueError):
    """The template is not usable. One line: what, and what to do."""


def load_template(path: Path) -> dict[str, Any]:
    """What the template defines: its values by name, classes as they are."""
    source = path.read_text(encoding="utf-8")
    try:
        if "read_base" in source or "_base_" in source:
            from mmengine.config import Config

            config = Config.fromfile(str(path), format_python_code=False)
            values = {name: config[name] for name in config}  # indexing imports what was named
        else:
            values = runpy.run_path(str(path))
    except BaseException as error:  # a template may do anything, even exit
        if isinstance(error, KeyboardInterrupt):
            raise
        raise TemplateError(f"{path}: {type(error).__name__}: {' '.join(str(error).split())}") from error
    data = (dict, list, tuple, str, int, float, bool)
    return {
        name: value for name, value in values.items() if not name.startswith("_") and isinstance(value, data)
    }


def merge(
    template: dict[str, Any],
    dataset: Settings,
    model: Settings,
    work_dir: str | None,
    *,
    images: bool = False,
) -> dict[str, Any]:
    """The template with HitLab's dataset and model in it, those of requests with `images` or of texts.

    `work_dir` None: the template's own, or AISBench's default.
    """
    merged = dict(template)
    merged["datasets"] = [_dataset(_only(template, "datasets"), dataset, images=images)]
    merged["models"] = [_model(_only(template, "models"), model, images=images)]
    merged["infer"] = _infer(template.get("infer"))
    merged.setdefault("summarizer", {"attr": "performance"})
    if work_dir is not None:
        merged["work_dir"] = work_dir
    merged.setdefault("work_dir", "outputs/default")
    return {name: plain(value) for name, value in merged.items()}


def _only(template: dict[str, Any], name: str) -> dict[str, Any]:
    items = template.get(name, [{}])
    if not isinstance(items, (list, tuple)) or len(items) != 1 or not isinstance(items[0], dict):
        count = len(items) if isinstance(items, (list, tuple)) else "no"
        raise TemplateError(f"{name} must be a list of exactly one dict; it has {count} items")
    return dict(items[0])


def _dataset(template: dict[str, Any], settings: Settings, *, images: bool) -> dict[str, Any]:
    from ais_bench.benchmark.openicl.icl_evaluator import AccEvaluator
    from ais_bench.benchmark.openicl.icl_prompt_template import PromptTemplate
    from ais_bench.benchmark.openicl.icl_retriever import ZeroRetriever

    from hitlab_aisbench.datasets.images import ImageDataset
    from hitlab_aisbench.datasets.prefix_cache import PrefixCacheDataset
    from hitlab_aisbench.openicl.icl_inferencer.prefix_cache import PrefixCacheInferencer

    for name in ("k", "n"):
        if template.get(name, 1) != 1:
            raise TemplateError(
                f"datasets[0].{name} is {template[name]!r}; every request is sent once, remove it"
            )
    merged = _combined(template, settings)
    merged["type"] = _own(template.get("type"), ImageDataset if images else PrefixCacheDataset)
    # Rows and prompts have to be the prepared ones; what else the template says of reading and evaluating stays.
    infer = dict(template.get("infer_cfg") or {})
    inferencer = dict(infer.get("inferencer") or {})
    inferencer["type"] = _own(inferencer.get("type"), PrefixCacheInferencer)
    infer.update(
        prompt_template={"type": PromptTemplate, "template": merged.pop("prompt_template")},
        retriever={"type": ZeroRetriever},
        inferencer=inferencer,
    )
    merged["infer_cfg"] = infer
    reader = dict(template.get("reader_cfg") or {})
    for name in ("train_range", "test_range"):
        reader.pop(name, None)  # all rows are sent
    reader.update(input_columns=merged.pop("input_columns"), output_column=merged.pop("output_column"))
    merged["reader_cfg"] = reader
    evaluation = {"evaluator": {"type": AccEvaluator}, **dict(template.get("eval_cfg") or {})}
    merged["eval_cfg"] = {**evaluation, "pred_role": merged.pop("pred_role")}
    return merged


def _model(template: dict[str, Any], settings: Settings, *, images: bool) -> dict[str, Any]:
    from hitlab_aisbench.models.completions import PrefixCacheCompletions
    from hitlab_aisbench.models.image_chat import ImageChat

    merged = _combined(template, settings)
    for name in ("api_key", "host_ip", "host_port", "enable_ssl"):
        merged.pop(name, None)  # the key is in the environment, the rest in the address
    merged["generation_kwargs"] = {
        **settings[DEFAULTS].get("generation_kwargs", {}),
        **(template.get("generation_kwargs") or {}),
        **settings[CHOSEN].get("generation_kwargs", {}),
    }
    merged["type"] = _own(template.get("type"), ImageChat if images else PrefixCacheCompletions)
    return merged


def _combined(template: dict[str, Any], settings: Settings) -> dict[str, Any]:
    return {**settings[DEFAULTS], **template, **settings[CHOSEN], **settings[FIXED]}


def _infer(template: dict[str, Any] | None) -> dict[str, Any]:
    from ais_bench.benchmark.partitioners import NaivePartitioner
    from ais_bench.benchmark.tasks import OpenICLApiInferTask

    from hitlab_aisbench.runners.in_process import InProcessRunner

    infer = dict(template or {})
    infer.setdefault("partitioner", {"type": NaivePartitioner})
    runner = dict(infer.get("runner") or {})
    runner.setdefault("type", InProcessRunner)
    task = dict(runner.get("task") or {})
    task["type"] = _own(task.get("type"), OpenICLApiInferTask)
    infer["runner"] = {**runner, "task": task}
    return infer


def _own(found: Any, base: type) -> Any:
    """The template's class where it is derived from ours, else ours: no other knows the rows."""
    return found if inspect.isclass(found) and issubclass(found, base) else base


def plain(value: Any) -> Any:
    """`value` as literals; classes and functions as their import path."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return (
            type(value)(plain(item) for item in value)
            if type(value) in (list, tuple)
            else [*map(plain, value)]
        )
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if inspect.isclass(value) or inspect.isroutine(value):
        return f"{value.__module__}.{value.__qualname__}"
    raise TemplateError(f"a value of {type(value).__name__} cannot be written into a config: {value!r}")


def source(config: dict[str, Any]) -> str:
    """The config as Python."""
    return "".join(
        f"{name} = {pprint.pformat(value, width=110, sort_dicts=False)}\n\n" for name, value in config.items()
    )
