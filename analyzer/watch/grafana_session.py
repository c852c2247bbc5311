"""Under Grafana's client: calls that end within their time and size, whatever answers at Grafana's address."""

from functools import partialmethod
from types import SimpleNamespace
from typing import Any, Final, NoReturn

from requests.exceptions import ConnectionError as NotReachedError
from requests.exceptions import JSONDecodeError, Timeout

from contract.foreign import ForeignDocumentError, json_document
from contract.http_call import CallError, Reply, call

_LARGEST: Final = 16 * 2**20


class Answer:
    """What the client wants of a response."""

    def __init__(self, reply: Reply) -> None:
        self.status_code = reply.status
        self.headers = reply.headers
        self.text = reply.text
        self._content = reply.content

    def json(self) -> Any:
        try:
            return json_document(self._content)
        except ForeignDocumentError as error:
            raise JSONDecodeError(str(error), "", 0) from error


class Session:
    """Takes the place of the client's own session. Proxies are not used: Grafana is a neighbour.

    `last` is the newest answer: the client passes on a body only.
    """

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.last: Answer | None = None

    def request(
        self,
        method: str,
        url: str,
        *,
        json: Any,
        headers: dict[str, str] | None,
        auth: Any,
        timeout: float,
        **_: Any,
    ) -> Answer:
        """Raises the exceptions that the client knows, and those of requests, on which it stands."""
        self.last = None
        asked = SimpleNamespace(headers={**self.headers, **(headers or {})})
        if auth is not None:
            auth(asked)
        try:
            reply = call(
                method,
                url,
                seconds=timeout,
                largest=_LARGEST,
                headers=asked.headers,
                json=json,
            )
        except CallError as error:
            _fail(error)
        self.last = Answer(reply)
        return self.last

    get = partialmethod(request, "GET")
    post = partialmethod(request, "POST")
    patch = partialmethod(request, "PATCH")
    delete = partialmethod(request, "DELETE")


def _fail(error: CallError) -> NoReturn:
    kind = Timeout if error.kind == "timeout" else NotReachedError
    raise kind(str(error)) from error
