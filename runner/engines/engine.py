"""An engine to measure, wherever it comes from."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Engine:
    """The addresses of an engine that is there. `reset_url` None: it offers no reset."""

    kind: str
    inference_url: str
    metrics_urls: tuple[str, ...]
    reset_url: str | None
    model: str
    ranks: int

    @property
    def base_url(self) -> str:
        """Where the server's other routes are: the inference address without its /v1/... part."""
        head, found, _ = self.inference_url.partition("/v1/")
        return head if found else self.inference_url.rsplit("/", 1)[0]
