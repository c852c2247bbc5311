"""TLS to an engine: whom to believe, how to show who one is, and why it failed. One answer for all calls of all commands.

The authority is the one that is named, else that of SSL_CERT_FILE or REQUESTS_CA_BUNDLE, else the system's store.
"""

import os
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from http.client import BadStatusLine
from pathlib import Path
from typing import Final

from contract.errors import ScenarioError

AUTHORITY_VARIABLES: Final = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")

_EXPIRED: Final = frozenset({9, 10})  # X509_V_ERR_CERT_NOT_YET_VALID, ..._HAS_EXPIRED
_OTHER_NAME: Final = frozenset({62, 64})  # ..._HOSTNAME_MISMATCH, ..._IP_ADDRESS_MISMATCH
_NO_TLS: Final = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "RECORD_LAYER",
    "PACKET_LENGTH",
    "UNKNOWN_PROTOCOL",
)
_CLIENT_REFUSED: Final = ("CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE")
_TLS_ALERT: Final = "\x15\x03"


@dataclass(frozen=True)
class Trust:
    """Files in PEM. `client_cert` also holds the key, unless `client_key` does.

    `ca_field` and `client_field` are how the user calls the first two.
    """

    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    ca_field: str = "service.ca_file"
    client_field: str = "service.client_cert"

    def authority(self) -> tuple[str, str] | None:
        """The file (or folder of hashed certificates) to believe, and what names it; None: the system's store."""
        if self.ca_file:
            return self.ca_file, self.ca_field
        return next(((os.environ[name], name) for name in AUTHORITY_VARIABLES if os.environ.get(name)), None)

    def files(self) -> dict[str, str | None]:
        """The files themselves, for another process."""
        authority = self.authority()
        return {
            "authority": None if authority is None else authority[0],
            "client_cert": self.client_cert,
            "client_key": self.client_key,
        }

    def context(self) -> ssl.SSLContext:
        """For a client. Raises ScenarioError: a file cannot be used."""
        return _context(self, self.authority())


SYSTEM: Final = Trust()


@lru_cache(maxsize=8)
def _context(trust: Trust, authority: tuple[str, str] | None) -> ssl.SSLContext:
    if authority is None:
        context = ssl.create_default_context()
    else:
        path, field = authority
        folder = Path(path).is_dir()
        try:
            context = ssl.create_default_context(
                cafile=None if folder else path, capath=path if folder else None
            )
        except ssl.SSLError as error:
            raise ScenarioError(f"{field}: {path} holds no certificate of an authority in PEM") from error
        except OSError as error:
            raise ScenarioError(f"{field}: {path} cannot be read ({error.strerror})") from error
    context.set_alpn_protocols(["http/1.1"])
    if trust.client_cert:
        _show_who_we_are(context, trust, trust.client_cert)
    return context


def _show_who_we_are(context: ssl.SSLContext, trust: Trust, certificate: str) -> None:
    def no_passphrase() -> str:
        raise ScenarioError(
            f"{trust.client_field}: the key of {certificate} has a passphrase; name one that has none"
        )

    try:
        context.load_cert_chain(certificate, trust.client_key, password=no_passphrase)
    except ssl.SSLError as error:
        raise ScenarioError(
            f"{trust.client_field}: {certificate} holds no certificate and key in PEM that belong together"
            + (
                f" with {trust.client_key}"
                if trust.client_key
                else "; a key in a file of its own is client_key"
            )
        ) from error
    except OSError as error:
        files = " or ".join(filter(None, (certificate, trust.client_key)))
        raise ScenarioError(f"{trust.client_field}: {files} cannot be read ({error.strerror})") from error


def tls_problem(error: BaseException, trust: Trust) -> str | None:
    """Why TLS failed, in one line with what to set; None: it did not."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _not_believed(cause, trust)
        if isinstance(cause, ssl.SSLError):
            return _refused(cause, trust)
        if isinstance(cause, BadStatusLine) and str(cause).startswith(_TLS_ALERT):
            return "speaks TLS there; write https:// in the address"
    return None


def _not_believed(error: ssl.SSLCertVerificationError, trust: Trust) -> str:
    if error.verify_code in _EXPIRED:
        return f"its certificate is not valid now ({error.verify_message}); renew it, or set this machine's clock"
    if error.verify_code in _OTHER_NAME:
        return (
            f"its certificate is for another name ({error.verify_message}); write a name of it in the address"
        )
    where = (
        "the system's store" if (authority := trust.authority()) is None else f"{authority[1]} {authority[0]}"
    )
    return (
        f"its certificate is not trusted by {where} ({error.verify_message}); set {trust.ca_field} to the authority's "
        "certificate"
    )


def _refused(error: ssl.SSLError, trust: Trust) -> str:
    reason = error.reason or type(error).__name__
    if any(word in reason for word in _NO_TLS):
        return f"no TLS there ({reason}); write http:// in the address"
    if "ALERT" in reason and any(word in reason for word in _CLIENT_REFUSED):
        wanted = (
            f"refuses the certificate of {trust.client_field} ({reason}); name one that it accepts"
            if trust.client_cert
            else f"asks for a certificate of the client ({reason}); set {trust.client_field}"
        )
        return f"it {wanted}"
    if isinstance(error, ssl.SSLEOFError):
        # Also where a server has refused us, and its reason came too late to be read.
        return (
            "the connection ended in the middle of TLS; does it want a certificate of the client "
            f"({trust.client_field}), or has it no TLS (http://)?"
        )
    return f"TLS failed ({reason})"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An exception, and those that it was raised from or holds; libraries wrap in both ways."""
    waiting, seen = [error], set[int]()
    while waiting:
        current = waiting.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        held = (current.__cause__, current.__context__, getattr(current, "reason", None), *current.args)
        waiting += [item for item in held if isinstance(item, BaseException)]
