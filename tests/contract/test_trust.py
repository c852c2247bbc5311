"""Who is believed, and what is said about who is not."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from contract import trust as module
from contract.errors import ScenarioError
from contract.http_call import CallError, call
from contract.trust import SYSTEM, Trust
from tests.certificates import Authority, Signed, server_context

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def signed(authority: Authority) -> Signed:
    return authority.sign("server")


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in module.AUTHORITY_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@contextmanager
def serving(tls: ssl.SSLContext | None) -> Iterator[int]:
    """Answers whoever gets through the handshake; yields the port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with suppress(OSError):
                if tls is not None:
                    connection = tls.wrap_socket(connection, server_side=True)
                connection.recv(65536)
                connection.sendall(ANSWER)
            connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def asked(port: int, trust: Trust = SYSTEM, *, scheme: str = "https", host: str = "127.0.0.1") -> str:
    return call("GET", f"{scheme}://{host}:{port}/x", seconds=20, trust=trust).text


def refused(port: int, trust: Trust = SYSTEM, **where: str) -> str:
    with pytest.raises(CallError) as caught:
        asked(port, trust, **where)
    assert caught.value.kind == "tls"
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_authority_is_named_in_three_ways_the_field_first(
    authority: Authority, signed: Signed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Authority(tmp_path / "other").certificate
    with serving(server_context(signed)) as port:
        assert "not trusted by the system's store" in refused(port)
        assert asked(port, Trust(str(authority.certificate))) == "ok"
        for name in ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
            monkeypatch.setenv(name, str(authority.certificate))
            assert asked(port) == "ok"
            monkeypatch.setenv(name, str(other))
            told = refused(port)
            assert f"not trusted by {name} {other}" in told
            assert told.endswith("set service.ca_file to the authority's certificate")
            assert asked(port, Trust(str(authority.certificate))) == "ok"
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority.certificate))
        assert f"SSL_CERT_FILE {other}" in refused(port), "the first of the two"


def test_the_file_is_all_that_is_believed(authority: Authority) -> None:
    """Not the file and the system's store, nor what `requests` brings along."""
    context = Trust(str(authority.certificate)).context()
    assert len(context.get_ca_certs()) == 1
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"expired": True}, ["not valid now", "expired", "clock"]),
        ({"names": "DNS:other.example"}, ["another name", "127.0.0.1"]),
    ],
)
def test_a_certificate_that_does_not_fit_says_why(
    authority: Authority, options: dict[str, object], words: list[str]
) -> None:
    unfit = authority.sign("unfit", **options)  # type: ignore[arg-type]
    with serving(server_context(unfit)) as port:
        told = refused(port, Trust(str(authority.certificate)))
    for word in words:
        assert word in told


def test_a_name_is_compared_too(authority: Authority) -> None:
    by_address = authority.sign("by-address", names="IP:127.0.0.1")
    with serving(server_context(by_address)) as port:
        assert "another name" in refused(port, Trust(str(authority.certificate)), host="localhost")


def test_no_tls_there_and_tls_there(authority: Authority, signed: Signed) -> None:
    with serving(None) as port:
        assert "write http://" in refused(port, Trust(str(authority.certificate)))
    # A server that says in TLS that it was not asked in TLS, as OpenSSL's own does.
    with answering(b"\x15\x03\x01\x00\x02\x02\x46") as port:
        assert "write https://" in refused(port, scheme="http")


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        connection.recv(65536)
        connection.sendall(answer)
        connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        thread.join(10)
        listener.close()


def test_both_show_who_they_are(authority: Authority, signed: Signed, tmp_path: Path) -> None:
    client, ca = authority.sign("client"), str(authority.certificate)
    stranger = Authority(tmp_path / "stranger").sign("stranger")
    with serving(server_context(signed, clients=authority.certificate)) as port:
        assert asked(port, Trust(ca, str(client.both))) == "ok"
        assert asked(port, Trust(ca, str(client.certificate), str(client.key))) == "ok"
        # TLS 1.3 tells a client only with its first answer; a server that is gone by then leaves no reason.
        for trust in (Trust(ca), Trust(ca, str(stranger.both))):
            assert "service.client_cert" in refused(port, trust)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (("no.pem",), ["service.ca_file", "no.pem", "No such file"]),
        (("text.pem",), ["service.ca_file", "holds no certificate"]),
        ((None, "no.pem"), ["service.client_cert", "No such file"]),
        ((None, "text.pem"), ["service.client_cert", "belong together"]),
        ((None, "server.pem"), ["service.client_cert", "client_key"]),
        ((None, "server.pem", "no.key"), ["service.client_cert", "No such"]),
        (("no.pem", None, None, "--ca-file"), ["--ca-file"]),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line_with_its_field(
    tmp_path: Path, signed: Signed, files: tuple[str | None, ...], words: list[str]
) -> None:
    (tmp_path / "text.pem").write_text("text")
    (tmp_path / "server.pem").write_bytes(signed.certificate.read_bytes())
    paths = [str(tmp_path / name) if name and name[0] != "-" else name for name in files]
    with pytest.raises(ScenarioError) as caught:
        Trust(*paths).context()  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_a_key_with_a_passphrase_asks_nobody(authority: Authority) -> None:
    locked = authority.sign("locked", passphrase="a passphrase")
    with pytest.raises(ScenarioError, match="passphrase"):
        Trust(None, str(locked.certificate), str(locked.key)).context()


def test_a_variable_that_names_no_file_is_told_by_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "gone.pem"))
    with pytest.raises(ScenarioError, match=r"SSL_CERT_FILE: .*gone\.pem cannot be read"):
        SYSTEM.context()


def test_a_handshake_without_end_ends() -> None:
    """A server that takes the connection and says nothing more."""
    listener = socket.create_server(("127.0.0.1", 0))
    with pytest.raises(CallError) as caught:
        call("GET", f"https://127.0.0.1:{listener.getsockname()[1]}/", seconds=0.2)
    listener.close()
    assert caught.value.kind == "timeout"
