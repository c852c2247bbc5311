"""The requests of a run with images beside what the engine answered, in the columns that text has as well."""

from typing import Any

import numpy as np
import pyarrow as pa

from analyzer.request_table import RequestTable, join_records, record_batches, request_table
from contract.manifest import Manifest
from contract.measurement import ImageRecord, Measurement
from contract.multimodal import image_dataset
from contract.planned import UNKNOWN, PlannedColumns
from contract.run_directory import MeasurementDirectory


def image_request_table(
    manifest: Manifest, directory: MeasurementDirectory, record: ImageRecord | None
) -> RequestTable:
    """All requests, in one group that is named by the image scenario; the service chose their ranks.

    Their input tokens are those that the probes showed, 0 where there were none. Theory is left at 0: it depends on the
    run. Raises ArtifactError as `request_table` does.
    """
    dataset, count = image_dataset(manifest), manifest.request_count
    zero = np.zeros(count, dtype=np.int64)
    plan = PlannedColumns(
        group=zero,
        groups=(dataset.name,),
        rank=zero + UNKNOWN,
        input_tokens=zero + (record.prompt_tokens if record else 0),
        max_tokens=zero + int(manifest.document["output_tokens"]),
        shared_prefix_tokens=zero,
        theoretical_hit_tokens=zero,
    )
    return join_records(plan, directory, dataset.requests.name)


def requests_of(
    manifest: Manifest, directory: MeasurementDirectory, measurement: Measurement | None
) -> RequestTable:
    """The requests of a measurement, whatever kind of data it sent. Raises ArtifactError as `request_table` does."""
    if manifest.mode == "mm":
        return image_request_table(manifest, directory, measurement.images if measurement else None)
    return request_table(manifest.directory.full, directory)


def image_tokens(requests: RequestTable, directory: MeasurementDirectory) -> dict[str, Any]:
    """Of the answered requests: how many of their tokens stood for images, as the answers report it."""
    columns = [batch.column(0) for batch in record_batches(directory, ["image_tokens"])]
    column = pa.chunked_array(columns, type=pa.int64()).to_pylist()
    told = [column[attempt] for attempt in requests.last[requests.answered].tolist()]
    known = [tokens for tokens in told if tokens is not None]
    reason = None
    if not told:
        reason = "no request was answered"
    elif len(known) < len(told):
        reason = (
            f"{len(told) - len(known)} of {len(told)} answers have no usage.prompt_tokens_details.multimodal_tokens; "
            "this engine does not report it, or was started without --enable-prompt-tokens-details"
        )
    whole = not reason
    return {
        "total": sum(known) if whole else None,
        "per_request_min": min(known) if whole else None,
        "per_request_max": max(known) if whole else None,
        "reason": reason,
    }
