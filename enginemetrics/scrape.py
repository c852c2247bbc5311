"""Fetch metrics pages. The only module of this package that touches the network."""

import os
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import requests
from requests.auth import AuthBase, HTTPBasicAuth

from contract.errors import ServiceError
from contract.foreign_text import presentable

_ACCEPT: Final = "text/plain;version=0.0.4"
_LARGEST: Final = 64 * 2**20
_CHUNK: Final = 1 << 16


class _Bearer(AuthBase):
    """Sends the key, and keeps `requests` from replacing it with an entry of ~/.netrc."""

    def __init__(self, key: str | None) -> None:
        self._key = key

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._key:
            request.headers["Authorization"] = f"Bearer {self._key}"
        return request


def fetch(
    urls: str | Sequence[str],
    *,
    api_key: str | None = None,
    logins: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    timeout_seconds: float = 10.0,
) -> list[str]:
    """The text behind each metrics URL, in order.

    Proxies of the environment are not used: the load goes straight to the engine, and so does this. Redirects are not
    followed: another engine's counters would be read.

    Args:
        logins: user and password for the addresses that want them instead of the key.
        timeout_seconds: for the whole of each answer, connecting included.

    Raises:
        ServiceError: anything but a complete 200 answer with Prometheus text.
    """
    with requests.Session() as session:
        session.trust_env = False
        return [
            _fetch_one(session, url, _authentication(logins.get(url), api_key), timeout_seconds)
            for url in ([urls] if isinstance(urls, str) else urls)
        ]


def redirected(url: str, response: requests.Response) -> str:
    """The line for an answer that leads elsewhere."""
    target = presentable(str(response.headers.get("Location", "")))
    return f"{_without_credentials(url)}: HTTP {response.status_code}, leads to {target}; name that address itself"


def _authentication(login: tuple[str, str] | None, api_key: str | None) -> AuthBase:
    return _Bearer(api_key) if login is None else HTTPBasicAuth(*(part.encode() for part in login))


def _fetch_one(session: requests.Session, url: str, auth: AuthBase, timeout_seconds: float) -> str:
    where = _without_credentials(url)
    deadline = time.monotonic() + timeout_seconds
    body = bytearray()
    try:
        # trust_env is off, so a private certificate authority has to be named here.
        verify: bool | str = os.environ.get("SSL_CERT_FILE") or True
        with session.get(
            url,
            headers={"Accept": _ACCEPT},
            auth=auth,
            timeout=timeout_seconds,
            verify=verify,
            stream=True,
            allow_redirects=False,
        ) as response:
            if response.is_redirect:
                raise ServiceError(redirected(url, response))
            if response.status_code != requests.codes.ok:
                raise ServiceError(
                    f"{where}: HTTP {response.status_code} instead of metrics; check service.metrics_url"
                    + (" and the API key" if response.status_code in (401, 403) else "")
                )
            kind = response.headers.get("Content-Type", "text/plain").partition(";")[0].strip().lower()
            if kind not in ("text/plain", "application/openmetrics-text", ""):
                raise ServiceError(
                    f"{where}: answers {presentable(kind, 60)}, not Prometheus text; check service.metrics_url"
                )
            for chunk in response.iter_content(_CHUNK):
                body += chunk
                if time.monotonic() > deadline:
                    raise requests.Timeout
                if len(body) > _LARGEST:
                    raise ServiceError(f"{where}: more than {_LARGEST >> 20} MiB; this is no metrics page")
    except (requests.RequestException, OSError, ValueError) as error:
        cause = _innermost(error)
        # A stall in the body arrives as a connection error around a timeout.
        if isinstance(error, requests.Timeout) or isinstance(cause, TimeoutError):
            what = f"no complete answer within {timeout_seconds:g} s; check that the engine runs and is not stalled"
        else:
            what = (
                f"cannot read metrics ({_short(cause)}); check service.metrics_url and that the engine runs"
            )
        raise ServiceError(f"{where}: {what}") from error
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ServiceError(f"{where}: not UTF-8 text; check service.metrics_url") from error


def _without_credentials(url: str) -> str:
    """The URL as a message may show it: no user, password or query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "metrics URL"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _innermost(error: BaseException) -> BaseException:
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return error


def _short(cause: BaseException) -> str:
    """A short name: the texts of `requests` repeat the URL, credentials included."""
    return cause.strerror if isinstance(cause, OSError) and cause.strerror else type(cause).__name__
