"""What every warning code means and what to do about it: one place for the report, dashboards and documents."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class WarningText:
    """For a reader who sees the code for the first time."""

    meaning: str
    advice: str


WARNING_TEXTS: Mapping[str, WarningText] = {
    "TARGET_UNREACHABLE": WarningText(
        "With these lengths and groups no order and no choice of prefixes gives the requested hit rate. The data was "
        "built for the nearest reachable rate.",
        "Request a rate inside the reachable range, or change what limits it: longer inputs, fewer groups, more "
        "requests, a smaller block size.",
    ),
    "TARGET_DEVIATION": WarningText(
        "The hit rate that the data was built for is farther from the target than validation.target_warning_pp.",
        "Look at the reachable range of the scenario with hitlab inspect; a target inside it, or more requests, brings "
        "the two together.",
    ),
    "ACTUAL_DEVIATION": WarningText(
        "The engine's counters are farther from theory than validation.actual_warning_pp.",
        "Read the other warnings and the causes beside the ledgers first: they say how many tokens are missing and "
        "why.",
    ),
    "OVERSHOOT": WarningText(
        "The planned cumulative hit rate is above the target for a while before the end.",
        "The final rate is still exact. A run that is stopped early shows a rate that is too high; more requests or "
        "another order make the curve smoother.",
    ),
    "OVERSHOOT_NOT_PROVEN_SMALLEST": WarningText(
        "The search for the smoothest plan was cut short, so one with a smaller overshoot may exist.",
        "The final rate is still exact; fewer requests or groups let the search finish.",
    ),
    "FALL": WarningText(
        "The planned cumulative hit rate falls for a while instead of rising steadily.",
        "The final rate is still exact; another order or more requests make the curve smoother.",
    ),
    "ASSUME_EMPTY_CACHE": WarningText(
        "The cache was not reset before the run, because service.assume_empty_cache says that it is empty. What earlier "
        "traffic left there counts as hits.",
        "Configure service.reset_url (vLLM mounts the route with VLLM_SERVER_DEV_MODE=1), or restart the engine before "
        "each run.",
    ),
    "CONTAMINATED": WarningText(
        "The cache held blocks of earlier traffic when the run began. Hits on them are counted, but are not in theory.",
        "Reset the cache or restart the engine, external tiers included, then measure again.",
    ),
    "KV_CAPACITY": WarningText(
        "A rank's KV cache is too small for this load: shared prefixes, counted once, and what running requests add to "
        "them do not fit, or prefixes are evicted before they are used again.",
        "Lower the concurrency, the number of groups or the lengths, or give the engine more KV cache. The message "
        "says how many hit tokens the block model loses; if you want to measure eviction, compare with the "
        "prediction.",
    ),
    "CONCURRENCY_NOT_REACHED": WarningText(
        "Fewer requests are in flight than requested, although others were left to start: latencies and throughput "
        "are those of a lighter load.",
        "Ask for what can be reached (driver.concurrency, else aisbench.model.batch_size), or plan more lanes: in cold "
        "mode each group on each rank is one, and sends one request at a time.",
    ),
    "IMAGE_CACHE_NOT_RESET": WarningText(
        "The caches of processed images and of their encodings could not be emptied, so the engine may have known the "
        "image when the load began; the multimodal counters may show one hit more.",
        "Start vLLM with VLLM_SERVER_DEV_MODE=1, which mounts /reset_mm_cache and /reset_encoder_cache; otherwise "
        "read the first request's TTFT as that of a known image.",
    ),
    "TEXT_TOKENS_DIFFER": WarningText(
        "In the engine's chat template a text has a different number of tokens than by itself, so requests are not "
        "exactly as long as requests.input_length says.",
        "The shared part is not affected: it ends before the text. Check whether tokenizer.path is the engine's own "
        "tokenizer.",
    ),
    "DROPS_LAST_BLOCK": WarningText(
        "The engine does not use the last matched block of each request, as vLLM does with EAGLE or MTP speculation.",
        "Expect one block less per hit than theory says, or measure without speculation.",
    ),
    "UNEXPECTED_HITS": WarningText(
        "A prompt that was sent twice hit a different number of tokens than its full blocks hold. The engine counts "
        "hits in a different unit than the one the data was built for.",
        "Set tokenizer.block_size to the unit in which this engine finds prefixes, and prepare again.",
    ),
    "METRICS_NOT_THIS_ENGINE": WarningText(
        "The metrics page does not belong, or not only, to the engine that answers: a router or a balancer returns "
        "the page of one of several engines, or its own. No number is taken from it.",
        "Name the metrics page of the engine itself, and send to one engine. What the answers reported "
        "(cached_tokens) remains valid. `hitlab run` ends with exit code 4; a bench continues without counters.",
    ),
    "PROBE_LEDGERS_DIFFER": WarningText(
        "For the same probe the engine's counters and its answer report different hits, so one of the two is wrong.",
        "Compare both with the whole blocks that the message names: the one that fits them is the one to trust in the "
        "result.",
    ),
    "ENGINE_NOT_IDLE": WarningText(
        "The engine did not become idle before the load, so the first scrape may miss tokens of requests that were "
        "still running.",
        "Stop other traffic to the engine, then measure again.",
    ),
    "FOREIGN_TRAFFIC": WarningText(
        "The counters show more tokens than the answers of this run: other clients used the engine during the run.",
        "Take the hit rate from the answers (cached_tokens), or measure again on an engine without other traffic.",
    ),
    "AISBENCH_COUNTS_DIFFER": WarningText(
        "AISBench's own summary counts other requests, or other failures, than the records of this run.",
        "Trust the records (requests.parquet): they were written request by request. AISBench's tables beside them say "
        "less than the whole.",
    ),
    "COUNTERS_NOT_SETTLED": WarningText(
        "The counters never reached exactly the tokens that were answered: the last scrape is incomplete, or some "
        "requests were not counted, or were counted twice.",
        "Look at the engine's log for preempted, aborted or retried requests; measure again.",
    ),
    "AFTER_SCRAPE_MISSING": WarningText(
        "The engine gave no metrics after the load, so nothing is known from its counters.",
        "Look at the engine's log: did it end or hang? What the answers reported is kept.",
    ),
    "RUN_CUT_SHORT": WarningText(
        "The run ended without finishing: it was killed, ran out of memory or disk, or the machine went down.",
        "What had been recorded is analysed; measure again for a whole result.",
    ),
    "NOT_MEASURABLE": WarningText(
        "The engine's counters give no hit rate for this run.",
        "Read the reason; what the answers reported (cached_tokens) may still give one.",
    ),
    "SAMPLES_DAMAGED": WarningText(
        "The samples of the KV cache are not what the run wrote, so its usage during the load is not known.",
        "Nothing else is affected; restore kv_samples.parquet, or measure again.",
    ),
    "PARTS_UNPROVEN": WarningText(
        "This measurement is of an early HitLab, whose measurement.json does not name its files, so nothing proves that "
        "they are its own.",
        "Where that matters, measure again.",
    ),
    "LEDGER_INCOMPLETE": WarningText(
        "Some answers lack the field that this ledger is made of, so it has no sum and checks nothing.",
        "See validation.ledgers for how many; a gateway or one of several engines may omit a field of usage.",
    ),
    "QUERY_TOKENS_DIFFER": WarningText(
        "The ledgers do not count the same number of input tokens, so they do not describe the same traffic.",
        "See the cause beside the ledgers: other traffic, failed or repeated requests, or counters that leave some out.",
    ),
    "HIT_TOKENS_DIFFER": WarningText(
        "Theory, prediction and the ledgers of the engine do not agree on the number of hit tokens.",
        "See the causes beside the ledgers, and where the curve of actual leaves the curve of theory.",
    ),
    "REQUESTS_FAILED": WarningText(
        "Some requests failed or were never sent. What they would have left in the cache is missing, so the expected "
        "hits of themselves and of the later requests in their lanes are void.",
        "See the errors, remove their cause, and measure again; rates of this run are those of the requests that got "
        "through.",
    ),
    "OUTPUT_TOKENS_DIFFER": WarningText(
        "The engine's counter of generated tokens and the answers do not agree on how many tokens were written.",
        "Read the cause in the message; speeds in tokens are made of what the answers say. A gateway that counts again, "
        "failed requests and other traffic are where to look.",
    ),
    "ATTEMPTS_REPEATED": WarningText(
        "Requests were sent again after a failure. An attempt that was given up may have left its prompt in the cache, "
        "where the next one finds it: the hit rate is then higher than the data was built for.",
        "Remove the cause that the message names (driver.timeout_seconds is the longest time without a new token), or "
        "allow no repeats (driver.retries: 0), and measure again.",
    ),
    "REUSE_MISSING": WarningText(
        "A bench put texts into the cache, and its measured phase did not find all of them there.",
        "The message says what the ledgers show about the cause; the expectation says how much fits into the cache.",
    ),
    "PREFIX_CACHING_OFF": WarningText(
        "The engine says in its own metrics that its prefix caching is off, so a bench measures it without reuse.",
        "Start vLLM with --enable-prefix-caching to measure reuse; leave it off for a baseline.",
    ),
    "NO_WARMUP": WarningText(
        "The warm phases were skipped, although this workload measures what they leave in the cache.",
        "Use these numbers as a cold start only; leave --no-warmup out to measure reuse.",
    ),
    "WARM_REQUESTS_FAILED": WarningText(
        "Requests of a warm phase failed, so the cache was not as the measured phase was meant to find it.",
        "Remove the cause that the message names, and measure again.",
    ),
    "RATE_NOT_REACHED": WarningText(
        "Requests did not start at the requested rate, so latencies are those of a lighter load.",
        "Request a lower rate or give the workload more users; a user who waits for an answer sends nothing.",
    ),
    "PROMPT_LENGTH_DIFFERS": WarningText(
        "The engine counts a different number of tokens in a prompt than its own tokenizer gives for the same "
        "conversation.",
        "Look for a proxy that rewrites prompts, or a chat template that is not the engine's own.",
    ),
    "TOKENS_UNTIMED": WarningText(
        "Answers of several tokens arrived all at once, or as token counts without text. Their tokens have no times of "
        "their own, so neither ITL nor decode speed can be measured; TTFT is the time of the whole answer.",
        "Send to the engine directly, or switch off buffering in the proxy in front of it (nginx: proxy_buffering "
        "off).",
    ),
    "BENCH_NOTE": WarningText(
        "Something about how this bench was made that a reader of its numbers should know.",
        "Read the message.",
    ),
    "PROMETHEUS_CANNOT_REACH": WarningText(
        "Prometheus cannot reach the engine's metrics page, so the dashboards show nothing of this run.",
        "Only dashboards are affected; the measurement scrapes by itself. Give the engine an address that Prometheus "
        "reaches.",
    ),
    "COUNTER_WENT_BACKWARDS": WarningText(
        "A counter was lower after the load than before: the engine restarted, or another process answered.",
        "Scrape each API server and rank by itself (service.metrics_urls), keep the engine running, measure again.",
    ),
    "HITS_EXCEED_QUERIES": WarningText(
        "The counters show more hits than queries: the two scrapes were not taken while the engine was idle.",
        "Measure again, and scrape when the engine is idle.",
    ),
    "RANKS_DIFFER": WarningText(
        "In cold mode the plan assigns every request to a rank, and the counters of a rank show a different number of "
        "tokens than was assigned to it.",
        "Where two ranks are swapped, correct service.engine_label_map or the addresses; otherwise see what the "
        "ledgers say.",
    ),
    "RANKS_CHANGED": WarningText(
        "The two scrapes show different data-parallel ranks.",
        "Keep the same engine over the whole run; name every rank's page in service.metrics_urls.",
    ),
    "ENGINE_RESTARTED": WarningText(
        "The second scrape is of a process that started later than the first one's: the engine restarted between them, "
        "or another engine's page was read.",
        "Look at the engine's log for why, then measure again.",
    ),
    "MODEL_CHANGED": WarningText(
        "The two scrapes show counters of different models, so they are not of one engine.",
        "Take both scrapes from the engine that was measured.",
    ),
    "SERIES_CHANGED": WarningText(
        "The two scrapes show other series of queries and hits: one is incomplete, or another process answered.",
        "Save whole pages, and those of one process.",
    ),
    "SCRAPE_UNUSABLE": WarningText(
        "A scrape violates its format (cut off, a series twice) or contradicts itself, so no rate can be computed "
        "from it.",
        "Save the whole page of one process, once; see the message for what is wrong with this one.",
    ),
    "COUNTER_CHANGED": WarningText(
        "The two scrapes come from counters of different names or units, so no difference can be taken.",
        "Take both scrapes from one version of the engine.",
    ),
}


def warning_message(warning: Mapping[str, Any]) -> str:
    """What an entry of `warnings` says about this run, without its code (reference 4.5 has three kinds of entries)."""
    if "message" in warning:
        return str(warning["message"])
    if "difference_pp" in warning:
        return f"{warning['difference_pp']:.2f} pp"
    return (
        f"{warning['requested_target_hit_rate']:.2%} requested, {warning['reachable_min']:.2%} to "
        f"{warning['reachable_max']:.2%} reachable"
    )
