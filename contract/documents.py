"""Writing and hashing JSON documents: whole or not at all, always in the same form."""

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from contract.errors import ArtifactError
from contract.files import open_file, read_file
from contract.foreign_text import printable_json

HASH_CHUNK = 1 << 20
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def document_text(document: Any) -> str:
    """The form in which documents are stored: keys sorted, indent 2, finite numbers only, characters that print kept."""
    text = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return printable_json(text) + "\n"


def canonical_sha256(document: Any) -> str:
    """SHA-256 of the compact form with sorted keys."""
    text = json.dumps(document, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def sealed(document: dict[str, Any], key: str) -> dict[str, Any]:
    """`document` with the SHA-256 of its canonical form, without that key, under `key`."""
    content = {name: value for name, value in document.items() if name != key}
    return {**content, key: canonical_sha256(content)}


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, read in pieces."""
    digest = hashlib.sha256()
    with open_file(path) as file:
        while chunk := file.read(HASH_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around whatever writes `path`: a disk that does not take it is an ArtifactError that says what to do."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path | str, error: OSError) -> ArtifactError:
    advice = (
        "free space there and run the command again"
        if error.errno in NO_ROOM
        else "make it writable or change run.output_dir"
    )
    return ArtifactError(f"{path}: cannot be written ({error.strerror or error}); {advice}")


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A binary file that appears at `path` when the block ends well: written beside, flushed, renamed.

    Its mode is what the umask leaves. Raises ArtifactError when it cannot be written; then nothing is left of it.
    """
    with writing(path):
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_document(path: Path, document: Any) -> None:
    with whole_file(path) as file:
        file.write(document_text(document).encode())


def read_document(path: Path, what: str) -> dict[str, Any]:
    """The JSON object in `path`. Raises ArtifactError that names `what` the file should be."""
    return parse_document(read_bytes(path, what), path, what)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Around whatever reads `path`: a disk that does not give it is an ArtifactError."""
    try:
        yield
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror or error})") from error


def read_bytes(path: Path, what: str) -> bytes:
    try:
        return read_file(path)
    except FileNotFoundError as error:
        raise ArtifactError(f"{path}: no such {what}") from error
    except OSError as error:
        raise ArtifactError(f"{path}: the {what} cannot be read ({error.strerror})") from error


def parse_document(content: bytes, path: Path, what: str) -> dict[str, Any]:
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise ArtifactError(
            f"{path}: the {what} is not JSON ({error}); it is damaged or was edited"
        ) from error
    if not isinstance(document, dict):
        raise ArtifactError(f"{path}: the {what} must hold one JSON object")
    return document
