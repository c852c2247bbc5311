"""What an LMCache server tells over HTTP: how much a token takes, how large its memory is, and what was looked up."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contract.errors import ServiceError
from contract.foreign import (
    LARGEST_TOKENS,
    ForeignDocumentError,
    counted,
    json_document,
    shown,
    whole_number,
)
from contract.http_call import CallError, call
from contract.trust import SYSTEM, Trust
from enginemetrics.exposition import parse_exposition
from enginemetrics.scrape import fetch
from runner.bench.engine import base_url

GB = 1 << 30
SECONDS = 10.0
FAMILIES = {"blend": "lmcache_blend_lookup_", "lookup": "lmcache_mp_lookup_"}
"""Counters of CacheBlend, which finds text wherever it stands, and of the ordinary prefix lookup."""


@dataclass(frozen=True)
class Lookups:
    """Tokens asked for and found so far, by family of counters; a family that is not exposed is left out."""

    requested: Mapping[str, int]
    hit: Mapping[str, int]

    def since(self, before: "Lookups") -> "Lookups":
        return Lookups(
            {name: count - before.requested.get(name, 0) for name, count in self.requested.items()},
            {name: count - before.hit.get(name, 0) for name, count in self.hit.items()},
        )

    @property
    def moved(self) -> str | None:
        """The family that counted: the one with most tokens asked for; None when nothing was."""
        family = max(self.requested, key=lambda name: self.requested[name], default=None)
        return family if family is not None and self.requested[family] > 0 else None


class LmCache:
    """One server."""

    def __init__(self, url: str, trust: Trust = SYSTEM) -> None:
        self.url = base_url(url)
        self._trust = trust

    def tokens_per_gb(self, model: str) -> int:
        """Tokens of this model in 2^30 bytes, all its workers together.

        Raises:
            ServiceError: no answer, or none that names the model.
        """
        status = self._status()
        contexts = status.get("cache_context_meta") or status.get("cb_gpu_context_meta") or {}
        entries = list(contexts.values()) if isinstance(contexts, dict) else contexts
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and entry.get("model_name") == model:
                layout = entry.get("kv_cache_layout") or {}
                layout = layout if isinstance(layout, dict) else {}
                size = whole_number(layout.get("cache_size_per_token"))
                workers = whole_number(entry.get("world_size") or 1, LARGEST_TOKENS)
                if size and workers and (tokens := GB // (size * workers)):
                    return tokens
        raise ServiceError(
            f"{self.url}/status: says nothing of {model!r}; has the engine registered with this LMCache server? "
            "--tokens-per-gb-kvcache needs no server"
        )

    def memory_bytes(self) -> int:
        """Size of its memory tier (L1)."""
        manager: Any = self._status()
        for part in ("storage_manager", "l1_manager"):
            manager = manager.get(part) if isinstance(manager, dict) else None
        size = whole_number(manager.get("memory_total_bytes")) if isinstance(manager, dict) else None
        if not size:
            raise ServiceError(f"{self.url}/status: does not report memory_total_bytes; give --ktp-pool-size")
        return size

    def lookups(self) -> Lookups:
        """Its lookup counters now. Raises ServiceError without metrics."""
        url = f"{self.url}/metrics"
        (text,) = fetch(url, trust=self._trust, timeout_seconds=SECONDS, setting="--lmcache-url")
        requested: dict[str, int] = {}
        hit: dict[str, int] = {}
        for sample in parse_exposition(text, source=url, buckets=False):
            for family, prefix in FAMILIES.items():
                kind = sample.name.removeprefix(prefix).removesuffix("_total")
                if sample.name.startswith(prefix) and kind in ("requested_tokens", "hit_tokens"):
                    counts = requested if kind == "requested_tokens" else hit
                    value = counted(sample.value)
                    if value is None:
                        raise ServiceError(
                            f"{url}: {sample.name} is {shown(sample.value)}, which is no count"
                        )
                    counts[family] = counts.get(family, 0) + value
        return Lookups(requested, hit)

    def _status(self) -> dict[str, Any]:
        url = f"{self.url}/status"
        try:
            reply = call("GET", url, seconds=SECONDS, trust=self._trust)
            body = json_document(reply.content)
        except (CallError, ForeignDocumentError) as error:
            raise ServiceError(
                f"{url}: no answer in JSON ({error}); is --lmcache-url LMCache's HTTP address?"
            ) from error
        if reply.status != 200 or not isinstance(body, dict):
            raise ServiceError(f"{url}: HTTP {reply.status}; is --lmcache-url LMCache's HTTP address?")
        return body
