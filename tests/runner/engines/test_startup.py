"""Steps of a start, from lines as vLLM writes them."""

import pytest

from runner.engines.vllm.startup import startup_step

SHARD = "model-00001-of-00004.safetensors"


@pytest.mark.parametrize(
    ("log", "step"),
    [
        ("", None),
        ("INFO 11-30 10:00:00 [api_server.py:1] hello\n", None),
        (
            "(EngineCore pid=7) INFO 11-30 10:00:00 [gpu_model_runner.py:50] Starting to load model Qwen/Qwen3-8B...\n",
            ("load Qwen/Qwen3-8B, downloading what is not there", None),
        ),
        (
            f"{SHARD}:  12%|█▏        | 604M/4.98G [00:10<01:15, 57.9MB/s]\r{SHARD}:  45%|████▌     | 2.24G/4.98G",
            (SHARD, 45),
        ),
        (
            "\rLoading safetensors checkpoint shards:  25% Completed | 1/4 [00:01<00:03,  1.2s/it]\n",
            ("Loading safetensors checkpoint shards", 25),
        ),
        (
            "INFO 11-30 10:00:00 [weight_utils.py:5] Time spent downloading weights for Qwen/Qwen3-8B: 312.1 seconds\n",
            ("downloaded Qwen/Qwen3-8B", None),
        ),
        (
            "Capturing CUDA graphs (decode, FULL):  50%|█████     | 17/35\n",
            ("Capturing CUDA graphs (decode, FULL)", 50),
        ),
        (
            "INFO 11-30 10:00:00 [kv_cache_utils.py:1] GPU KV cache size: 567,890 tokens\n",
            ("KV cache of 567,890 tokens", None),
        ),
        ("utilization is 250% of something", None),
    ],
)
def test_steps(log: str, step: tuple[str, int | None] | None) -> None:
    assert startup_step(log) == step


def test_the_last_line_that_tells_something_counts() -> None:
    assert startup_step(
        "Loading shards:  99% Completed\nTime spent downloading weights for m: 3 seconds\nother\n"
    ) == (
        "downloaded m",
        None,
    )
