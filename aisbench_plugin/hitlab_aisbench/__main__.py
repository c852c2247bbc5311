"""Start AISBench for HitLab: `python -m hitlab_aisbench JOB FD`.

JOB is a JSON file that says what to do, and holds no secret. Everything is imported and the config is written first; then
JSON goes to the file descriptor FD, and AISBench starts when the name of an empty folder for its results comes in on
stdin, a line. HitLab holds the other end of stdin for as long as it lives: when it closes, however that happened, the
whole process group is ended.
"""

import json
import os
import signal
import sys
import threading
import types
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hitlab_aisbench import PROTOCOL
from hitlab_aisbench.config import TemplateError, load_template, merge, source

EXIT_TEMPLATE = 3


def main(job_path: str, descriptor: int) -> None:
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    with os.fdopen(descriptor, "w", encoding="utf-8") as answer:
        try:
            ready = prepare(job)
        except TemplateError as error:
            json.dump({"error": str(error)}, answer)
            sys.exit(EXIT_TEMPLATE)
        json.dump(ready, answer)
    folder = _line_of_stdin()
    if folder is None:
        return
    threading.Thread(target=_end_with_hitlab, name="lifeline", daemon=True).start()
    run(job, Path(folder))


def prepare(job: dict[str, Any]) -> dict[str, Any]:
    """Write the config; returns what AISBench will do, as far as HitLab cannot know it."""
    # What AISBench needs later anyway: what is missing shows before anything has been sent.
    import ais_bench.benchmark.cli.config_manager
    import ais_bench.benchmark.cli.workers  # noqa: F401

    template = Path(job["template"] or Path(__file__).with_name("template.py"))
    os.environ.update(job["template_environment"])
    os.chdir(job["folder"])
    _offer_the_names_of_the_plugin(job)
    config = merge(
        load_template(template), job["dataset"], job["model"], job["work_dir"], images=job["images"]
    )
    Path(job["config"]).write_text(source(config), encoding="utf-8")
    dataset, model = config["datasets"][0], config["models"][0]
    return {
        "protocol": PROTOCOL,
        "aisbench_version": version("ais_bench_benchmark"),
        "work_dir": str(Path(job["folder"], config["work_dir"]).resolve()),
        "dataset_abbr": dataset["abbr"],
        "model_abbr": model["abbr"],
        "batch_size": model["batch_size"],
        "stream": model["stream"],
        "attempts": model["retry"],
        "request_rate": model.get("request_rate", 0),
    }


def run(job: dict[str, Any], folder: Path) -> None:
    """AISBench's own command line, with its results in `folder`."""
    from ais_bench.benchmark.cli.task_manager import TaskManager

    os.chdir(job["scratch"])  # AISBench leaves files where it is
    sys.argv = [
        "ais_bench",
        job["config"],
        "--mode",
        "perf",
        "--work-dir",
        str(folder.parent),
        *job["arguments"],
    ]
    manager = TaskManager()
    # AISBench would name the folder after the second in which it starts, which two runs may share.
    manager.args.dir_time_str = manager.args.cfg_time_str = folder.name
    manager.run()


def _offer_the_names_of_the_plugin(job: dict[str, Any]) -> None:
    """Templates made for AISBench's prefix-cache plugin call two functions of it; HitLab's settings answer instead."""
    package, module = "ais_bench_prefix_cache", "ais_bench_prefix_cache.config"

    def settings(section: str) -> dict[str, Any]:
        return {name: value for part in ("defaults", "chosen") for name, value in job[section][part].items()}

    config = types.ModuleType(module)
    config.build_dataset_config = lambda *_: settings("dataset")  # type: ignore[attr-defined]
    config.build_model_config = lambda *_: settings("model")  # type: ignore[attr-defined]
    parent = types.ModuleType(package)
    parent.config = config  # type: ignore[attr-defined]
    sys.modules.update({package: parent, module: config})


def _line_of_stdin() -> str | None:
    """Without sys.stdin: AISBench forks, and a fork while a thread holds the lock of a Python file would hang."""
    line = b""
    while not line.endswith(b"\n"):
        read = os.read(0, 4096)
        if not read:
            return None
        line += read
    return line.decode("utf-8").rstrip("\n")


def _end_with_hitlab() -> None:
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGTERM)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
