"""What a bench leaves: a manifest of its kind, and a measurement with its phases and the evidence of the cache."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from contract.measurement import Measurement

WARM_REQUESTS = "warmup.parquet"
EXPECTED = "expected.parquet"
ANSWERS = "answers.jsonl"
"""Files of a bench's measurement directory, beside those of every measurement: the records of the warm phases, what the
block model expected of each request, and the answers that are scored."""

Stage = Literal["warmup", "formal"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BenchPhase(_Part):
    """How one phase of a workload was sent.

    requested_concurrency: limit of requests in flight, None at a fixed rate; mean_in_flight is what was reached.
    requested_rate: requests per second, None without a rate; reached_rate is what was started, over the time asked for.
    withdrawn: requests that had not started when the time of a fixed rate was over. lag: seconds between the time of a
    request and its start.
    """

    name: str
    stage: Stage
    planned: int
    started: int
    answered: int
    failed: int
    aborted: int
    withdrawn: int
    seconds: float
    requested_concurrency: int | None
    mean_in_flight: float
    max_in_flight: int
    requested_rate: float | None
    reached_rate: float | None
    mean_lag_seconds: float
    max_lag_seconds: float
    reopened_connections: int


class LookupCounts(_Part):
    requested_tokens: int
    hit_tokens: int


class CacheEvidence(_Part):
    """What the cache did in all phases of a stage. None: see `unavailable`, field -> reason.

    query_tokens, hit_tokens: differences of the engine's prefix-cache counters; external_...: of its KV connector.
    prompt_tokens, cached_tokens: sums over the answers. predicted_least, predicted_most: hit tokens by the block-exact
    model; they part where a conversation quotes answers whose tokens are not known. lmcache: family of counters ->
    tokens that its server looked up and found.
    """

    stage: Stage
    query_tokens: int | None = None
    hit_tokens: int | None = None
    external_query_tokens: int | None = None
    external_hit_tokens: int | None = None
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    predicted_least: int | None = None
    predicted_most: int | None = None
    compared: int = 0
    as_predicted: int = 0
    differing: list[str] = []
    lmcache: dict[str, LookupCounts] | None = None
    unavailable: dict[str, str] = {}


class BenchRecord(_Part):
    phases: list[BenchPhase] = []
    cache: list[CacheEvidence] = []


class BenchMeasurement(Measurement):
    """`measurement.json` of a bench."""

    bench: BenchRecord = BenchRecord()
