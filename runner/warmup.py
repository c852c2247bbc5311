"""Priming every group's prefix on every rank before the baseline."""

import threading
from typing import Any

from contract.errors import ServiceError
from contract.manifest import Manifest
from contract.measurement import Check, Finding, WarmupRecord
from contract.progress import Progress
from contract.records import RequestRecord
from contract.scenario import Scenario
from runner.control import ControlClient
from runner.drivers.native.load import run_load
from runner.probe import uncounted
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
    """Send the warmup plan, ranks in parallel. Raises ServiceError as soon as a request is not answered as planned.

    A rank that was not warmed would make every later number wrong, so there is no going on without it.
    """
    plan = manifest.warmup_plan
    planned = {item["request_id"]: item for item in plan}
    done: list[WarmupRecord] = []

    def on_record(record: RequestRecord) -> None:
        item = planned[record.request_id]
        # Aborted ones are the consequence of a stop or of the first failure, which is the one to tell.
        if record.error_kind != "aborted":
            _require_as_planned(record, item, scenario.service.timeout_seconds)
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
        progress("Warm up", len(done), len(plan))

    run_load(
        warmup_requests(plan, model=client.engine.model, ranks=client.engine.ranks),
        url=client.engine.inference_url,
        concurrency=client.engine.ranks,
        on_record=on_record,
        stop=stop,
        api_key=api_key or None,
        trust=client.engine.trust,
        timeout_seconds=scenario.service.timeout_seconds,
    )
    return done


def _require_as_planned(record: RequestRecord, item: dict[str, Any], timeout_seconds: float) -> None:
    which = f"warmup of {item['group_id']} on rank {item['dp_rank']}"
    if record.error_kind is not None:
        failed = f"{which} failed ({record.error_kind}: {record.error_text})"
        if record.error_kind == "timeout":
            failed += f"; is service.timeout_seconds {timeout_seconds:g} long enough for {item['input_tokens']} tokens?"
        raise ServiceError(failed)
    if record.prompt_tokens != item["input_tokens"]:
        if record.prompt_tokens is None:
            raise ServiceError(f"{which}: {uncounted(item['input_tokens'])}")
        raise ServiceError(
            f"{which}: the engine counts {record.prompt_tokens} tokens, {item['input_tokens']} were prepared; "
            "set tokenizer.path to the engine's tokenizer"
        )


def contamination(records: list[WarmupRecord]) -> tuple[Check, Finding | None]:
    """No warmup shares a block with another on its rank, so whatever one finds in the cache is older than this run."""
    name, silent = "contamination", sum(record.cached_tokens is None for record in records)
    found = sum(record.cached_tokens or 0 for record in records)
    if found:
        message = f"the cache was not empty: the warmup found {found} tokens of an earlier run in it"
        return Check(name=name, status="warning", detail=message), Finding(
            code="CONTAMINATED", message=message, tokens=found
        )
    if silent or not records:
        reason = f"{silent} of {len(records)} answers of the warmup do not report cached_tokens"
        return Check(name=name, status="not_checked", detail=reason), None
    return Check(name=name, status="ok", detail=f"{len(records)} requests of the warmup found nothing"), None
