"""One HTTP call that ends: all of it within its time, and within its size, whatever the other side does.

For everything but the load itself. A timeout of `requests` is one of each read: a server that sends a byte now and then,
or `100 Continue` for ever, is never late. Here a second thread cuts the connection when the time is over.
"""

import socket
import ssl
import threading
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase, HTTPBasicAuth
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from contract.foreign import LARGEST_BODY
from contract.trust import SYSTEM, Trust, tls_problem

_CHUNK: Final = 1 << 16

Failure = Literal["timeout", "unreachable", "too_large", "no_answer", "tls"]
"""timeout: not complete in time; unreachable: no connection, or no address; too_large: more bytes than allowed;
no_answer: the connection ended before the answer did, or what came is not HTTP; tls: who answers is not believed, or does
not believe us: the text says what to do."""


class CallError(Exception):
    """There is no complete answer. `str()` is one short line without the address and its secrets."""

    def __init__(self, kind: Failure, text: str) -> None:
        self.kind = kind
        super().__init__(text)


@dataclass(frozen=True)
class Reply:
    """A complete answer, whatever its status. Names of `headers` are found in any case."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def media_type(self) -> str:
        """Of the content, in lower case, without parameters; "" where it is not told."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    @property
    def leads_to(self) -> str | None:
        """The address that a redirect names; None where the answer is none."""
        return self.headers.get("Location") if self.status in (301, 302, 303, 307, 308) else None

    @property
    def text(self) -> str:
        """The content as UTF-8, what is none replaced."""
        return self.content.decode("utf-8", "replace")


def call(
    method: str,
    url: str,
    *,
    seconds: float,
    largest: int = LARGEST_BODY,
    key: str | None = None,
    login: tuple[str, str] | None = None,
    trust: Trust = SYSTEM,
    headers: Mapping[str, str] | None = None,
    params: Mapping[str, str] | None = None,
    json: Any = None,
) -> Reply:
    """Ask once, on a connection of its own. Proxies of the environment are not used, redirects are not followed.

    Args:
        seconds: for the whole of it: connecting, asking, and the answer to its last byte.
        largest: bytes of the answer's content.
        key: sent as a bearer token. login: user and password, sent instead of it.
        trust: for an address with https.

    Raises:
        CallError: there is no complete answer within time and size. ScenarioError: a file of `trust` cannot be used.
    """
    tls = trust.context() if url[:6].lower() == "https:" else None
    with requests.Session() as session, _Deadline(seconds) as deadline:
        # The load goes straight to the engine, and so does this.
        session.trust_env = False
        session.mount("http://", _Adapter())
        session.mount("https://", _Adapter(tls))
        try:
            with session.request(
                method,
                url,
                headers=dict(headers or {}),
                params=params,
                json=json,
                auth=_authentication(key, login),
                timeout=seconds,
                stream=True,
                allow_redirects=False,
            ) as response:
                content = bytearray()
                for chunk in response.iter_content(_CHUNK):
                    content += chunk
                    if len(content) > largest:
                        raise CallError("too_large", f"more than {_size(largest)}")
        except (requests.RequestException, OSError, ValueError) as error:
            raise _failure(error, deadline, tls is not None, trust) from error
        if deadline.over:
            # A body without a length ends with its connection, and that was cut.
            raise _late(seconds)
        return Reply(response.status_code, response.headers, bytes(content))


def _failure(error: Exception, deadline: "_Deadline", secure: bool, trust: Trust) -> CallError:
    cause: BaseException = error
    while (inner := cause.__cause__ or cause.__context__) is not None:
        cause = inner
    # A stall in the body arrives as a connection error around a timeout.
    if deadline.over or isinstance(error, requests.Timeout) or isinstance(cause, TimeoutError):
        return _late(deadline.seconds)
    untrusted = tls_problem(error, trust)
    if untrusted is not None:
        return CallError("tls", untrusted)
    # A short name: the texts of `requests` repeat the URL, credentials included.
    text = cause.strerror if isinstance(cause, OSError) and cause.strerror else type(cause).__name__
    if not deadline.connected:
        return CallError("unreachable", text)
    if isinstance(error, requests.ConnectionError) and isinstance(cause, ConnectionError):
        wanted = f"a certificate of the client ({trust.client_field})" if secure else "https://"
        text = f"the connection was closed without an answer; does it want {wanted}?"
    return CallError("no_answer", text)


def _late(seconds: float) -> CallError:
    return CallError("timeout", f"no complete answer within {seconds:g} s")


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count} bytes"


def _authentication(key: str | None, login: tuple[str, str] | None) -> AuthBase:
    return _Bearer(key) if login is None else HTTPBasicAuth(*(part.encode() for part in login))


class _Bearer(AuthBase):
    """Sends the key where there is one; a user in the address does not take its place."""

    def __init__(self, key: str | None) -> None:
        self._key = key

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._key:
            request.headers["Authorization"] = f"Bearer {self._key}"
        return request


class _Deadline:
    """The end of a call's time: cuts the connections that it has opened. In the thread that makes the call."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.over = False
        self._sockets: list[socket.socket] = []
        self._changing = threading.Lock()
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.daemon = True

    def __enter__(self) -> "_Deadline":
        self._outer = _DEADLINE.set(self)
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._changing:
            for opened in self._sockets:
                opened.close()
            self._sockets.clear()
        _DEADLINE.reset(self._outer)

    @property
    def connected(self) -> bool:
        return bool(self._sockets)

    def holds(self, opened: socket.socket) -> None:
        """A connection has been opened."""
        with self._changing:
            self._sockets.append(opened)
            if self.over:
                _shut(opened)

    def _cut(self) -> None:
        with self._changing:
            self.over = True
            for opened in self._sockets:
                _shut(opened)


def _shut(opened: socket.socket) -> None:
    """End a connection under a thread that reads from it."""
    try:
        opened.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the other side was faster


_DEADLINE: ContextVar[_Deadline] = ContextVar("deadline of the call")


class _PlainConnection(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        return _held(super()._new_conn())


class _TlsConnection(HTTPSConnection):
    def _new_conn(self) -> socket.socket:
        return _held(super()._new_conn())


def _held(opened: socket.socket) -> socket.socket:
    """A second handle on the connection for the deadline: TLS takes the first away, before its handshake."""
    _DEADLINE.get().holds(opened.dup())
    return opened


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _PlainConnection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class _Adapter(HTTPAdapter):
    """Uses one TLS context, and nothing of what `requests` would trust by itself."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        super().__init__()

    def cert_verify(self, *_: Any) -> None:
        """The context knows whom to trust."""

    def get_connection_with_tls_context(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> Any:
        options = {"ssl_context": self._tls} if self._tls is not None else {}
        return self.poolmanager.connection_from_url(request.url, pool_kwargs=options)

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        self.poolmanager.pool_classes_by_scheme = {"http": _PlainPool, "https": _TlsPool}
