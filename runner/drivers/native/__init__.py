"""The native load generator: asyncio protocol, httptools and uvloop, one process."""

from runner.drivers.native.lanes import OutgoingRequest
from runner.drivers.native.load import LoadProgress, LoadSummary, run_closed_loop, run_load

__all__ = ["LoadProgress", "LoadSummary", "OutgoingRequest", "run_closed_loop", "run_load"]
