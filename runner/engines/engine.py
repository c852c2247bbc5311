"""An engine to measure, wherever it comes from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from contract.measurement import ContainerRecord
from contract.trust import SYSTEM, Trust

Login = tuple[str, str]
"""User and password."""


@dataclass(frozen=True)
class Engine:
    """The addresses of an engine that is there. `reset_url` None: it offers no reset.

    No address holds a user or password: those are in `logins`, by the address that asks for them. `trust` is for
    those with https. `metrics_setting`: what names the pages to the user, for messages.

    Of an engine in a container of ours also what runs there, and `log_to`: told a file, it leaves its log there when
    the run is over.
    """

    kind: str
    inference_url: str
    metrics_urls: tuple[str, ...]
    reset_url: str | None
    model: str
    ranks: int
    container: ContainerRecord | None = None
    log_to: Callable[[Path], None] | None = None
    logins: Mapping[str, Login] = field(default_factory=dict, repr=False)
    trust: Trust = SYSTEM
    metrics_setting: str = "service.metrics_url"

    @property
    def base_url(self) -> str:
        """Where the server's other routes are: the inference address without its /v1/... part."""
        head, found, _ = self.inference_url.partition("/v1/")
        return head if found else self.inference_url.rsplit("/", 1)[0]
