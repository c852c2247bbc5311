"""What the phases of a stage, warm or measured, have sent and got back."""

from dataclasses import dataclass, field

from contract.bench import Stage
from contract.records import RequestRecord
from runner.workloads.plan import Request


@dataclass
class SentStage:
    """What the phases of a stage have left."""

    name: Stage
    requests: list[Request] = field(default_factory=list)
    records: list[RequestRecord] = field(default_factory=list)

    @property
    def answered(self) -> list[RequestRecord]:
        return [record for record in self.records if record.error_kind is None]

    @property
    def expected_queries(self) -> int | None:
        """Prompt tokens of all answers; None when a request left them unknown."""
        counts = [record.prompt_tokens for record in self.records]
        return None if None in counts else sum(count for count in counts if count is not None)
