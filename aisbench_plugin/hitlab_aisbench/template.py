"""The template that is used when a scenario names none. A template of your own may start as a copy of this file.

HitLab fills in the prepared requests, the address and what the scenario says of the model; everything else that is said
here reaches AISBench as it stands.
"""

from ais_bench.benchmark.partitioners import NaivePartitioner
from ais_bench.benchmark.tasks import OpenICLApiInferTask

from hitlab_aisbench.datasets.prefix_cache import PrefixCacheDataset
from hitlab_aisbench.models.completions import PrefixCacheCompletions
from hitlab_aisbench.runners.in_process import InProcessRunner

datasets = [{"type": PrefixCacheDataset}]
models = [{"type": PrefixCacheCompletions}]
infer = {
    "partitioner": {"type": NaivePartitioner},
    "runner": {"type": InProcessRunner, "task": {"type": OpenICLApiInferTask}},
}
summarizer = {"attr": "performance"}
