"""Follow all runs under a folder: analyse them, annotate Grafana, expose results and reports over HTTP."""

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from contract.errors import ArtifactError, ScenarioError, ServiceError
from hitlab.signals import stop_on_signals
from hitlab.terminal import Terminal, shown

if TYPE_CHECKING:
    from analyzer.watch.grafana import Annotator

PORT = 9400


def command(
    context: typer.Context,
    artifacts: Annotated[
        Path,
        typer.Option(
            "--artifacts", metavar="DIR", help="Where run directories are made.", show_default=False
        ),
    ],
    grafana: Annotated[
        str | None,
        typer.Option(
            "--grafana", metavar="URL", help="Grafana to annotate; without it none is.", show_default=False
        ),
    ] = None,
    grafana_user: Annotated[
        str, typer.Option("--grafana-user", metavar="NAME", help="Administrator that makes the token.")
    ] = "admin",
    grafana_password_file: Annotated[
        Path | None,
        typer.Option(
            "--grafana-password-file",
            metavar="FILE",
            help="Holds the administrator's password.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65535, help="Where to listen; 0: any free port.")
    ] = PORT,
    public_url: Annotated[
        str | None,
        typer.Option(
            "--public-url",
            metavar="URL",
            help="Where browsers find this service, for links.",
            show_default=False,
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            metavar="NAME",
            help="A host name by which this service may be called, beside IP addresses, localhost, this machine's own "
            "name and that of --public-url; any number.",
            show_default=False,
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Look at everything once and end; nothing is served.")
    ] = False,
) -> int:
    from analyzer.watch.service import Watch
    from analyzer.watch.web import serving

    terminal: Terminal = context.obj
    artifacts = artifacts.absolute()
    if not artifacts.is_dir():
        raise ArtifactError(f"--artifacts {artifacts}: no such folder; it is where run.output_dir points")
    _log_to_stderr(quiet=terminal.quiet)
    annotator = _annotator(grafana, grafana_user, grafana_password_file)
    watch = Watch(artifacts, annotator, public_url or _default_url(host, port))
    if once:
        watch.one_pass(patient=False)
        if watch.trouble is not None:
            raise ServiceError(watch.trouble)
        return 0
    names = [*(allow_host or ()), *_name_of(public_url)]
    with (
        stop_on_signals() as stop,
        serving(host, port, artifacts, watch.metrics, watch.reports, names) as bound,
    ):
        address = public_url or _default_url(host, bound) or ""
        print(shown(f"Reports: {address}  Metrics: {address.rstrip('/')}/metrics"), flush=True)
        try:
            watch.follow(stop)
        except KeyboardInterrupt:
            logging.getLogger("hitlab.watch").info(
                "stopped in the middle of a pass; the next start goes on there"
            )
    return 0


def _annotator(url: str | None, user: str, password_file: Path | None) -> "Annotator | None":
    if url is None:
        return None
    if password_file is None:
        raise ScenarioError("--grafana needs --grafana-password-file, so that it can make a token of its own")
    from analyzer.watch.grafana import Annotator, GrafanaAccess

    return Annotator(GrafanaAccess(url, user, password_file))


def _name_of(url: str | None) -> list[str]:
    if url is None:
        return []
    try:
        name = urlsplit(url).hostname
    except ValueError:
        name = None
    if name is None:
        raise ScenarioError(f"--public-url {url}: must be an address like http://gpu-host:9400/")
    return [name]


def _default_url(host: str, port: int) -> str | None:
    """What a browser on this machine calls the service; None while the port is not known (0)."""
    if not port:
        return None
    return f"http://{'127.0.0.1' if host in ('', '0.0.0.0', '::') else host}:{port}/"  # noqa: S104 - compared


class _Shown(logging.Formatter):
    """Names of files and words of Grafana's stand in these lines."""

    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record))


def _log_to_stderr(*, quiet: bool) -> None:
    """A service has no log file of its own: whoever runs it keeps what it says."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Shown("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("hitlab.watch")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
