"""Finishing what a run could not finish: it was killed, its disk was full, or its engine was gone at the end."""

from analyzer.parts import part_problem, require_parts
from contract.errors import ArtifactError
from contract.events import EventLog, has_writer, utc_now
from contract.measurement import Finding, Measurement
from contract.measurement_file import write_measurement
from contract.parts import hash_of_part, part_hashes
from contract.records import REQUEST_SCHEMA
from contract.redaction import Redactor
from contract.run_directory import MeasurementDirectory
from contract.streams import KV_SAMPLE_SCHEMA, write_parquet


def finished_measurement(directory: MeasurementDirectory, measurement: Measurement) -> Measurement:
    """The measurement with a status that is final, and with parts that are its own; streams that the run left behind
    become Parquet.

    One that still says "running" although nobody writes its events any more is "interrupted", with the finding
    RUN_CUT_SHORT; parts that the run had not come to name are taken for its own. Raises ArtifactError while the run goes
    on, and where a part is not this measurement's.
    """
    if measurement.status == "running":
        measurement = _cut_short(directory, measurement)
    require_parts(directory, measurement)
    return _without_streams(directory, measurement)


def _without_streams(directory: MeasurementDirectory, measurement: Measurement) -> Measurement:
    """The streams as Parquet files; those that are damaged stay as they are."""
    parts = measurement.parts
    left = []
    for stream, parquet, schema in (
        (directory.requests_stream, directory.requests, REQUEST_SCHEMA),
        (directory.kv_samples_stream, directory.kv_samples, KV_SAMPLE_SCHEMA),
    ):
        if not stream.is_file() or part_problem(measurement, stream) is not None:
            continue
        # Beside a Parquet file too: that one is whole, and the stream it was made from was about to be removed.
        write_parquet(stream, parquet, schema)
        left.append(stream)
        if parts is not None:
            kept = {name: part for name, part in parts.items() if name not in (stream.name, parquet.name)}
            parts = kept | {parquet.name: hash_of_part(parquet)}
    if not left:
        return measurement
    measurement = measurement.model_copy(update={"parts": parts})
    write_measurement(directory.measurement, measurement.model_dump(mode="json"))
    for stream in left:
        stream.unlink()
    return measurement


def _cut_short(directory: MeasurementDirectory, measurement: Measurement) -> Measurement:
    if directory.events.is_file() and has_writer(directory.events):
        raise ArtifactError(f"{directory.root}: this run is still going on; wait for its end, or stop it")
    where = f"in its {measurement.phases[-1].name} phase" if measurement.phases else "before its first phase"
    message = f"the run ended {where} unexpectedly: killed, out of memory or disk, or the machine went down"
    found = Finding(code="RUN_CUT_SHORT", message=f"{message}; what it had recorded is kept")
    measurement = measurement.model_copy(
        update={
            "status": "interrupted",
            "error": message,
            "finished_at": utc_now(),
            "findings": [*measurement.findings, found],
            "parts": None if measurement.parts is None else part_hashes(directory, measurement.parts),
        }
    )
    write_measurement(directory.measurement, measurement.model_dump(mode="json"))
    events = EventLog(directory.events, Redactor())
    events.write("warning", **found.model_dump(mode="json"))
    events.write("run_finished", status=measurement.status, error=message)
    events.close()
    return measurement
