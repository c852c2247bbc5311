"""An engine that is already there; the scenario says where."""

from contract.scenario import Service
from runner.engines.engine import Engine


def external_engine(service: Service) -> Engine:
    return Engine(
        kind="external",
        inference_url=service.inference_url,
        metrics_urls=tuple(service.metrics_urls or (service.metrics_url,)),
        reset_url=service.reset_url or None,
        model=service.model,
        ranks=service.dp_size,
    )
