"""Adapter specs: parsing them, what can be told of them beforehand, and hiding what is secret in them."""

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.errors import ScenarioError, ServiceError
from contract.redaction import MASK

ENVIRONMENT = "L2_ADAPTER_JSON"
SECRET_WORDS = ("password", "secret", "token", "credential", "access_key", "api_key", "auth")
CONNECT_SECONDS = 3.0


@dataclass(frozen=True)
class Spec:
    """One `--l2-adapter`. `folder` is where an adapter of files keeps them, `address` where one of a service connects."""

    document: dict[str, Any]

    @property
    def type(self) -> str:
        return str(self.document["type"])

    @property
    def shown(self) -> str:
        """The JSON without secrets, for people and files."""
        return json.dumps(_masked(self.document), separators=(",", ":"))

    @property
    def folder(self) -> Path | None:
        base = _find(self.document, "base_path")
        return Path(base) if isinstance(base, str) else None

    @property
    def direct(self) -> bool:
        chosen = _find(self.document, "use_odirect")
        return chosen is True or (chosen is None and self.type == "raw_block")

    @property
    def address(self) -> tuple[str, int] | None:
        host, port = self.document.get("host"), self.document.get("port")
        return (host, port) if isinstance(host, str) and isinstance(port, int) else None


def parse_specs(given: list[str]) -> tuple[Spec, ...]:
    """The specs of the options, else of the environment. Raises ScenarioError."""
    texts = given or [text for text in (os.environ.get(ENVIRONMENT, ""),) if text]
    if not texts:
        raise ScenarioError(
            f'--l2-adapter is missing: name one, \'{{"type":"fs","base_path":"/tmp/bench"}}\', or set {ENVIRONMENT}'
        )
    specs = []
    for number, text in enumerate(texts, 1):
        try:
            document = json.loads(text)
        except json.JSONDecodeError as error:
            raise ScenarioError(f"--l2-adapter #{number}: not JSON ({error})") from error
        if not isinstance(document, dict) or not isinstance(document.get("type"), str):
            raise ScenarioError(f'--l2-adapter #{number}: must be a JSON object with a "type"')
        specs.append(Spec(document))
    return tuple(specs)


def require_alignment(spec: Spec, *, align_bytes: int, data_size_kb: tuple[int, ...]) -> None:
    """Direct I/O takes whole blocks of the device only; an adapter falls back to the page cache without saying so."""
    if not spec.direct:
        return
    block = _device_block(spec)
    if align_bytes % block:
        raise ScenarioError(
            f"--l2-adapter {spec.type} with use_odirect needs aligned buffers: add --l1-align-bytes {block}"
        )
    for size in data_size_kb:
        if size * 1024 % block:
            raise ScenarioError(f"--data-size-kb {size}: direct I/O needs a multiple of {block} bytes")


def _device_block(spec: Spec) -> int:
    align = _find(spec.document, "block_align")
    if isinstance(align, int):
        return align
    folder = spec.folder
    while folder is not None and not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.statvfs(folder).f_bsize if folder is not None and folder.exists() else 4096


def require_listening(spec: Spec) -> None:
    """Adapters of services retry for minutes where nothing listens. Raises ServiceError within seconds."""
    if spec.address is None:
        return
    host, port = spec.address
    try:
        socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise ServiceError(
            f"--l2-adapter {spec.type}: nothing answers at {host}:{port} ({error.strerror or error}); start it, or "
            "correct host and port"
        ) from error


def _find(document: dict[str, Any], name: str) -> Any:
    """A field, also of an adapter inside another (fault_inject, plugins with parameters)."""
    if name in document:
        return document[name]
    for value in document.values():
        if isinstance(value, dict) and (found := _find(value, name)) is not None:
            return found
    return None


def _masked(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: MASK
            if item and any(word in str(key).lower() for word in SECRET_WORDS) and not isinstance(item, dict)
            else _masked(item)
            for key, item in value.items()
        }
    return [_masked(item) for item in value] if isinstance(value, list) else value
