"""Annotations against a Grafana that is strict, and fails in every way: nothing lost, nothing twice."""

import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from analyzer.watch.annotations import Annotation, annotations_of
from analyzer.watch.availability import Backoff, GrafanaUnavailableError
from analyzer.watch.grafana import GrafanaAccess
from analyzer.watch.service import Watch
from contract.errors import ScenarioError
from tests.analyzer.conftest import Make
from tests.analyzer.watch.conftest import NewAnnotator, artifacts_of, event, whole_run, write_events
from tests.analyzer.watch.grafana_server import ADMIN, Failure, FakeGrafana, grafana_server

RUN = ("made", "20260101_000000")
WANTED = annotations_of(
    *RUN,
    whole_run(event(2, "warning", code="CONTAMINATED", message="300 tokens", tokens=300)),
    None,
    ended=True,
    failure="tried",
)


def assert_exactly(grafana: FakeGrafana, wanted: tuple[Annotation, ...] = WANTED) -> None:
    assert grafana.keys() == sorted(tuple(sorted(item.tags)) for item in wanted)
    assert grafana.texts() == sorted(item.text for item in wanted)


def test_the_server_is_strict(grafana: FakeGrafana) -> None:
    """What is not in the API description is refused; else the tests below would prove little."""
    import requests

    session = requests.Session()
    session.trust_env = False
    session.auth = ADMIN
    good: dict[str, Any] = {"text": "x", "time": 1767225600000, "tags": ["a"]}
    url = f"{grafana.url}/api/annotations"
    assert session.post(url, json=good).status_code == 200
    for wrong in (
        {"time": 1767225600},
        {"time": "1767225600000"},
        {"timeEnd": None},
        {"timeEnd": 1767225500000},
        {"tags": "a"},
        {"tags": [1]},
        {"text": ""},
        {"colour": "red"},
    ):
        assert session.post(url, json=good | wrong).status_code == 400, wrong
    assert (
        session.post(f"{grafana.url}/api/serviceaccounts", json={"name": "x", "role": "Boss"}).status_code
        == 400
    )
    session.auth = ("admin", "wrong")
    assert session.get(url).status_code == 401


def test_regions_and_points_are_made_once(grafana: FakeGrafana, new_annotator: NewAnnotator) -> None:
    annotator = new_annotator()
    assert annotator.reconcile(*RUN, WANTED) is True
    assert_exactly(grafana)
    formal = next(item for item in grafana.annotations.values() if "phase:formal" in item["tags"])
    assert formal["timeEnd"] - formal["time"] == 9000
    assert annotator.reconcile(*RUN, WANTED) is False
    assert new_annotator().reconcile(*RUN, WANTED) is False, "nor after a restart"
    assert_exactly(grafana)
    assert grafana.count("POST", "/api/annotations") == len(WANTED)
    assert {status for _, _, status in grafana.requests} <= {200, 201}


def test_a_phase_grows_into_a_region(grafana: FakeGrafana, new_annotator: NewAnnotator) -> None:
    annotator = new_annotator()
    for length in range(1, len(whole_run()) + 1):
        annotator.reconcile(*RUN, annotations_of(*RUN, whole_run()[:length], None, ended=False))
    assert_exactly(grafana, annotations_of(*RUN, whole_run(), None, ended=False))


def test_runs_do_not_touch_each_other(grafana: FakeGrafana, new_annotator: NewAnnotator) -> None:
    annotator = new_annotator()
    names = ["made", "made 2", "a&b=c", "50%", "a:b", "ü"]
    for name in names:
        annotator.reconcile(name, RUN[1], annotations_of(name, RUN[1], whole_run(), None, ended=True))
    assert len(grafana.annotations) == 7 * len(names)
    for name in names:
        wanted = annotations_of(name, RUN[1], whole_run(), None, ended=True)
        assert new_annotator().reconcile(name, RUN[1], wanted) is False


def test_the_token_is_our_own_and_small(
    grafana: FakeGrafana, new_annotator: NewAnnotator, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "hitlab")
    for _ in range(3):
        new_annotator().reconcile(*RUN, WANTED)
    (account,) = grafana.accounts.values()
    assert (account["name"], account["role"]) == ("hitlab-watch", "Editor")
    assert len(grafana.tokens) == 1, "a restart replaces its own token"
    assert "made a token" in caplog.text
    assert "glsa_" not in caplog.text
    assert ADMIN[1] not in caplog.text


FAILURES = [
    Failure(status=500),
    Failure(status=502),
    Failure(status=503, times=3),
    Failure(status=500, after=True),
    Failure(status=429, times=2),
    Failure(status=None),
    Failure(status=None, after=True),
    Failure(status=None, after=True, times=5),
    Failure(status=200, delay_seconds=1.8, after=True),
    Failure(status=200, body=b"<html>not yet</html>", after=True),
    Failure(status=401),
    Failure(status=403),
]


@pytest.mark.parametrize("method", ["", "GET", "POST"])
@pytest.mark.parametrize("failure", FAILURES, ids=repr)
def test_nothing_is_lost_or_doubled_whatever_fails(
    grafana: FakeGrafana, new_annotator: NewAnnotator, failure: Failure, method: str
) -> None:
    annotator = new_annotator(timeout_seconds=1.2)
    annotator.reconcile(*RUN, WANTED[:2])
    grafana.failures = [Failure(**{**vars(failure), "method": method})]
    for _ in range(10):
        with suppress(GrafanaUnavailableError):
            annotator.reconcile(*RUN, WANTED)
            break
    assert grafana.failures[0].times == 0, "it did fail"
    assert_exactly(grafana)


