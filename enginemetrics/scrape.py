"""Fetch metrics pages. The only module of this package that touches the network."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from contract.errors import NotThisEngineError, ServiceError
from contract.foreign_text import presentable
from contract.http_call import CallError, Reply, call
from contract.trust import SYSTEM, Trust

_ACCEPT: Final = {"Accept": "text/plain;version=0.0.4"}


def fetch(
    urls: str | Sequence[str],
    *,
    api_key: str | None = None,
    logins: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    trust: Trust = SYSTEM,
    timeout_seconds: float = 10.0,
    headers: Mapping[str, str] = MappingProxyType({}),
    setting: str = "service.metrics_url",
) -> list[str]:
    """The text behind each metrics URL, in order.

    Proxies of the environment are not used: the load goes straight to the engine, and so does this. Redirects are not
    followed: another engine's counters would be read.

    Args:
        logins: user and password for the addresses that want them instead of the key.
        trust: for addresses with https.
        timeout_seconds: for the whole of each answer, connecting included.
        headers: to send beside those of a scrape.
        setting: what names these URLs to the user, for messages.

    Raises:
        NotThisEngineError: HTTP 404.
        ServiceError: anything but a complete 200 answer with Prometheus text.
    """
    return [
        _fetch_one(url, logins.get(url), api_key, trust, timeout_seconds, {**headers, **_ACCEPT}, setting)
        for url in ([urls] if isinstance(urls, str) else urls)
    ]


def redirected(url: str, reply: Reply) -> str:
    """The line for an answer that leads elsewhere."""
    target = presentable(reply.leads_to or "")
    return f"{_without_credentials(url)}: HTTP {reply.status}, leads to {target}; name that address itself"


def _fetch_one(
    url: str,
    login: tuple[str, str] | None,
    api_key: str | None,
    trust: Trust,
    timeout_seconds: float,
    headers: Mapping[str, str],
    setting: str,
) -> str:
    where = _without_credentials(url)
    try:
        reply = call(
            "GET", url, seconds=timeout_seconds, key=api_key, login=login, headers=headers, trust=trust
        )
    except CallError as error:
        advice = {
            "tls": str(error),
            "timeout": f"{error}; check that the engine runs and is not stalled",
            "too_large": f"{error}; this is no metrics page",
        }
        otherwise = f"cannot read metrics ({error}); check {setting} and that the engine runs"
        raise ServiceError(f"{where}: {advice.get(error.kind, otherwise)}") from error
    if reply.leads_to is not None:
        raise ServiceError(redirected(url, reply))
    if reply.status == 404:
        raise NotThisEngineError(
            f"{where}: HTTP 404, there is no metrics page: a router (smg, sglang-router), a proxy or another server "
            f"answers here; name the engine's own page ({setting})"
        )
    if reply.status != 200:
        raise ServiceError(
            f"{where}: HTTP {reply.status} instead of metrics; check {setting}"
            + (" and the API key" if reply.status in (401, 403) else "")
        )
    if reply.media_type not in ("text/plain", "application/openmetrics-text", ""):
        raise ServiceError(
            f"{where}: answers {presentable(reply.media_type, 60)}, not Prometheus text; check {setting}"
        )
    try:
        return reply.content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ServiceError(f"{where}: not UTF-8 text; check {setting}") from error


def _without_credentials(url: str) -> str:
    """The URL as a message may show it: no user, password or query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "metrics URL"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
