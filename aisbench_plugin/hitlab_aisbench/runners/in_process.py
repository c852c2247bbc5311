"""An AISBench runner that starts no further process for the task.

AISBench's LocalRunner starts one through a shell, which imports everything a second time and cannot have a space in any
of its paths; whether the task succeeded is told to nobody. Here its exceptions are AISBench's own.
"""

from pathlib import Path
from typing import Any

import psutil
from ais_bench.benchmark.registry import TASKS
from ais_bench.benchmark.runners.base import BaseRunner
from ais_bench.benchmark.tasks import openicl_api_infer
from ais_bench.benchmark.tasks.base import TaskStateManager
from ais_bench.benchmark.utils.core.abbr import task_abbr_from_cfg


class InProcessRunner(BaseRunner):
    """Runs the tasks one after the other in this process; worker processes of a task are its own affair."""

    def __init__(self, task: Any, debug: bool = False, **_: Any) -> None:
        super().__init__(task=task, debug=debug)

    def launch(self, tasks: list[dict[str, Any]]) -> list[tuple[str, int]]:
        openicl_api_infer.check_virtual_memory_usage = require_memory
        done = []
        for config in tasks:
            states = Path(config["work_dir"], "status_tmp")
            states.mkdir(parents=True, exist_ok=True)
            name = task_abbr_from_cfg(config)
            manager = TaskStateManager(str(states), name, self.debug)
            TASKS.build({"cfg": config, "type": self.task_cfg["type"]}).run(manager)
            Path(manager.tmp_file).unlink(missing_ok=True)
            states.rmdir()
            done.append((name, 0))
        return done


def require_memory(dataset_bytes: int, threshold_percent: int = 80) -> None:
    """Room for the rows. AISBench refuses when so much of the whole machine is in use, whatever it needs itself.

    A host that serves with a KV cache in its memory is always that full.
    """
    available = psutil.virtual_memory().available
    if dataset_bytes > available * threshold_percent / 100:
        raise MemoryError(f"the rows need {dataset_bytes} bytes, {available} are available")
