"""Names and contents of the bench's objects. Both follow from seed, size and index alone."""

import hashlib
from dataclasses import dataclass

from tiers.interfaces import Bytes, ObjectName
from tiers.payload import payload


@dataclass(frozen=True)
class Objects:
    """Objects of one size under one seed."""

    seed: int
    size: int

    @property
    def model(self) -> str:
        """Part of every name, and of every file name of adapters that keep files."""
        return f"hitlab-l2-{self.seed:x}-{self.size}"

    def name(self, index: int) -> ObjectName:
        return ObjectName(self.model, self._hash(str(index)))

    def missing(self, token: str, index: int) -> ObjectName:
        """A name that nothing was ever stored under: `token` is drawn anew by every process."""
        return ObjectName(self.model, self._hash(f"missing {token} {index}"))

    def content(self, index: int) -> Bytes:
        return payload("l2", self.seed, self.size, index, size=self.size)

    def _hash(self, text: str) -> bytes:
        return hashlib.blake2b(f"{self.model} {text}".encode(), digest_size=16).digest()
