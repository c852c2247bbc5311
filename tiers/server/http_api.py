"""The server's HTTP API: what it is, what it offers, its counters, server-side checksums, removal of objects."""

from collections.abc import Sequence
from typing import Any

import requests
from prometheus_client.parser import text_string_to_metric_families

SECONDS = 5.0
DELETE_BATCH = 5000
"""The server takes at most 10,000 names at once."""
PREFIX = "lmcache"


class HttpApi:
    """One server's API. Methods raise requests.RequestException when it cannot be asked."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._session = requests.Session()
        # An address on this host is not for a proxy.
        self._session.trust_env, self._session.max_redirects = False, 0

    def _get(self, path: str) -> requests.Response:
        answer = self._session.get(self.url + path, timeout=SECONDS)
        answer.raise_for_status()
        return answer

    def version(self) -> str:
        return str(self._get("/lmc_version").json())

    def config(self) -> dict[str, Any]:
        document: dict[str, Any] = self._get("/config").json()
        return document

    def l1_bytes(self) -> int | None:
        """Bytes that L1 takes before it evicts; None where the server does not tell."""
        try:
            manager = self._get("/status").json()["storage_manager"]
            total = int(manager["l1_manager"]["memory_total_bytes"])
            return int(total * float(manager["l1_eviction_controller"]["trigger_watermark"]))
        except (KeyError, TypeError, ValueError):
            return None

    def counters(self) -> dict[str, float]:
        """Every counter of the server, summed over its labels."""
        values: dict[str, float] = {}
        for family in text_string_to_metric_families(self._get("/metrics").text):
            if family.type == "counter" and family.name.startswith(PREFIX):
                values[family.name] = sum(
                    sample.value for sample in family.samples if not sample.name.endswith("_created")
                )
        return values

    def checksums(self, instance: int, blocks: Sequence[int], blocks_per_chunk: int) -> list[str] | None:
        """MD5 per chunk of the registered tensors as the server sees them; None where it does not offer that."""
        answer = self._session.post(
            self.url + "/cache/checksums",
            json={
                "block_ids": list(blocks),
                "chunk_size": blocks_per_chunk,
                "instance_id": instance,
                "layerwise": False,
            },
            timeout=SECONDS,
        )
        if answer.status_code in (404, 405, 501):
            return None
        answer.raise_for_status()
        sums = answer.json().get("chunk_checksums")
        return [str(item) for item in sums] if isinstance(sums, list) else None

    def delete(self, names: Sequence[dict[str, Any]], tier: str) -> tuple[int, int]:
        """Remove objects from a tier; how many were, and how many could not be because somebody has a lock on them."""
        deleted = skipped = 0
        for first in range(0, len(names), DELETE_BATCH):
            answer = self._session.delete(
                self.url + "/cache/objects",
                json={"keys": list(names[first : first + DELETE_BATCH]), "tier": tier},
                timeout=SECONDS * 6,
            )
            answer.raise_for_status()
            deleted += int(answer.json().get("deleted", 0))
            skipped += int(answer.json().get("skipped", 0))
        return deleted, skipped


def difference(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """What counters counted in between, those that moved."""
    moved = {name: value - before.get(name, 0.0) for name, value in after.items()}
    return {name: value for name, value in sorted(moved.items()) if value}
