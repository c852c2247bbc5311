"""The server's HTTP API: what it is, what it offers, its counters, server-side checksums, removal of objects."""

from collections.abc import Sequence
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from contract.foreign import ForeignDocumentError, finite, json_document, name, whole_number
from contract.http_call import CallError, Reply, call

SECONDS = 5.0
LONGEST_LINE = 1 << 16
DELETE_BATCH = 5000
"""The server takes at most 10,000 names at once."""
PREFIX = "lmcache"


class HttpApiError(Exception):
    """The server did not answer what was asked. `str()` is one short line."""


class HttpApi:
    """One server's API. Methods raise HttpApiError when it cannot be asked, or answers something else."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def _ask(self, method: str, path: str, body: Any = None, seconds: float = SECONDS) -> Reply:
        try:
            return call(method, self.url + path, seconds=seconds, json=body)
        except CallError as error:
            raise HttpApiError(f"{path}: {error}") from error

    def version(self) -> str | None:
        """None where it tells something that is no version."""
        return name(_document(self._ask("GET", "/lmc_version"), "/lmc_version"))

    def config(self) -> Any:
        """For `within`."""
        return _document(self._ask("GET", "/config"), "/config")

    def l1_bytes(self) -> int | None:
        """Bytes that L1 takes before it evicts; None where the server does not report."""
        status = _document(self._ask("GET", "/status"), "/status")
        total = whole_number(within(status, "storage_manager", "l1_manager", "memory_total_bytes"))
        share = within(status, "storage_manager", "l1_eviction_controller", "trigger_watermark")
        if total is None or not isinstance(share, int | float) or not 0 <= share <= 1:
            return None
        return int(total * share)

    def counters(self) -> dict[str, float]:
        """Every counter of the server, summed over its labels."""
        text = _good(self._ask("GET", "/metrics"), "/metrics").text
        values: dict[str, float] = {}
        try:
            if any(len(line) > LONGEST_LINE for line in text.split("\n")):
                raise ValueError("a line too long")
            for family in text_string_to_metric_families(text):
                if family.type == "counter" and family.name.startswith(PREFIX):
                    told = [s.value for s in family.samples if not s.name.endswith("_created")]
                    total = finite(sum(told))
                    if total is not None:
                        values[family.name] = total
        except (ValueError, IndexError, KeyError, OverflowError) as error:
            raise HttpApiError("/metrics: not Prometheus text") from error
        return values

    def checksums(self, instance: int, blocks: Sequence[int], blocks_per_chunk: int) -> list[str] | None:
        """MD5 per chunk of the registered tensors as the server sees them; None where it does not offer that."""
        path = "/cache/checksums"
        body = {
            "block_ids": list(blocks),
            "chunk_size": blocks_per_chunk,
            "instance_id": instance,
            "layerwise": False,
        }
        reply = self._ask("POST", path, body)
        if reply.status in (404, 405, 501):
            return None
        sums = within(_document(reply, path), "chunk_checksums")
        return [str(item)[:100] for item in sums] if isinstance(sums, list) else None

    def delete(self, names: Sequence[dict[str, Any]], tier: str) -> tuple[int, int]:
        """Remove objects from a tier; how many were, and how many could not be because somebody has a lock on them."""
        deleted = skipped = 0
        for first in range(0, len(names), DELETE_BATCH):
            path = "/cache/objects"
            body = {"keys": list(names[first : first + DELETE_BATCH]), "tier": tier}
            told = _document(self._ask("DELETE", path, body, SECONDS * 6), path)
            deleted += whole_number(within(told, "deleted")) or 0
            skipped += whole_number(within(told, "skipped")) or 0
        return deleted, skipped


def within(document: Any, *names: str) -> Any:
    """What stands under these names, one in the other; None where one of them is not there."""
    for part in names:
        document = document.get(part) if isinstance(document, dict) else None
    return document


def _good(reply: Reply, path: str) -> Reply:
    if not 200 <= reply.status < 300:
        raise HttpApiError(f"{path}: HTTP {reply.status}")
    return reply


def _document(reply: Reply, path: str) -> Any:
    try:
        return json_document(_good(reply, path).content)
    except ForeignDocumentError as error:
        raise HttpApiError(f"{path}: {error}") from error


def difference(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """What counters counted in between, those that moved."""
    moved = {name: value - before.get(name, 0.0) for name, value in after.items()}
    return {name: value for name, value in sorted(moved.items()) if value}
