"""`measurement.json`: what the runner did and found, without any judgement of the hit rate."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from contract.errors import ExitCode

Phase = Literal["precheck", "reset", "warmup", "baseline", "formal", "settle", "after"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Finding(_Part):
    """Something the reader of the result has to know. `tokens` is how much it is about, where that is known."""

    code: str
    message: str
    tokens: int | None = None


class Check(_Part):
    """One check before the load. Only `failed` stops the run; `warning` and `not_checked` say why in `detail`."""

    name: str
    status: Literal["ok", "warning", "failed", "not_checked"]
    detail: str


class PhaseRecord(_Part):
    name: Phase
    started_at: str
    finished_at: str | None = None


class WarmupRecord(_Part):
    group_id: str
    dp_rank: int
    success: bool
    elapsed_seconds: float | None
    prompt_tokens: int | None
    cached_tokens: int | None = None


class ContainerRecord(_Part):
    """The container of a managed engine: enough to start the same engine again, and no secret.

    `image_digest` is what a registry knows the image by; null for one that was built on the spot, which `image_id` tells
    apart. `env_from` are names: the values are never written. `reused`: it was there already (engine.keep).
    """

    name: str
    image: str
    image_id: str
    image_digest: str | None
    command: list[str]
    environment: dict[str, str]
    env_from: list[str]
    configuration_sha256: str
    startup_seconds: float | None
    reused: bool


class EngineRecord(_Part):
    """Which engine answered. URLs as used, without credentials."""

    kind: str
    inference_url: str
    metrics_urls: list[str]
    reset_url: str | None
    model: str
    version: str | None
    max_model_len: int | None
    block_size: int | None
    num_gpu_blocks: list[int | None]
    container: ContainerRecord | None = None


class ImageRecord(_Part):
    """What a request with images looks like to the engine, as the probes showed it, in tokens. Null with `reason`.

    `prompt_tokens`: of every request. `image_tokens`: those of them that stand for its images. `tokens_before_text`: what
    all requests have in common. `shared_tokens`: how many of these hit, in whole blocks, where they are cached.
    `primed`: the image's blocks are in every rank's cache when the load begins. `image_caches_reset`: processed images
    and encodings are not.
    """

    scenario: str
    images_per_request: int
    prompt_tokens: int
    image_tokens: int | None
    tokens_before_text: int | None
    tokens_after_text: int | None
    match_unit: int | None
    shared_tokens: int | None
    drops_last_block: bool = False
    primed: bool = False
    image_caches_reset: bool = False
    reason: str | None = None


class LoadRecord(_Part):
    """How the formal load went, beside the request records.

    `mean_while_waiting`: requests in flight, on average over the time in which others were left to start, from when all
    slots were taken for the first time (else from the start); null when no other was left then.
    `lane_wait_seconds`: slot-seconds that stayed empty while requests waited for their lanes; null when a rate left
    slots empty as well.
    """

    driver: str
    concurrency: int
    stream: bool
    retries: int
    timeout_seconds: float | None
    started: int
    finished: int
    failed: int
    aborted: int
    retried: int
    wall_seconds: float
    mean_in_flight: float
    max_in_flight: int
    lane_wait_seconds: float | None
    mean_while_waiting: float | None = None


class AisbenchRecord(_Part):
    """What AISBench left: its own folder of this run, and what is beside this file (null: there is none)."""

    version: str
    results: str
    csv: str | None
    summary: str | None
    config: str
    log: str
    exit_code: int | None
    total_requests: int | None
    failed_requests: int | None


class Measurement(_Part):
    """What the runner did and found.

    status: complete (every request was answered), partial (some failed, or the engine showed no counters afterwards),
    interrupted, failed (did not get through: `error`, and the exit code `error_code` that goes with it). parts: name of a
    file beside this one -> its SHA-256; null in measurements of HitLab 0.1, whose files nothing ties together.
    """

    schema_version: Literal["1.0", "1.1"] = "1.1"
    status: Literal["running", "complete", "partial", "interrupted", "failed"]
    run_id: str
    stamp: str
    manifest_sha256: str
    started_at: str
    finished_at: str | None = None
    overrides: dict[str, Any] = {}
    service: dict[str, Any]
    validation: dict[str, Any]
    engine: EngineRecord | None = None
    preflight: list[Check] = []
    phases: list[PhaseRecord] = []
    warmup: list[WarmupRecord] = []
    images: ImageRecord | None = None
    load: LoadRecord | None = None
    aisbench: AisbenchRecord | None = None
    settled: bool | None = None
    kv_polling_failures: int = 0
    findings: list[Finding] = []
    error: str | None = None
    error_code: ExitCode | None = None
    parts: dict[str, str] | None = None

    @property
    def ending(self) -> ExitCode:
        """How every command that measures or analyses this ends, as far as the load alone decides it."""
        if self.status == "interrupted":
            return ExitCode.INTERRUPTED
        if self.status == "failed":
            return self.error_code or ExitCode.SERVICE
        if self.load is not None and self.load.failed:
            return ExitCode.REQUESTS_FAILED
        return ExitCode.INCONCLUSIVE if self.status == "partial" else ExitCode.DONE
