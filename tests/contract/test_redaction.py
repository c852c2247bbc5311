"""A secret is nowhere, in whatever spelling; and what only looks like one is left alone."""

import base64
import html
import json
import urllib.parse
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract import redaction
from contract.effective_config import effective_config
from contract.errors import ScenarioError
from contract.events import EventLog
from contract.foreign_text import presentable
from contract.measurement import Check, Measurement, PhaseRecord
from contract.redaction import (
    Redactor,
    learn,
    login_of,
    login_secrets,
    redacted,
    service_api_key,
    without_login,
)
from contract.scenario.load import parse_scenario
from tests.secret_spellings import spellings

KEY = 'sk-canary+7f/2a?91"é\\'


@pytest.fixture(autouse=True)
def no_key_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(redaction, "_learned", set())


def readable(text: str) -> list[str]:
    """What somebody who undoes one encoding of `text` reads."""
    found = [
        text,
        html.unescape(text),
        urllib.parse.unquote_plus(text),
        text.replace("\\\\", "\\").replace('\\"', '"'),
    ]
    for word in text.split():
        for start in range(4):
            piece = word[start:]
            with_padding = piece[: len(piece) // 4 * 4]
            try:
                found.append(
                    base64.b64decode(
                        with_padding, altchars=b"-_" if "-" in piece or "_" in piece else None
                    ).decode("latin-1")
                )
            except ValueError:
                continue
    return found


@pytest.mark.parametrize("name", spellings(KEY))
def test_every_spelling_is_masked(name: str) -> None:
    text = spellings(KEY)[name]
    assert any(
        KEY in way or KEY.encode().decode("latin-1") in way or KEY[:10] in way for way in readable(text)
    ), "the test sees it"
    masked = Redactor(KEY)(f"the server says {text} and goes on")
    assert "***" in masked
    for way in readable(masked):
        assert KEY[:10] not in way
        assert KEY[-10:] not in way


@given(
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=40), st.text(max_size=20)
)
def test_no_spelling_of_any_key_survives(key: str, around: str) -> None:
    redact = Redactor(key)
    for text in spellings(key).values():
        masked = redact(f"{around} {text} {around}")
        assert key not in masked
        assert base64.b64encode(key.encode()).decode().rstrip("=")[:-1] not in masked


def test_a_key_with_a_line_end_is_known_with_and_without_it() -> None:
    redact = Redactor("sk-test-1234\n")
    assert redact("Bearer sk-test-1234") == "Bearer ***"
    assert "sk-test" not in redact(repr("Bearer sk-test-1234\n"))


def test_lines_of_a_longer_secret_are_secrets() -> None:
    assert (
        Redactor("-----BEGIN-----\nabcdefgh12345678\n-----END-----")("key: abcdefgh12345678.") == "key: ***."
    )


PAGE = """# HELP vllm:x token 1 a
# TYPE vllm:x counter
vllm:prefix_cache_queries_total{engine="1",model_name="vllm"} 12345678.0
vllm:prefix_cache_hits_total{engine="1",model_name="vllm"} 1.0
"""


@pytest.mark.parametrize("key", ["vllm", "token", "demo", "1", "a", "x", "12345", "engine="])
def test_a_short_key_is_masked_only_as_the_value_of_a_header_or_url(key: str) -> None:
    redact = Redactor(key)
    for ordinary in (
        PAGE,
        f"{key} tokens of {key} were {key}",
        f"count: {key}",
        f'{{"token": "{key}"}}',
        f"/v1/{key}",
    ):
        assert redact(ordinary) == ordinary
    assert redact.exposition(PAGE) == PAGE
    document = {"model": key, "engine": {"kind": key}, key: [key, 1]}
    assert redact.document(document) == document
    for text in (
        f"Authorization: Bearer {key}",
        f"{{'Authorization': 'Bearer {key}'}}",
        f'"x-api-key": "{key}", "a": 1',
        f"authorization={key}",
        f"http://host/metrics?api_key={key}&b=2",
        f"http://me:{key}@host/metrics",
        f"invalid header 'Bearer {key}'",
    ):
        masked = redact(text)
        assert "***" in masked, text
        assert f"Bearer {key}" not in masked
        assert f"={key}&" not in masked
        assert f":{key}@" not in masked
    assert redact.document({"headers": {"Authorization": key}}) == {"headers": {"Authorization": "***"}}


def test_a_page_keeps_its_names_and_numbers() -> None:
    """A key of digits stands in many numbers, and the page is read again."""
    page = PAGE + '# the key is 12345678\necho{key="12345678",b="x"} 12345678\n'
    stored = Redactor("12345678").exposition(page)
    assert stored == PAGE + '# the key is ***\necho{key="***",b="x"} 12345678\n'
    assert Redactor("prefix_cache_queries").exposition(PAGE) == PAGE


