"""Talking to Grafana: a token of our own, and annotations that are there exactly once."""

import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from grafana_client.api import GrafanaApi
from grafana_client.client import GrafanaException
from requests.exceptions import RequestException, Timeout

from analyzer.watch.annotations import Annotation, measurement_tags
from analyzer.watch.availability import GrafanaRefusedError, GrafanaUnavailableError
from analyzer.watch.grafana_session import Session
from analyzer.watch.reconcile import changes
from contract.errors import ScenarioError
from contract.files import read_text
from contract.foreign import decimal_number, whole_number
from contract.foreign_text import presentable

LOGGER = logging.getLogger("hitlab.watch")

SERVICE_ACCOUNT = "hitlab-watch"
ROLE = "Editor"
"""The least of Grafana's basic roles that may write annotations which belong to no single dashboard."""
TOKEN_SECONDS = 7 * 24 * 3600
"""A token that is lost with its container does not stay valid for ever; a new one is made when it has expired."""
MOST_ANNOTATIONS = 1000
"""Of one measurement; Grafana answers with 100 unless told otherwise."""
TIMEOUT_SECONDS = 5.0
LONGEST_PAUSE = 24 * 3600
"""Seconds that Grafana may ask to be left alone."""


class _UnauthorizedError(GrafanaUnavailableError):
    """The token or password is not (or no longer) valid."""


@dataclass(frozen=True)
class GrafanaAccess:
    """Where Grafana is, and the administrator whose password is used once, to make a token of our own."""

    url: str
    admin_user: str
    admin_password_file: Path

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ScenarioError(f"--grafana {self.url}: must be an address like http://grafana:3000")
        if parts.username or parts.password:
            raise ScenarioError(
                "--grafana: a password in the address ends up in process lists; put it into the file of "
                "--grafana-password-file"
            )

    def password(self) -> str:
        """Read each time it is needed: the file may still be in the making, or be changed."""
        path = self.admin_password_file
        try:
            password = read_text(path).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise GrafanaUnavailableError(
                f"{path}: the password for Grafana cannot be read ({error})"
            ) from error
        if not password:
            raise GrafanaUnavailableError(f"{path}: holds no password for Grafana yet")
        return password