def test_a_post_that_arrives_after_the_next_look_is_cleaned_up(
    grafana: FakeGrafana, new_annotator: NewAnnotator
) -> None:
    """Too slow to be seen by the second look-up: for a moment there are two, and the recheck removes one."""
    annotator = new_annotator(timeout_seconds=0.2)
    annotator.reconcile(*RUN, WANTED[:2])
    grafana.failures = [Failure(method="POST", status=200, after=True, delay_seconds=0.6, arrives_late=True)]
    with pytest.raises(GrafanaUnavailableError) as caught:
        annotator.reconcile(*RUN, WANTED[:3])
    assert caught.value.uncertain
    annotator.reconcile(*RUN, WANTED[:3])
    time.sleep(0.7)
    assert len(grafana.annotations) == 4
    annotator.reconcile(*RUN, WANTED[:3])
    assert_exactly(grafana, WANTED[:3])


def test_down_then_up_and_restarted_with_a_new_database(
    new_annotator: NewAnnotator, grafana: FakeGrafana
) -> None:
    annotator = new_annotator()
    annotator.reconcile(*RUN, WANTED[:4])
    grafana.forget_everything()
    assert annotator.reconcile(*RUN, WANTED) is True, "a token that is unknown now is replaced"
    assert_exactly(grafana)


def test_a_server_that_is_not_there_is_told(password_file: Path) -> None:
    from analyzer.watch.grafana import Annotator

    with grafana_server(FakeGrafana()) as once:
        url = once.url
    annotator = Annotator(GrafanaAccess(url, "admin", password_file))
    with pytest.raises(GrafanaUnavailableError, match="cannot be reached"):
        annotator.reconcile(*RUN, WANTED)
    state = FakeGrafana()
    with grafana_server(state, int(url.rsplit(":", 1)[1])):
        annotator.reconcile(*RUN, WANTED)
    assert_exactly(state)


def test_429_says_how_long(grafana: FakeGrafana, new_annotator: NewAnnotator) -> None:
    annotator = new_annotator()
    annotator.reconcile(*RUN, WANTED[:1])
    for value, seconds in (("17", 17.0), ("Wed, 21 Oct 2026 07:28:00 GMT", None)):
        grafana.failures = [Failure(status=429, headers={"Retry-After": value})]
        with pytest.raises(GrafanaUnavailableError) as caught:
            annotator.reconcile(*RUN, WANTED)
        assert caught.value.retry_after_seconds == seconds
    assert len(grafana.annotations) == 1


def test_a_wrong_password_names_its_file(
    grafana: FakeGrafana, new_annotator: NewAnnotator, password_file: Path
) -> None:
    password_file.write_text("wrong")
    with pytest.raises(GrafanaUnavailableError, match=password_file.name) as caught:
        new_annotator().reconcile(*RUN, WANTED)
    assert "wrong" not in str(caught.value).replace(str(password_file), "")
    password_file.write_text("")
    with pytest.raises(GrafanaUnavailableError, match="no password"):
        new_annotator().reconcile(*RUN, WANTED)
    password_file.unlink()
    with pytest.raises(GrafanaUnavailableError, match="cannot be read"):
        new_annotator().reconcile(*RUN, WANTED)


def test_an_annotation_that_is_refused_keeps_no_other_away(
    grafana: FakeGrafana, new_annotator: NewAnnotator, caplog: pytest.LogCaptureFixture
) -> None:
    bad = Annotation("phase:bad", 5, None, "seconds, not milliseconds", ("hitlab", "run:made", "phase:bad"))
    new_annotator().reconcile(*RUN, (bad, *WANTED))
    assert_exactly(grafana)
    assert "phase:bad" in caplog.text


@pytest.mark.parametrize("url", ["grafana:3000", "ftp://x", "http://", "http://me:secret@grafana:3000"])
def test_a_wrong_address_is_refused(url: str, password_file: Path) -> None:
    with pytest.raises(ScenarioError, match="--grafana") as caught:
        GrafanaAccess(url, "admin", password_file)
    assert "secret" not in str(caught.value)


def test_pauses_grow_and_end() -> None:
    backoff = Backoff()
    assert backoff.ready(0)
    assert [backoff.failed(0) for _ in range(9)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert not backoff.ready(59.9)
    assert backoff.ready(60)
    assert backoff.failed(0, asked_for=300) == 300
    backoff.succeeded()
    assert backoff.ready(0)
    assert backoff.failed(0) == 1


def test_killed_between_post_and_note(
    make: Make, grafana: FakeGrafana, password_file: Path, new_annotator: NewAnnotator
) -> None:
    """The process is killed while the answer to its fourth post is on its way; the next one goes on from there."""
    made = make()
    directory = made.write()
    write_events(directory, whole_run())
    command = [
        *(sys.executable, "-c", "from hitlab.main import main; main()", "watch"),
        *("--artifacts", str(artifacts_of(made)), "--grafana", grafana.url, "--port", "0"),
        *("--grafana-password-file", str(password_file)),
    ]
    grafana.failures = [
        Failure(method="PUT"),
        Failure(method="POST", path="annotations", status=200, times=0),
    ]
    slow = Failure(method="POST", path="/api/annotations", status=200, after=True, delay_seconds=20, times=1)
    quick = Failure(method="POST", path="/api/annotations", status=200, after=True, times=3)
    grafana.failures = [quick, slow]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 20
        while len(grafana.annotations) < 4:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()
    assert len(grafana.annotations) == 4
    grafana.failures = []
    watch = Watch(artifacts_of(made), new_annotator(), "http://127.0.0.1:9400/")
    watch.one_pass(patient=False)
    assert watch.trouble is None
    assert len(grafana.annotations) == 8
    assert len(set(grafana.keys())) == 8
