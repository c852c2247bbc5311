"""An engine that is already there; the scenario says where."""

from contract.errors import ScenarioError
from contract.redaction import learn, login_of, login_secrets, without_login
from contract.scenario import Service
from contract.trust import Trust
from runner.engines.engine import Engine


def external_engine(service: Service) -> Engine:
    """Raises ScenarioError: the address of the load holds a user or password, which it has no use for, or a file for
    https cannot be used."""
    if login_of(service.inference_url):
        raise ScenarioError(
            "service.inference_url: holds a user or password; remove it, and give the key by service.api_key or "
            "OPENAI_API_KEY"
        )
    metrics_urls = tuple(service.metrics_urls or (service.metrics_url,))
    urls = [*metrics_urls, *([service.reset_url] if service.reset_url else [])]
    learn(*login_secrets(urls))
    trust = Trust(service.ca_file, service.client_cert, service.client_key)
    if any(url.lower().startswith("https:") for url in (service.inference_url, *urls)):
        trust.context()
    return Engine(
        kind="external",
        inference_url=service.inference_url,
        metrics_urls=tuple(map(without_login, metrics_urls)),
        reset_url=without_login(service.reset_url) if service.reset_url else None,
        model=service.model,
        ranks=service.dp_size,
        trust=trust,
        metrics_setting="service.metrics_urls" if service.metrics_urls else "service.metrics_url",
        logins={without_login(url): login for url in urls if (login := login_of(url))},
    )
