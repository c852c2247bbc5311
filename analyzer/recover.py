"""Finishing what a run could not finish: it was killed, its disk was full, or its engine was gone at the end."""

from contract.documents import write_document
from contract.errors import ArtifactError
from contract.events import EventLog, has_writer, utc_now
from contract.measurement import Finding, Measurement
from contract.records import REQUEST_SCHEMA
from contract.redaction import Redactor
from contract.run_directory import MeasurementDirectory
from contract.streams import KV_SAMPLE_SCHEMA, stream_to_parquet


def finished_measurement(directory: MeasurementDirectory, measurement: Measurement) -> Measurement:
    """The measurement with a status that is final; streams that the run left behind become Parquet.

    One that still says "running" although nobody writes its events any more is "interrupted", with the finding
    RUN_CUT_SHORT. Raises ArtifactError while the run goes on.
    """
    if measurement.status == "running":
        measurement = _cut_short(directory, measurement)
    for stream, parquet, schema in (
        (directory.requests_stream, directory.requests, REQUEST_SCHEMA),
        (directory.kv_samples_stream, directory.kv_samples, KV_SAMPLE_SCHEMA),
    ):
        if stream.is_file():
            # Beside a Parquet file too: that one is whole, and the stream it was made from was about to be removed.
            stream_to_parquet(stream, parquet, schema)
    return measurement


def _cut_short(directory: MeasurementDirectory, measurement: Measurement) -> Measurement:
    if directory.events.is_file() and has_writer(directory.events):
        raise ArtifactError(f"{directory.root}: this run is still going on; wait for its end, or stop it")
    where = f"in its {measurement.phases[-1].name} phase" if measurement.phases else "before its first phase"
    message = f"the run ended {where} without a word: killed, out of memory or disk, or the machine went down"
    found = Finding(code="RUN_CUT_SHORT", message=f"{message}; what it had recorded is kept")
    measurement = measurement.model_copy(
        update={
            "status": "interrupted",
            "error": message,
            "finished_at": utc_now(),
            "findings": [*measurement.findings, found],
        }
    )
    write_document(directory.measurement, measurement.model_dump(mode="json"))
    events = EventLog(directory.events, Redactor())
    events.write("warning", **found.model_dump(mode="json"))
    events.write("run_finished", status=measurement.status, error=message)
    events.close()
    return measurement
