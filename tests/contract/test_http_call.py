"""A call ends within its time and its size, whatever the other side does."""

import threading
import time

import pytest

from contract.http_call import CallError, call
from tests.trickling_server import GENEROUS_SECONDS, TRICKLING, behind, trickling_server

SECONDS = 0.3
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab"


@pytest.mark.parametrize("name", TRICKLING)
def test_what_trickles_ends_in_time(name):
    begin = time.monotonic()
    with trickling_server(TRICKLING[name]) as url, pytest.raises(CallError) as caught:
        call("GET", url, seconds=SECONDS)
    # Headers without end are refused for their number, which on an idle machine is never reached in this time.
    assert caught.value.kind in ("timeout", "no_answer")
    assert caught.value.kind == "timeout" or name == "headers"
    assert time.monotonic() - begin < GENEROUS_SECONDS


def test_more_than_is_wanted_is_refused_before_it_is_all_there():
    endless = behind(b"HTTP/1.1 200 OK\r\n\r\n", b"a" * 65536)
    with (
        trickling_server(endless, pause=0) as url,
        pytest.raises(CallError, match="more than 1 MiB") as caught,
    ):
        call("GET", url, seconds=GENEROUS_SECONDS, largest=1 << 20)
    assert caught.value.kind == "too_large"


@pytest.mark.parametrize(
    "answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab"]
)
def test_what_is_no_answer_is_one_line_without_the_address(answer):
    with trickling_server(lambda: iter([answer])) as url, pytest.raises(CallError) as caught:
        call("GET", url.replace("http://", "http://me:canary@"), seconds=GENEROUS_SECONDS, key="canary")
    assert caught.value.kind == "no_answer"
    assert "canary" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/", "http://", "http://[::1/", "foo://x/", ""])
def test_where_nobody_is(url):
    with pytest.raises(CallError) as caught:
        call("GET", url, seconds=GENEROUS_SECONDS)
    assert caught.value.kind == "unreachable"


def test_a_redirect_is_an_answer_and_is_not_followed():
    answer = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n"
    with trickling_server(lambda: iter([answer])) as url:
        assert call("POST", url, seconds=GENEROUS_SECONDS).status == 302


def test_a_call_in_time_leaves_nothing_behind(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    before = threading.active_count()
    with trickling_server(lambda: iter([OK])) as url:
        reply = call("GET", url, seconds=GENEROUS_SECONDS)
        assert (reply.status, reply.content, reply.text, reply.media_type) == (200, b"ab", "ab", "")
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join(GENEROUS_SECONDS)
    assert threading.active_count() <= before


@pytest.mark.parametrize("key", ["sk-canary\n", "sk-canary\u2028", "schlüssel-canary-€"])
def test_a_key_that_no_header_takes_is_not_shown(key):
    with trickling_server(lambda: iter([OK])) as url, pytest.raises(CallError) as caught:
        call("GET", url, seconds=GENEROUS_SECONDS, key=key)
    assert "canary" not in str(caught.value)
