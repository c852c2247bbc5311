"""How a bench is doing right now, for whoever shows it. Counts only; results come from the records."""

import time
from dataclasses import dataclass, field

from contract.records import RequestRecord


@dataclass
class Tally:
    """Of the phase that is being sent. Written by the load, read by a display; a number that is a moment old is fine."""

    phase: str = ""
    planned: int = 0
    in_flight: int = 0
    succeeded: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    begun: float = field(default_factory=time.monotonic)
    last: str = ""
    _ttft: float = 0.0
    _ttfts: int = 0
    _decoded: int = 0
    _decoding: float = 0.0

    def begin(self, phase: str, planned: int) -> None:
        fresh = Tally(phase, planned)
        self.__dict__.update(fresh.__dict__)

    def add(self, record: RequestRecord) -> None:
        if record.error_kind is not None:
            self.failed += 1
            self.last = f"{record.request_id}: {record.error_kind}: {record.error_text}"
            return
        self.succeeded += 1
        self.last = (
            f"{record.request_id}: {record.prompt_tokens} tokens, {record.cached_tokens} of them cached"
        )
        self.input_tokens += record.prompt_tokens or 0
        self.output_tokens += record.completion_tokens or 0
        self.cached_tokens += record.cached_tokens or 0
        if record.ttft_s is not None:
            self._ttft += record.ttft_s
            self._ttfts += 1
        if record.tpot_s is not None and record.completion_tokens is not None:
            self._decoded += record.completion_tokens - 1
            self._decoding += record.tpot_s * (record.completion_tokens - 1)

    @property
    def elapsed_seconds(self) -> float:
        return time.monotonic() - self.begun

    @property
    def mean_ttft_seconds(self) -> float | None:
        return self._ttft / self._ttfts if self._ttfts else None

    @property
    def mean_decode_speed(self) -> float | None:
        """Tokens after the first over their time; None until an answer has had two that came apart."""
        return self._decoded / self._decoding if self._decoding else None
