"""AISBench's own warmup (`--num-warmups`), sent before the baseline is taken.

AISBench would send the first rows once more, after the baseline: their tokens would be counted, and in cold mode their
prefixes would be in the cache before the row that is to compute them. Here the prompts begin with a word of this run, so
that no block of them is one of a planned request.
"""

import secrets
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle, islice

import orjson

from contract.errors import ServiceError
from contract.files import open_file
from contract.manifest import Manifest
from contract.multimodal import image_dataset
from contract.progress import Progress
from contract.records import RequestRecord
from contract.rows import read_rows
from contract.scenario import Scenario
from runner.control import ControlClient
from runner.drivers.native.lanes import OutgoingRequest
from runner.drivers.native.load import run_load
from runner.multimodal.bodies import outgoing_image_requests
from runner.request_bodies import most_output_tokens


def send_warmups(
    client: ControlClient,
    scenario: Scenario,
    manifest: Manifest,
    count: int,
    *,
    api_key: str,
    stop: threading.Event,
    progress: Progress,
) -> None:
    """Send `count` requests of the shape of the first rows. Raises ServiceError when none of them is answered."""
    records: list[RequestRecord] = []

    def on_record(record: RequestRecord) -> None:
        records.append(record)
        progress("Warm up (--num-warmups)", len(records), count)

    with ExitStack() as files:
        run_load(
            _image_requests(client, scenario, manifest, count, files)
            if manifest.mode == "mm"
            else _requests(client, scenario, manifest, count),
            url=client.engine.inference_url,
            concurrency=scenario.concurrency,
            on_record=on_record,
            stop=stop,
            api_key=api_key or None,
            trust=client.engine.trust,
            timeout_seconds=scenario.request_timeout_seconds,
        )
    if records and all(record.error_kind is not None for record in records) and not stop.is_set():
        last = records[-1]
        raise ServiceError(
            f"aisbench.extra_args: none of {count} warmup requests was answered ({last.error_kind}: {last.error_text})"
        )


def _image_requests(
    client: ControlClient, scenario: Scenario, manifest: Manifest, count: int, files: ExitStack
) -> Iterator[OutgoingRequest]:
    """The first rows as they are: the reset behind them empties what they leave. `files` keeps theirs open."""
    dataset = image_dataset(manifest)
    first = outgoing_image_requests(
        files.enter_context(open_file(dataset.requests)),
        dataset,
        model=client.engine.model,
        stream=False,
        generation_kwargs=scenario.aisbench.model.generation_kwargs,
    )
    return islice(cycle(list(islice(first, count))), count)


def _requests(
    client: ControlClient, scenario: Scenario, manifest: Manifest, count: int
) -> Iterator[OutgoingRequest]:
    model = scenario.aisbench.model
    run = secrets.token_hex(8)
    first = islice(read_rows(manifest.directory.full), count)
    for number, row in enumerate(islice(cycle(first), count)):
        own = f"{run} {number} "
        # Cut by what the word adds, so that a prompt that just fits still does.
        body = {
            **model.generation_kwargs,
            "model": client.engine.model,
            "stream": False,
            "prompt": own + row["question"][len(own) :],
            "max_tokens": row["max_tokens"],
        }
        yield OutgoingRequest(
            position=number,
            request_id=f"aisbench-warmup-{number}",
            group=row["group_id"],
            body=orjson.dumps(body),
            dp_rank=row["dp_rank"],
            most_output_tokens=most_output_tokens(row["max_tokens"], model.generation_kwargs),
        )
