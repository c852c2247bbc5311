"""What a formal load came to, whoever sent it."""

from dataclasses import dataclass

from contract.errors import DriverError
from contract.measurement import AisbenchRecord, Finding, LoadRecord


@dataclass(frozen=True)
class LoadOutcome:
    """`failure`: the driver did not get through; what it had sent until then is in the records."""

    load: LoadRecord
    aisbench: AisbenchRecord | None = None
    findings: tuple[Finding, ...] = ()
    failure: DriverError | None = None
