"""Priming every group's prefix on every rank before the baseline."""

import threading

from contract.errors import ServiceError
from contract.manifest import Manifest
from contract.measurement import Finding, WarmupRecord
from contract.progress import Progress
from contract.records import RequestRecord
from contract.scenario import Scenario
from runner.control import ControlClient
from runner.drivers.native.load import run_load
from runner.request_bodies import warmup_requests


def warm_up(
    client: ControlClient,
    scenario: Scenario,
    manifest: Manifest,
    *,
    api_key: str,
    stop: threading.Event,
    progress: Progress,
) -> list[WarmupRecord]:
    """Send the warmup plan, ranks in parallel. Raises ServiceError when one request is not answered as planned.

    A rank that was not warmed would make every later number wrong, so there is no going on without it.
    """
    plan = manifest.warmup_plan
    planned = {item["request_id"]: item for item in plan}
    records: list[RequestRecord] = []

    def on_record(record: RequestRecord) -> None:
        records.append(record)
        progress("Warm up", len(records), len(plan))

    run_load(
        warmup_requests(plan, model=client.engine.model, ranks=client.engine.ranks),
        url=client.engine.inference_url,
        concurrency=client.engine.ranks,
        on_record=on_record,
        stop=stop,
        api_key=api_key or None,
        timeout_seconds=scenario.service.timeout_seconds,
    )
    done = []
    for record in records:
        item = planned[record.request_id]
        if record.error_kind is not None and not stop.is_set():
            raise ServiceError(
                f"warmup of {item['group_id']} on rank {item['dp_rank']} failed ({record.error_kind}: "
                f"{record.error_text}); is service.timeout_seconds {scenario.service.timeout_seconds:g} long enough "
                f"for {item['input_tokens']} tokens?"
            )
        if record.error_kind is None and record.prompt_tokens != item["input_tokens"]:
            raise ServiceError(
                f"warmup of {item['group_id']} on rank {item['dp_rank']}: the engine counts {record.prompt_tokens} "
                f"tokens, {item['input_tokens']} were prepared; set tokenizer.path to the engine's tokenizer"
            )
        done.append(
            WarmupRecord(
                group_id=item["group_id"],
                dp_rank=item["dp_rank"],
                success=record.error_kind is None,
                elapsed_seconds=record.e2el_s,
                prompt_tokens=record.prompt_tokens,
                cached_tokens=record.cached_tokens,
            )
        )
    return done


def contamination(records: list[WarmupRecord]) -> Finding | None:
    """No warmup shares a block with another on its rank, so whatever one finds in the cache is older than this run."""
    found = sum(record.cached_tokens or 0 for record in records)
    if not found:
        return None
    message = f"the cache was not empty: the warmup found {found} tokens of an earlier run in it"
    return Finding(code="CONTAMINATED", message=message, tokens=found)
