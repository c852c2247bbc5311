"""A vLLM that the runner starts in a container of its own and ends after the run (design, sections 6 and 10)."""

from runner.engines.vllm.managed import managed_engine

__all__ = ["managed_engine"]
