"""Targets for Prometheus' file-based service discovery: which engine is being measured, and by which run.

One file per engine under `<artifacts>/.prometheus/targets/`; the next run on the same engine replaces it. The runner
writes it when a run begins and removes it when the engine ends with the run. An engine that goes on is left to
`hitlab watch`, which removes the file some time after the run, so that a last scrape sees the run's last tokens.

Format: https://prometheus.io/docs/prometheus/latest/configuration/configuration/#file_sd_config
"""

import hashlib
import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import orjson

from contract.documents import whole_file, writing
from contract.errors import ArtifactError
from contract.files import read_file
from contract.redaction import Redactor

TARGETS = Path(".prometheus") / "targets"

AUTHORITIES = "authorities"
"""Folder beside the targets: certificates of authorities, one file per engine with https whose authority a run names.
Prometheus reads it as SSL_CERT_DIR (compose.yaml), because a file of targets can name no authority."""

ARTIFACTS_VARIABLE = "ARTIFACTS_DIR"
"""Names the folder that Prometheus looks under, for run directories that lie deeper in it."""

PROMETHEUS_VARIABLE = "PROMETHEUS_URL"
"""Set where a Prometheus is meant to see the runs: its address, as the runner sees it."""


_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----")


@dataclass(frozen=True)
class EngineTarget:
    """An engine to scrape, and the labels that all its series get. `authority`: file of who vouches for it (https)."""

    metrics_urls: tuple[str, ...]
    model: str
    run_id: str
    measurement: str
    engine_kind: str
    authority: Path | None = None


def target_folder(run_directory: Path) -> Path:
    """Where the targets of runs in `run_directory` go: under ARTIFACTS_DIR when they are in it, else beside them."""
    artifacts = os.environ.get(ARTIFACTS_VARIABLE)
    if artifacts and run_directory.resolve().is_relative_to(Path(artifacts).resolve()):
        return Path(artifacts) / TARGETS
    return run_directory.parent / TARGETS


def target_path(folder: Path, engine_url: str) -> Path:
    return folder / f"{hashlib.sha256(engine_url.encode()).hexdigest()[:16]}.json"


def authority_path(target: Path) -> Path:
    """Where the certificate for the engine of a file of targets lies, if there is one."""
    return target.parent.with_name(AUTHORITIES) / f"{target.stem}.pem"


def write_target(path: Path, target: EngineTarget) -> None:
    """Raises ArtifactError when a file cannot be written."""
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    _write_authority(authority_path(path), target.authority)
    groups = Redactor().document(target_groups(target))
    with whole_file(path) as file:
        file.write(orjson.dumps(groups, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def remove_target(path: Path) -> None:
    """Raises OSError."""
    path.unlink(missing_ok=True)
    authority_path(path).unlink(missing_ok=True)


def _write_authority(path: Path, authority: Path | None) -> None:
    """The certificates of a file, and nothing else of it: there may be a key beside them."""
    if authority is None:
        with writing(path):
            path.unlink(missing_ok=True)
        return
    with writing(authority):
        certificates = _CERTIFICATE.findall(read_file(authority))
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        file.write(b"\n".join(certificates) + b"\n")


def target_groups(target: EngineTarget) -> list[dict[str, object]]:
    """One group per metrics page. A password in an address is left out: the file is not a place for it."""
    return [
        {
            "targets": [_authority(url)],
            "labels": {
                "__scheme__": urlsplit(url).scheme,
                "__metrics_path__": urlsplit(url).path or "/metrics",
                **{f"__param_{name}": value for name, value in parse_qsl(urlsplit(url).query)},
                "model": target.model,
                "run_id": target.run_id,
                "measurement": target.measurement,
                "engine_kind": target.engine_kind,
            },
        }
        for url in target.metrics_urls
    ]


def read_measurements(path: Path) -> set[tuple[str, str]]:
    """(run_id, measurement) of every group. Raises ArtifactError when the file is not one of ours."""
    try:
        return {
            (group["labels"]["run_id"], group["labels"]["measurement"])
            for group in orjson.loads(read_file(path))
        }
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise ArtifactError(f"{path}: not a file of targets that HitLab wrote; remove it") from error


def out_of_reach(metrics_urls: Sequence[str], setting: str = "service.metrics_url") -> str | None:
    """Why the Prometheus of PROMETHEUS_URL cannot scrape these pages; None when nothing speaks against it.

    Loopback is another one in another container or on another machine, so an engine there is seen by a Prometheus
    that is itself reached there, and by no other. `setting`: what names the pages to the user.
    """
    prometheus = os.environ.get(PROMETHEUS_VARIABLE)
    if not prometheus or _is_loopback(urlsplit(prometheus).hostname):
        return None
    hidden = [url for url in metrics_urls if _is_loopback(urlsplit(url).hostname)]
    if not hidden:
        return None
    return (
        f"Prometheus ({prometheus}) cannot reach {_authority(hidden[0])}, a loopback address of this machine, so "
        "dashboards show nothing live; the result does not depend on it. Let the engine listen on an address that "
        f"containers reach, and name that in {setting}"
    )


def _authority(url: str) -> str:
    """host:port, without user and password; the scheme's port where none is given."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_loopback(host: str | None) -> bool:
    if host is None:
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
