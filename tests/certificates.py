"""Certificates for tests, made with openssl: an authority of one's own, and what it signs."""

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


@dataclass(frozen=True)
class Signed:
    """Certificate and key, in files of their own and in one."""

    certificate: Path
    key: Path
    both: Path


class Authority:
    """Signs certificates in a folder of its own; `certificate` is what others have to believe."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.certificate, self._key = folder / "ca.pem", folder / "ca.key"
        _openssl(
            "req", "-x509", *NEW_KEY, "-nodes", "-keyout", self._key, "-out", self.certificate, "-days", "2",
            "-subj", f"/CN={name}", "-addext", "basicConstraints=critical,CA:TRUE",
        )  # fmt: skip

    def sign(
        self,
        name: str,
        *,
        names: str = "IP:127.0.0.1,DNS:localhost",
        expired: bool = False,
        passphrase: str = "",
    ) -> Signed:
        """A certificate for `names`; `expired`: since years."""
        key, certificate, request = (self._folder / f"{name}.{end}" for end in ("key", "pem", "csr"))
        secret = ("-passout", f"pass:{passphrase}") if passphrase else ("-nodes",)
        _openssl("req", "-new", *NEW_KEY, *secret, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        extensions = self._folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={names}\n")
        if expired:
            self._sign_for_the_past(request, certificate, extensions)
        else:
            _openssl(
                "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial",
                "-out", certificate, "-extfile", extensions, "-days", "2",
            )  # fmt: skip
        both = self._folder / f"{name}.both.pem"
        both.write_bytes(certificate.read_bytes() + key.read_bytes())
        return Signed(certificate, key, both)

    def _sign_for_the_past(self, request: Path, certificate: Path, extensions: Path) -> None:
        """Only `openssl ca` does that, with a database and a configuration."""
        database, serial, configuration = (self._folder / name for name in ("database", "serial", "ca.cnf"))
        database.touch()
        serial.write_text("01\n")
        configuration.write_text(
            f"[ca]\ndefault_ca=own\n[own]\ndatabase={database}\nnew_certs_dir={self._folder}\nserial={serial}\n"
            "default_md=sha256\npolicy=any\n[any]\ncommonName=supplied\n"
        )
        _openssl(
            "ca", "-batch", "-notext", "-config", configuration, "-cert", self.certificate, "-keyfile", self._key,
            "-in", request, "-out", certificate, "-extfile", extensions,
            "-startdate", "190101000000Z", "-enddate", "200101000000Z",
        )  # fmt: skip


def server_context(signed: Signed, *, clients: Path | None = None) -> ssl.SSLContext:
    """Of a server; `clients`: the authority whose certificates clients have to show."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(signed.certificate, signed.key)
    if clients is not None:
        context.load_verify_locations(clients)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
