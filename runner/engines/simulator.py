"""The simulator as the engine of a run. Its model, ranks, tokenizer and block size are the scenario's."""

from typing import Any

from contract.scenario import Scenario
from runner.engines.engine import Engine


def simulator_settings(scenario: Scenario, api_key: str, *, images: bool = False) -> dict[str, Any]:
    """Options of the simulator that stand in for the engine the scenario describes; `images`: one that takes them."""
    engine, tokenizer = scenario.engine, scenario.tokenizer
    settings = {
        "model_name": scenario.service.model,
        "tokenizer": tokenizer.path,
        "tokenizer_revision": tokenizer.revision,
        "trust_remote_code": tokenizer.trust_remote_code,
        "ranks": scenario.service.dp_size,
        "block_size": tokenizer.block_size,
        "blocks_per_rank": engine.blocks_per_rank,
        # As long as the pool can hold: whether a request fits is then a matter of the cache alone.
        "max_model_len": max(2, (engine.blocks_per_rank - 1) * tokenizer.block_size),
        "prefill_tokens_per_second": engine.prefill_tokens_per_second,
        "decode_tokens_per_second": engine.decode_tokens_per_second,
        "speed_factor": engine.speed_factor,
        "multimodal": images,
    }
    return settings | ({"api_key": api_key} if api_key else {})


def simulator_engine(scenario: Scenario, url: str) -> Engine:
    """The engine that listens at `url`."""
    return Engine(
        kind="simulator",
        inference_url=f"{url}/v1/completions",
        metrics_urls=(f"{url}/metrics",),
        reset_url=f"{url}/reset_prefix_cache",
        model=scenario.service.model,
        ranks=scenario.service.dp_size,
    )
