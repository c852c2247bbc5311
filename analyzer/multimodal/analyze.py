"""From a measurement with images to its analysis: what was to be expected, what was counted, and the difference."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from analyzer.actual import hit_rate, reported, sum_known
from analyzer.causes import NO_CAUSE
from analyzer.document import (
    agreement,
    circumstances,
    conclude,
    counters_part,
    differences,
    emptied,
    failed_or_repeated,
    ledgers_differ,
    ledgers_document,
    page_of,
    run_findings,
    runtime_document,
)
from analyzer.kv_usage import damaged_samples, kv_polling, kv_samples, load_window
from analyzer.ledger_states import incomplete_ledgers, ledger_states
from analyzer.ledgers import Answers, Traffic, read_ledgers
from analyzer.multimodal.expected import (
    Expected,
    compared,
    expect,
    expected_document,
    firsts_found,
    together_with_the_first,
)
from analyzer.multimodal.requests import image_request_table, image_tokens
from analyzer.output_ledger import NAME as OUTPUT_TOKENS
from analyzer.output_ledger import output_ledger
from analyzer.request_table import RequestTable
from analyzer.scrapes import ScrapePair, stored_pair
from contract.analysis import prepared_image_analysis
from contract.manifest import Manifest
from contract.measurement import ImageRecord, Measurement
from contract.progress import Progress, silent
from contract.run_directory import MeasurementDirectory
from contract.scenario import Validation
from contract.token_ids import read_token_ids

NO_REPLAY = (
    "the block-exact model replays token ids, which say nothing of images; `expected` is block arithmetic"
)


def image_analysis(
    manifest: Manifest,
    measurement: Measurement,
    directory: MeasurementDirectory,
    _progress: Progress = silent,
) -> dict[str, Any]:
    """The prepared analysis with `runtime`, `expected`, `actual`, `ledgers` and the differences."""
    service, record = measurement.service, measurement.images
    requests = image_request_table(manifest, directory, record)
    scrapes = stored_pair(directory, service, measurement.findings)
    samples = kv_samples(directory, measurement)
    polling = kv_polling(
        samples, service["poll_interval_seconds"], load_window(measurement, requests.attempts)
    )
    expected = expect(
        record, requests, read_token_ids(manifest.directory.token_ids), queries_by_rank(scrapes, service)
    )
    requests = with_theory(requests, expected)
    document = prepared_image_analysis(manifest.document)
    document["status"] = measurement.status
    document["runtime"] = runtime_document(measurement, scrapes, polling)
    document["expected"] = expected_document(expected, record, requests)
    document["theoretical_hit_rate"] = document["expected"]["hit_rate"]
    document["actual"] = counters_part(scrapes, polling["summary"], requests) | {
        "client": reported(requests, requests.answered | True),
        "requests": compared(expected, requests),
        "image_tokens": image_tokens(requests, directory),
        "multimodal_cache": multimodal_cache(scrapes, document["data"]["images_per_request"], requests),
        "failed_requests": requests.failed,
        "void_requests": int(requests.void.sum()),
    }
    _expected_by_rank(document["actual"]["by_dp"], expected, record)
    block_size = (record.match_unit if record else None) or 1
    page = page_of(scrapes, block_size, document["actual"])
    ledgers = read_ledgers(Traffic(page, Answers(requests, service["dp_size"]), NO_REPLAY))
    seen = circumstances(
        scrapes,
        version=measurement.engine.version if measurement.engine else None,
        waiting_peak=polling["summary"]["requests_waiting_peak"],
        settled=measurement.settled,
        unanswered=requests.failed + requests.retried,
        findings=frozenset(finding.code for finding in measurement.findings),
        emptied=emptied(measurement),
    )
    document["prediction"] = {"hit_tokens": None, "hit_rate": None, "reason": NO_REPLAY}
    output = output_ledger(scrapes.difference, requests, service["dp_size"], seen)
    document["ledgers"] = ledgers_document(ledgers, seen) | {OUTPUT_TOKENS: output.document()}
    rate = document["expected"]["hit_rate"]
    document |= (
        differences(rate, document["actual"]["global_hit_rate"])
        if rate is not None
        else dict.fromkeys(differences(0.0, None))
    )
    document["agreement"] = agreement(
        document["expected"]["hit_tokens"], document["expected"]["input_tokens"], ledgers
    )
    document["validation"]["ledgers"] = ledger_states(
        ledgers, document["expected"]["hit_tokens"], document["expected"]["input_tokens"]
    ) | {OUTPUT_TOKENS: output.state()}
    document["warnings"] += run_findings(measurement) + damaged_samples(polling)
    document["warnings"] += _warnings(
        document, scrapes, Validation.model_validate(measurement.validation), expected, requests
    )
    document["warnings"] += output.warnings() + failed_or_repeated(document, requests, directory)
    conclude(document)
    return document


def queries_by_rank(scrapes: ScrapePair, service: Mapping[str, Any]) -> dict[int, int | None]:
    """Queries that each rank counted; None where the counters do not report."""
    counted = {rank.rank: rank.queries for rank in scrapes.difference.ranks} if scrapes.difference else {}
    return {rank: counted.get(rank) for rank in range(service["dp_size"])}


def with_theory(requests: RequestTable, expected: Expected) -> RequestTable:
    """The requests with what each was expected to hit, the first of a rank nothing; zeros where it is not known."""
    theory = expected.least.clip(min=0)
    theory[firsts_found(expected, requests)] = 0
    return replace(requests, plan=replace(requests.plan, theoretical_hit_tokens=theory))


def multimodal_cache(scrapes: ScrapePair, images_per_request: int, requests: RequestTable) -> dict[str, Any]:
    """The cache of processed images, in items: per rank as the engine shows it, and in total."""
    ranks = scrapes.difference.ranks if scrapes.difference else ()
    queries = sum_known([rank.mm_cache_queries for rank in ranks])
    hits = sum_known([rank.mm_cache_hits for rank in ranks])
    reasons = (
        rank.unavailable.get("mm_cache_queries") or rank.unavailable.get("mm_cache_hits") for rank in ranks
    )
    reason = scrapes.reason or next((reason for reason in reasons if reason), None)
    return {
        "by_dp": {
            str(rank.rank): {
                "queries": rank.mm_cache_queries,
                "hits": rank.mm_cache_hits,
                "hit_rate": hit_rate(rank.mm_cache_hits, rank.mm_cache_queries),
            }
            for rank in ranks
        },
        "queries": queries,
        "hits": hits,
        "hit_rate": hit_rate(hits, queries),
        "images_sent": images_per_request * int(requests.answered.sum()),
        "note": "the front end's cache: a rank is where it is shown, not where the image was looked up",
        "reason": reason,
    }


def _expected_by_rank(by_dp: dict[str, Any], expected: Expected, record: ImageRecord | None) -> None:
    """What each rank was expected to hit: all its requests but the first. Null: its queries are no whole requests."""
    for counted in by_dp.values():
        requests, rest = divmod(counted["queries"] or 0, expected.prompt_tokens or 1)
        known = (
            record is not None
            and expected.total is not None
            and expected.prompt_tokens
            and counted["queries"] is not None
            and rest == 0
            and (len(by_dp) == 1 or (expected.least == expected.most).all())
        )
        counted["requests"] = requests if known else None
        if not known or record is None:
            counted["expected_hits"] = None
        elif len(by_dp) == 1:
            counted["expected_hits"] = expected.total
        else:
            counted["expected_hits"] = (requests - bool(requests and not record.primed)) * (
                record.shared_tokens or 0
            )


def _warnings(
    document: dict[str, Any],
    scrapes: ScrapePair,
    validation: Validation,
    expected: Expected,
    requests: RequestTable,
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"code": finding.code, "message": finding.message} for finding in scrapes.findings
    ]
    size = document["theory_actual_absolute_difference_pp"]
    if size is not None and size > validation.actual_warning_pp:
        found.append({"code": "ACTUAL_DEVIATION", "difference_pp": size})
    actual = document["actual"]
    if actual["reason"] is not None:
        found.append({"code": "NOT_MEASURABLE", "message": actual["reason"]})
    found += incomplete_ledgers(document["validation"]["ledgers"])
    of_hits = []
    if actual["requests"]["differing_requests"]:
        cause = (
            "they were sent before the first request of a rank was answered, while the image was still being computed"
            if together_with_the_first(expected, requests)
            else NO_CAUSE
        )
        of_hits.append(
            f"{actual['requests']['differing_requests']} requests found something else than expected: {cause}"
        )
    found += ledgers_differ(document["agreement"], document["ledgers"]["differences"], of_hits=of_hits)
    return found
