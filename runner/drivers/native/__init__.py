"""The native load generator: asyncio protocol, httptools and uvloop, one process."""

from runner.drivers.native.lanes import OutgoingRequest
from runner.drivers.native.load import LoadProgress, LoadSummary, run_load, send_load

__all__ = ["LoadProgress", "LoadSummary", "OutgoingRequest", "run_load", "send_load"]
