"""measurement.json: written sealed, and read only as it was written."""

from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from contract.documents import canonical_sha256, read_document, sealed, write_document
from contract.errors import ArtifactError
from contract.measurement import Measurement

SEAL = "measurement_sha256"
UNSEALED_VERSION = "1.0"
"""Of measurement.json before it had a seal and named its parts."""

M = TypeVar("M", bound=Measurement)


def write_measurement(path: Path, document: dict[str, Any]) -> None:
    """`document` is a measurement's, redacted."""
    write_document(path, sealed(document, SEAL))


def read_measurement_file(path: Path, kind: type[M]) -> M:
    """Raises ArtifactError with the file, and the key where one is to blame, when it is not as it was written."""
    document = read_document(path, "measurement")
    content = {key: value for key, value in document.items() if key != SEAL}
    if SEAL not in document and content.get("schema_version") != UNSEALED_VERSION:
        raise ArtifactError(f"{path}: {SEAL}: is missing; {_ADVICE}")
    if SEAL in document and document[SEAL] != canonical_sha256(content):
        raise ArtifactError(f"{path}: {_what_changed(content, kind)}; {_ADVICE}")
    try:
        measurement = kind.model_validate(content)
    except ValidationError as error:
        raise ArtifactError(
            f"{path}: {_first(error)}; it is damaged or of another version of HitLab"
        ) from error
    for key in _SERVICE:
        if kind is Measurement and key not in measurement.service:
            raise ArtifactError(f"{path}: service.{key}: is missing; {_ADVICE}")
    return measurement


_SERVICE = ("model", "dp_size", "engine_label_map", "poll_interval_seconds")
"""What its scrapes and samples cannot be read without."""
_ADVICE = "it is damaged or was edited; restore it or measure again"


def _what_changed(content: dict[str, Any], kind: type[Measurement]) -> str:
    """The key that is to blame for a broken seal, where it can be told."""
    try:
        whole = kind.model_validate(content).model_dump(mode="json")
    except ValidationError as error:
        return _first(error)
    if kind is Measurement:
        from contract.scenario.model import Service, Validation  # a bench has no scenario

        effective = {"api_key": "api_key_configured"}
        for section, model in (("service", Service), ("validation", Validation)):
            fields = {effective.get(name, name): None for name in model.model_fields}
            whole[section] = fields | whole[section]
    lost = _lost_key(content, whole)
    return f"{lost}: is missing" if lost else "is not what the run wrote"


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _lost_key(found: Any, whole: Any) -> str | None:
    """The first key of `whole`, at any depth, that `found` has not."""
    if isinstance(whole, dict) and isinstance(found, dict):
        pairs = [(key, found.get(key), value) for key, value in sorted(whole.items())]
        lost = next((key for key, _, _ in pairs if key not in found), None)
        if lost is not None:
            return str(lost)
    elif isinstance(whole, list) and isinstance(found, list):
        pairs = [(str(index), *pair) for index, pair in enumerate(zip(found, whole, strict=False))]
    else:
        return None
    for key, mine, complete in pairs:
        below = _lost_key(mine, complete)
        if below is not None:
            return f"{key}.{below}"
    return None