class Annotator:
    """Keeps the annotations of measurements in Grafana. Holds nothing but a token: Grafana itself is the state."""

    def __init__(self, access: GrafanaAccess, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._access = access
        self._timeout_seconds = timeout_seconds
        self._connection: _Connection | None = None

    def reconcile(self, run_id: str, stamp: str, wanted: Sequence[Annotation]) -> bool:
        """Bring what Grafana holds of a measurement to what is wanted; returns whether anything had to be done.

        What is there is looked up before anything is posted, so calling again after any failure neither loses nor
        doubles an annotation.

        Raises:
            GrafanaUnavailableError: try again later.
        """
        try:
            return self._reconcile(self._connected(), run_id, stamp, wanted)
        except _UnauthorizedError:
            # Grafana was set up anew, or the token has expired or been revoked: one more try, with a new one.
            self._connection = None
            return self._reconcile(self._connected(), run_id, stamp, wanted)

    def _reconcile(
        self, grafana: "_Connection", run_id: str, stamp: str, wanted: Sequence[Annotation]
    ) -> bool:
        needed = changes(wanted, grafana.annotations(measurement_tags(run_id, stamp)))
        for annotation in needed.create:
            with _skipping(annotation):
                grafana.create(annotation)
        for known, annotation in needed.update:
            with _skipping(annotation):
                grafana.update(known, annotation)
        for double in needed.delete:
            grafana.delete(double)
        return bool(needed)

    def _connected(self) -> "_Connection":
        if self._connection is None:
            access = self._access
            admin = _Connection(access.url, (access.admin_user, access.password()), self._timeout_seconds)
            try:
                token = admin.new_token()
            except _UnauthorizedError as error:
                raise GrafanaUnavailableError(
                    f"Grafana refuses user {access.admin_user} with the password in {access.admin_password_file}; "
                    "it takes a first password from its settings only when its database is new, so change it there"
                ) from error
            except GrafanaRefusedError as error:
                raise GrafanaUnavailableError(f"no token for {SERVICE_ACCOUNT}: {error}") from error
            self._connection = _Connection(access.url, token, self._timeout_seconds)
            LOGGER.info("Grafana at %s: made a token for %s", access.url, SERVICE_ACCOUNT)
        return self._connection


class _Connection:
    """The calls of Grafana's HTTP API that are needed, each with its failures told apart.

    https://grafana.com/docs/grafana/latest/developers/http_api/annotations/ and .../serviceaccount/
    """

    def __init__(self, url: str, credential: str | tuple[str, str], timeout_seconds: float) -> None:
        self._api = GrafanaApi.from_url(url, credential=credential, timeout=timeout_seconds)
        self._session = self._api.client.s = Session()

    def annotations(self, tags: Sequence[str]) -> list[dict[str, Any]]:
        """All that carry all of these tags."""
        quoted = [quote(tag, safe="") for tag in tags]  # the client does not
        answer = self._ask(
            lambda: self._api.annotations.get_annotation(
                tags=quoted, ann_type="annotation", limit=MOST_ANNOTATIONS
            )
        )
        if not isinstance(answer, list) or not all(map(_is_annotation, answer)):
            raise GrafanaUnavailableError(
                "what answers at Grafana's address gives no annotations; is it Grafana?"
            )
        return answer

    def create(self, annotation: Annotation) -> None:
        # Not add_annotation(): it sends panelId and timeEnd as null where there is none.
        self._ask(lambda: self._api.client.POST("/annotations", json=_body(annotation)), writes=True)

    def update(self, known: int, annotation: Annotation) -> None:
        self._ask(lambda: self._api.client.PATCH(f"/annotations/{known}", json=_body(annotation)))

    def delete(self, known: int) -> None:
        self._ask(lambda: self._api.annotations.delete_annotations_by_id(known))

    def new_token(self) -> str:
        """A token for our service account; the account is made when it is not there, our old token is removed."""
        accounts = self._api.serviceaccount
        pages = self._ask(lambda: accounts.search(query=SERVICE_ACCOUNT, page=1, perpage=100))
        known = [
            item["id"]
            for page in pages
            for item in page["serviceAccounts"]
            if item["name"] == SERVICE_ACCOUNT
        ]
        if known:
            account = known[0]
        else:
            fields = {"name": SERVICE_ACCOUNT, "role": ROLE, "isDisabled": False}
            account = self._ask(lambda: accounts.create(fields), writes=True)["id"]
        # One token per host, so that two analyzers do not take it from one another.
        name = f"{SERVICE_ACCOUNT}-{socket.gethostname()}"
        for token in self._ask(lambda: accounts.get_tokens(account)):
            if token["name"] == name or token.get("hasExpired"):
                self._ask(partial(accounts.delete_token, account, token["id"]))
        wanted = {"name": name, "secondsToLive": TOKEN_SECONDS}
        return str(self._ask(lambda: accounts.create_token(account, wanted), writes=True)["key"])

    def _ask(self, question: Callable[[], Any], *, writes: bool = False) -> Any:
        """The answer, or what kind of failure it is.

        Args:
            writes: whether asking twice would do it twice.
        """
        try:
            return question()
        except Timeout as error:
            raise GrafanaUnavailableError("Grafana did not answer in time", uncertain=writes) from error
        except GrafanaException as error:
            message = f"Grafana: {presentable(str(error.message), 200)}"
            if error.status_code == 401:
                raise _UnauthorizedError(message) from error
            if error.status_code in (400, 413, 422):
                raise GrafanaRefusedError(message) from error
            raise GrafanaUnavailableError(
                message,
                retry_after_seconds=self._retry_after(),
                uncertain=writes and error.status_code >= 500,
            ) from error
        except RequestException as error:
            # Refused, cut off, or an answer that is not JSON: whether the question arrived is not known.
            raise GrafanaUnavailableError(
                f"Grafana cannot be reached ({type(error).__name__})", uncertain=writes
            ) from error

    def _retry_after(self) -> float | None:
        last = self._session.last
        return None if last is None else decimal_number(last.headers.get("Retry-After"), LONGEST_PAUSE)


def _is_annotation(item: Any) -> bool:
    return (
        isinstance(item, dict)
        and whole_number(item.get("id")) is not None
        and isinstance(item.get("tags"), list)
        and all(isinstance(tag, str) for tag in item["tags"])
    )


def _body(annotation: Annotation) -> dict[str, Any]:
    """Without a dashboard an annotation belongs to the organization, and tags find it."""
    body: dict[str, Any] = {
        "time": annotation.time_ms,
        "tags": list(annotation.tags),
        "text": annotation.text,
    }
    if annotation.end_ms is not None:
        body["timeEnd"] = annotation.end_ms
    return body


@contextmanager
def _skipping(annotation: Annotation) -> Iterator[None]:
    """One annotation that Grafana will never take must not keep the others away."""
    try:
        yield
    except GrafanaRefusedError as error:
        LOGGER.error("annotation %s of %s is left out: %s", annotation.key, annotation.tags[1:3], error)
