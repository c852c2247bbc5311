"""The scenario as it took effect, fit to be stored: defaults and absolute paths in, secrets out."""

from typing import Any

from contract.redaction import api_key_configured, masked_login
from contract.scenario import Scenario
from contract.scenario.defaults import filled_in


def effective_config(scenario: Scenario) -> dict[str, Any]:
    """All sections, with what was left to be derived from other fields.

    `service.api_key` is replaced by `service.api_key_configured` (reference 4.4), logins in addresses by a mask.
    """
    document: dict[str, Any] = filled_in(scenario).model_dump(mode="json")
    service: dict[str, Any] = document["service"]
    service["api_key_configured"] = api_key_configured(service.pop("api_key"))
    for name in ("inference_url", "metrics_url", "reset_url"):
        service[name] = masked_login(service[name]) if service[name] else service[name]
    if service["metrics_urls"]:
        service["metrics_urls"] = [masked_login(url) for url in service["metrics_urls"]]
    return document
