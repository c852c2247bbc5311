"""From a measurement with texts to its analysis: theory, prediction, what was counted, and the differences."""

from typing import Any

from analyzer.actual import (
    client_actual,
    comparable,
    per_request,
    void_theory,
)
from analyzer.document import (
    agreement,
    circumstances,
    conclude,
    counters_part,
    differences,
    emptied,
    failed_or_repeated,
    ledgers_document,
    page_of,
    run_findings,
    runtime_document,
    warnings,
)
from analyzer.engine_cache import engine_cache
from analyzer.kv_usage import damaged_samples, kv_polling, kv_samples, load_window
from analyzer.ledger_states import ledger_states
from analyzer.ledgers import Answers, Model, Traffic, read_ledgers
from analyzer.output_ledger import NAME as OUTPUT_TOKENS
from analyzer.output_ledger import output_ledger
from analyzer.prediction import Prediction, predict_hits, prediction_document
from analyzer.rank_comparison import ranks_differ
from analyzer.request_table import RequestTable, request_table
from analyzer.scrapes import stored_pair
from contract.analysis import prepared_analysis
from contract.manifest import Manifest
from contract.measurement import Measurement
from contract.planned import UNKNOWN
from contract.progress import Progress, silent
from contract.run_directory import MeasurementDirectory
from contract.scenario import Validation


def text_analysis(
    manifest: Manifest,
    measurement: Measurement,
    directory: MeasurementDirectory,
    progress: Progress = silent,
) -> dict[str, Any]:
    """The prepared analysis with `runtime`, `actual`, `ledgers`, `prediction` and the differences (reference 4.5)."""
    validation = Validation.model_validate(measurement.validation)
    service = measurement.service
    requests = request_table(manifest.directory.full, directory)
    scrapes = stored_pair(directory, service, measurement.findings)
    samples = kv_samples(directory, measurement)
    polling = kv_polling(
        samples, service["poll_interval_seconds"], load_window(measurement, requests.attempts)
    )
    version = measurement.engine.version if measurement.engine else None
    cache = engine_cache(
        scrapes.before_snapshot,
        manifest.effective_config["tokenizer"]["block_size"],
        version,
    )
    found = {finding.code for finding in measurement.findings}
    prediction = predict_hits(
        manifest, requests, cache, drops_last_block="DROPS_LAST_BLOCK" in found, progress=progress
    )
    document = prepared_analysis(manifest.document, validation)
    document["status"] = measurement.status
    document["runtime"] = runtime_document(measurement, scrapes, polling)
    document["actual"] = counters_part(scrapes, polling["summary"], requests) | {
        "client": client_actual(requests),
        "requests": per_request(requests),
        **void_theory(requests),
    }
    document["prediction"] = prediction_document(requests, prediction)
    ranks = service["dp_size"]
    sent = Answers(requests, ranks)
    ledgers = read_ledgers(
        Traffic(
            page_of(scrapes, cache.block_size, document["actual"]),
            sent,
            Model(document["prediction"], prediction, sent),
        )
    )
    seen = circumstances(
        scrapes,
        version=version,
        waiting_peak=polling["summary"]["requests_waiting_peak"],
        settled=measurement.settled,
        unanswered=requests.failed + requests.retried,
        findings=frozenset(found),
        all_but_one=_all_but_one(requests),
        one_block_less=_one_block_less(requests, prediction),
        prompt_tokens_differing=document["actual"]["requests"]["prompt_tokens_differing"],
        emptied=emptied(measurement),
        prediction_caveats=prediction.caveats,
    )
    output = output_ledger(scrapes.difference, requests, ranks, seen)
    document["ledgers"] = ledgers_document(ledgers, seen) | {OUTPUT_TOKENS: output.document()}
    document |= differences(document["theoretical_hit_rate"], document["actual"]["global_hit_rate"])
    theory = document["theory"]["hit_tokens"], int(requests.plan.input_tokens.sum())
    document["agreement"] = agreement(*theory, ledgers)
    document["validation"]["ledgers"] = ledger_states(ledgers, *theory) | {OUTPUT_TOKENS: output.state()}
    document["warnings"] += run_findings(measurement) + damaged_samples(polling)
    document["warnings"] += warnings(document, scrapes, validation)
    if not requests.void.any():
        document["warnings"] += ranks_differ(document["theory"]["dp"], ledgers["counters"])
    document["warnings"] += output.warnings() + failed_or_repeated(document, requests, directory)
    conclude(document)
    return document


def _all_but_one(requests: RequestTable) -> bool:
    """Whether every answer says that all of its prompt but the last token was cached."""
    compared = comparable(requests)
    return bool(
        compared.any() and (requests.cached_tokens[compared] == requests.prompt_tokens[compared] - 1).all()
    )


def _one_block_less(requests: RequestTable, prediction: Prediction) -> bool:
    """Whether every request that hit something else than predicted hit exactly one block less."""
    compared = comparable(requests) & (prediction.tokens != UNKNOWN)
    missing = (prediction.tokens - requests.cached_tokens)[compared]
    missing = missing[missing != 0]
    return bool(missing.size and (missing == prediction.cache.block_size).all())