@pytest.mark.parametrize(
    "url",
    [
        "http://me:pa55word-x@host:8000/metrics",
        "https://me:p@ss:word@host/metrics",
        "http://me:p%40ss%2Fword@[::1]:9/metrics",
        "http://only-a-token-77@host/metrics",
        "http://me:pa'ss$&word@host/metrics",
    ],
)
def test_a_login_in_an_address_is_never_shown(url: str) -> None:
    login = login_of(url)
    assert login is not None
    shown = presentable(f"{url}: cannot be reached")
    assert shown.endswith(": cannot be reached")
    assert "://***@" in shown
    for part in login:
        assert not part or part == "me" or part not in shown
    assert login_of(without_login(url)) is None
    assert without_login(url).endswith(url.rpartition("@")[2])
    redact = Redactor(*login_secrets([url]))
    user, password = login
    basic = base64.b64encode(f"{user}:{password}".encode()).decode()
    assert basic not in redact(f"Authorization: Basic {basic}")
    config = effective_config(
        parse_scenario(
            {"service": {"metrics_url": url, "metrics_urls": [url], "reset_url": url, "inference_url": url}}
        )
    )
    assert (password or user) not in json.dumps(config)
    assert urllib.parse.quote(password or user) not in json.dumps(config)


def test_what_was_learned_is_masked_wherever_something_is_shown() -> None:
    assert redacted("a learned-secret") == "a learned-secret"
    learn("learned-secret")
    assert redacted("a learned-secret") == "a ***"
    assert Redactor()("a learned-secret") == "a ***"


def test_a_secret_is_masked_before_a_line_is_cut() -> None:
    learn("sk-canary-0123456789")
    assert "sk-" not in presentable("x" * 70 + " sk-canary-0123456789", 80)


@pytest.mark.parametrize("key", ["sk-test\n", "\tsk-test\r\n", "  sk-test "])
def test_white_space_around_a_key_goes(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    assert service_api_key(key) == "sk-test"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    assert service_api_key("") == "sk-test"
    assert parse_scenario({"service": {"api_key": key}}).service.api_key == "sk-test"


@pytest.mark.parametrize(
    "key", ["sk-canary\n-7f2a", "sk-canary\x00-7f2a", "sk-canary-7f2a-ключ", "sk-canary-7f2a\udc80"]
)
def test_a_key_that_no_header_carries_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "unset") if "\x00" in key else monkeypatch.setenv(
        "OPENAI_API_KEY", key
    )
    with pytest.raises(ScenarioError) as caught:
        service_api_key(key if "\x00" in key else "")
    with pytest.raises(ScenarioError) as refused:
        parse_scenario({"service": {"api_key": key}})
    for error in (caught, refused):
        assert "canary" not in str(error.value)
        assert "7f2a" not in str(error.value)
        assert "\n" not in str(error.value)
    assert "service.api_key" in str(refused.value)


def test_no_key() -> None:
    assert service_api_key("") == ""
    assert service_api_key(" \n") == ""


WORDS = [
    "complete",
    "baseline",
    "findings",
    "interrupted",
    "precheck",
    "not_checked",
    "preflight",
    "started_at",
]


@pytest.mark.parametrize("word", WORDS)
def test_a_key_that_is_a_word_of_ours_breaks_no_document(word: str, tmp_path: Path) -> None:
    measurement = Measurement(
        status="complete",
        run_id="run",
        stamp="stamp",
        manifest_sha256="0",
        started_at="2026-01-01T00:00:00+00:00",
        service={"model": f"a {word}", "started_at": 1},
        validation={},
        phases=[
            PhaseRecord(name="baseline", started_at="now"),
            PhaseRecord(name="precheck", started_at="now"),
        ],
        preflight=[Check(name="x", status="not_checked", detail=f"the key is {word}")],
    )
    stored = Redactor(word).own(measurement)
    read = Measurement.model_validate(stored)
    assert (read.status, read.phases, read.preflight[0].status) == (
        "complete",
        measurement.phases,
        "not_checked",
    )
    assert read.preflight[0].detail == "the key is ***"
    assert read.service == {"model": "a ***", "started_at": 1}
    log = EventLog(tmp_path / "events.jsonl", Redactor(word))
    log.write("phase_started", phase=word, message=f"the key is {word}")
    log.close()
    event = json.loads((tmp_path / "events.jsonl").read_text())
    assert (event["phase"], event["message"]) == (word, "the key is ***")
