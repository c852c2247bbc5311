import socket
import threading
from contextlib import contextmanager

import pytest

from contract.errors import ServiceError
from enginemetrics.scrape import fetch

# The server below closes after every answer; a client that is not told might send its next request into that.
OK = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: 4\r\n\r\na 1\n"


@contextmanager
def serving(*answers, hold=False):
    """A server that gives each connection the next answer and closes; yields its address and what it was asked."""
    listener = socket.create_server(("127.0.0.1", 0))
    asked, held = [], []

    def serve():
        for answer in answers:
            connection, _ = listener.accept()
            asked.append(connection.recv(65536).decode())
            connection.sendall(answer)
            if hold:
                held.append(connection)
            else:
                connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/metrics", asked
    finally:
        listener.close()
        for connection in held:
            connection.close()
        thread.join(2)


def test_texts_in_order_with_the_key_and_past_proxies(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with serving(OK, OK.replace(b"a 1", b"b 2")) as (url, asked):
        assert fetch([url, url], api_key="canary") == ["a 1\n", "b 2\n"]
    assert all("Authorization: Bearer canary" in request for request in asked)


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", OK[:-4] + b"a \xff\n"]
)
@pytest.mark.parametrize("setting", ["service.metrics_urls", "--engine-url"])
def test_the_setting_that_is_named_is_the_one_of_the_user(answer, setting):
    with serving(answer) as (url, _), pytest.raises(ServiceError) as caught:
        fetch(url, timeout_seconds=2, setting=setting)
    assert setting in str(caught.value)
    assert not str(caught.value).endswith("metrics_url")


def test_one_url_without_a_key():
    with serving(OK) as (url, asked):
        assert fetch(url) == ["a 1\n"]
    assert "Authorization" not in asked[0]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", ["HTTP 404", "service.metrics_url"]),
        (b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n", ["HTTP 401", "API key"]),
        (OK.replace(b"text/plain; version=0.0.4", b"text/html"), ["text/html"]),
        (OK.replace(b"Length: 4", b"Length: 40"), ["cannot read metrics"]),
        (OK[:-4] + b"a \xff\n", ["UTF-8"]),
        (b"nonsense\r\n\r\n", ["cannot read metrics"]),
        (b"", ["cannot read metrics"]),
    ],
)
def test_wrong_answers_are_one_line(answer, words):
    with serving(answer) as (url, _), pytest.raises(ServiceError) as caught:
        fetch(url, api_key="canary", timeout_seconds=2)
    message = str(caught.value).removeprefix("METRICS_NOT_THIS_ENGINE: ")
    assert message.startswith("http://127.0.0.1:")
    assert "\n" not in message
    assert "canary" not in message
    for word in words:
        assert word in message


def test_a_stalled_answer_is_a_timeout():
    with serving(OK[:-2], hold=True) as (url, _), pytest.raises(ServiceError, match=r"within 0\.2 s"):
        fetch(url, timeout_seconds=0.2)


@pytest.mark.parametrize(
    "url", ["http://user:canary@127.0.0.1:1/metrics?k=canary", "nonsense", "ftp://x", "http://[x"]
)
def test_unusable_addresses(url):
    with pytest.raises(ServiceError, match="cannot read metrics") as caught:
        fetch(url, timeout_seconds=2)
    assert "canary" not in str(caught.value)
