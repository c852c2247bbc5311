"""The scenario as it took effect, fit to be stored: defaults and absolute paths in, secrets out."""

from typing import Any

from contract.redaction import service_api_key
from contract.scenario import Scenario


def effective_config(scenario: Scenario) -> dict[str, Any]:
    """All sections; `service.api_key` is replaced by `service.api_key_configured` (reference 4.4)."""
    document: dict[str, Any] = scenario.model_dump(mode="json")
    document["service"]["api_key_configured"] = bool(service_api_key(document["service"].pop("api_key")))
    return document
