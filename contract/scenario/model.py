"""Scenario schema 1.0: every field and default of the AISBench prefix-cache plugin, and HitLab's own sections.

What a single field may hold is said here; rules between fields are in `contract.scenario.rules`. Unknown fields are
refused everywhere. Keys that belong to another mode of the same length object are tolerated, as users' files have them.
"""

import re
import unicodedata
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from contract.redaction import api_key_problem

LARGEST_LENGTH = 2**31 - 1
LARGEST_NUMBER = 1e15
"""Above what anybody means, and small enough that sums and products of numbers stay finite."""

PositiveInt = Annotated[int, Field(ge=1, le=LARGEST_LENGTH)]
NonNegativeInt = Annotated[int, Field(ge=0, le=LARGEST_LENGTH)]
Number = Annotated[float, Field(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]
PositiveNumber = Annotated[float, Field(gt=0, le=LARGEST_NUMBER)]
NonNegativeNumber = Annotated[float, Field(ge=0, le=LARGEST_NUMBER)]
LONGEST_SECONDS = 2_000_000
"""23 days: the system counts the milliseconds of a wait in 31 bits."""
Seconds = Annotated[float, Field(gt=0, le=LONGEST_SECONDS)]
Concurrency = Annotated[int, Field(ge=1, le=100_000)]
NonEmptyText = Annotated[str, Field(min_length=1)]
GroupName = Annotated[str, Field(pattern=r"^group-(0|[1-9][0-9]{0,5})$")]


class Section(BaseModel):
    """Common behaviour of all sections: strict types, no unknown fields, no change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Run(Section):
    run_id: NonEmptyText = Field(
        "gsm8k-prefix-cache-60", description="Name of the task; a timestamp is appended."
    )
    random_seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] = Field(
        42, description="The one seed of every draw; equal scenario, equal data."
    )
    output_dir: NonEmptyText = Field(
        "./outputs/gsm8k-prefix-cache-60", description="Base of the run directory."
    )
    overwrite: bool = Field(False, description="As prepare --overwrite, never deleting measurements.")


class Tokenizer(Section):
    path: NonEmptyText = Field(
        "/home/weights/Qwen3.6-27B",
        description="Directory, tokenizer.json, hub id, or builtin:demo. Must be the one the server uses.",
    )
    block_size: PositiveInt = Field(16, description="Tokens per prefix-cache block of the server.")
    revision: str | None = Field(None, description="Branch, tag or commit of a hub tokenizer.")
    trust_remote_code: bool = Field(
        False, description="Run the tokenizer's own code. Only for what you trust."
    )


class Selection(Section):
    """Which corpus records are used. `values` is for `indices` and `question_sha256` and wins over the named lists."""

    mode: Literal["random", "indices", "question_sha256", "mixed"] = Field(
        "random",
        description="random: all records, shuffled by run.random_seed; indices, question_sha256: the named ones; mixed: "
        "those of indices, then those of question_sha256.",
    )
    values: list[Any] | None = Field(None, description="Record numbers or hashes, as the mode says.")
    indices: list[NonNegativeInt] | None = Field(None, description="Zero-based, counting non-empty records.")
    question_sha256: list[NonEmptyText] | None = Field(
        None, description="SHA-256 of the normalised text; prepare finds the record."
    )


class Corpus(Section):
    path: NonEmptyText = Field("./GSM8K.jsonl", description="JSON Lines, or builtin:word-problems.")
    field: NonEmptyText = Field("question", description="Field of each JSON object that holds the text.")
    selection: Selection = Selection()


class LengthRange(Section):
    min: PositiveInt = Field(description="Lower bound of the length, inclusive.")
    max: PositiveInt = Field(description="Upper bound of the length, inclusive.")
    count: PositiveInt = Field(description="Requests whose length is drawn from this range.")


class InputLength(Section):
    """Input tokens per request, counted as the server counts them (`usage.prompt_tokens`)."""

    mode: Literal["fixed", "explicit", "range", "truncated_normal", "csv"] = Field(
        "fixed", description="How lengths are chosen; the other fields name the mode that reads them."
    )
    value: PositiveInt = Field(1024, description="fixed: tokens of every request.")
    values: list[PositiveInt] | None = Field(None, description="explicit: one per request.")
    ranges: list[LengthRange] | None = Field(None, description="range: counts add up to the requests.")
    min: PositiveInt | None = Field(None, description="truncated_normal: lower bound, inclusive.")
    max: PositiveInt | None = Field(None, description="truncated_normal: upper bound, inclusive.")
    mean: Number | None = Field(None, description="truncated_normal; default: midpoint.")
    std: PositiveNumber | None = Field(None, description="truncated_normal; default: width/4.")
    path: NonEmptyText | None = Field(
        None, description="csv: column input_prompt_tokens, content_tokens or input_tokens."
    )


class OutputLength(Section):
    """Largest number of output tokens per request (`max_tokens`)."""

    mode: Literal["fixed", "uniform", "truncated_normal", "csv"] = Field(
        "fixed", description="How lengths are chosen; the other fields name the mode that reads them."
    )
    value: PositiveInt = Field(32, description="fixed: tokens of every request.")
    min: PositiveInt | None = Field(None, description="uniform, truncated_normal: lower bound, inclusive.")
    max: PositiveInt | None = Field(None, description="uniform, truncated_normal: upper bound, inclusive.")
    mean: Number | None = Field(None, description="truncated_normal; default: midpoint.")
    std: PositiveNumber | None = Field(None, description="truncated_normal; default: width/4.")
    path: NonEmptyText | None = Field(None, description="csv: column output_tokens.")


class Requests(Section):
    count: Annotated[int, Field(ge=1, le=10**8)] = Field(
        100, description="Requests of the formal load, over all ranks. Warmup requests are not counted."
    )
    input_length: InputLength = InputLength()
    output_length: OutputLength = OutputLength()


class Output(Section):
    output_key: Literal["max_tokens", "output_tokens"] | None = Field(
        None, description="Third column of requests.jsonl, if any."
    )


class Assignment(Section):
    mode: Literal["uniform", "zipf", "weights"] = Field(
        "uniform", description="How requests are divided among the groups."
    )
    exponent: Annotated[float, Field(gt=0, le=50)] = Field(
        1.0, description="zipf: weight of group i is 1/(i+1)^exponent."
    )
    weights: list[NonNegativeNumber] | None = Field(None, description="weights: one per group.")


class GroupOverride(Section):
    input_length: InputLength | None = None
    output_length: OutputLength | None = None
    corpus_selection: Selection | None = None


class Groups(Section):
    count: Annotated[int, Field(ge=1, le=10**6)] = Field(
        1, description="Prefix groups. Requests of a group share a prefix; groups share nothing."
    )
    assignment: Assignment = Assignment()
    overrides: dict[GroupName, GroupOverride] = Field(
        {}, description="Lengths and corpus records of single groups, by name: group-0, group-1, ..."
    )


class Order(Section):
    strategy: Literal[
        "sequential", "within_group_shuffle", "interleave", "global_shuffle", "input_len_asc"
    ] = Field(
        "interleave",
        description="sequential: group by group; within_group_shuffle: group by group, each shuffled; interleave: one of "
        "each group in turn; input_len_asc: the same, shortest first in each group; global_shuffle: all shuffled.",
    )


class PrefixCache(Section):
    mode: Literal["cold", "warmup"] = Field(
        "warmup",
        description="warmup: every prefix is sent to every rank before the measurement; cold: every rank starts empty.",
    )
    target_hit_rate: Annotated[float, Field(ge=0, le=1)] = Field(
        0.6, description="Share of all input tokens that is to be found in the prefix cache."
    )
    seed_blocks: PositiveInt = Field(1, description="Blocks of the unique seed behind the shared prefix.")
    minimum_non_shared_length: PositiveInt | None = Field(
        None, description="Tokens of every request that are never shared; default and least: the seed's."
    )
    groups: Groups = Groups()
    order: Order = Order()


def _api_key(value: str) -> str:
    """Without white space around it; what a header cannot carry is refused, and not shown."""
    problem = api_key_problem(value.strip())
    if problem:
        raise PydanticCustomError("api_key", problem)
    return value.strip()


class Service(Section):
    inference_url: NonEmptyText = Field(
        "http://127.0.0.1:8000/v1/completions",
        description="Where requests are sent: /v1/completions, or /v1/chat/completions for requests with images.",
    )
    metrics_url: NonEmptyText = Field(
        "http://127.0.0.1:8000/metrics", description="The engine's own Prometheus page."
    )
    metrics_urls: list[NonEmptyText] | None = Field(
        None, description="Instead of metrics_url where each port shows only its own ranks."
    )
    reset_url: str | None = Field(
        "http://127.0.0.1:8000/reset_prefix_cache", description="null or empty: not configured."
    )
    model: NonEmptyText = Field("model-name", description="Name under which the engine serves the model.")
    dp_size: Annotated[int, Field(ge=1, le=4096)] = Field(
        2, description="Data-parallel ranks behind the endpoint."
    )
    assume_empty_cache: bool = Field(False, description="Go on, with a warning, without a reset.")
    engine_label_map: dict[str, NonNegativeInt] = Field({}, description="Prometheus engine label to rank.")
    timeout_seconds: Seconds = Field(
        30,
        description="Longest time of a probe, a warmup request, a reset and a scrape; not of the load's requests.",
    )
    api_key: Annotated[str, AfterValidator(_api_key)] = Field(
        "", description="Bearer token; never written. OPENAI_API_KEY is used when empty."
    )
    ca_file: NonEmptyText | None = Field(
        None,
        description="https: certificate of the authority to trust, PEM. Default: SSL_CERT_FILE or REQUESTS_CA_BUNDLE, "
        "else the system's store.",
    )
    client_cert: NonEmptyText | None = Field(
        None, description="https: certificate that the client shows (mutual TLS), PEM, with its key."
    )
    client_key: NonEmptyText | None = Field(
        None, description="The key, PEM, where it is not in the file of client_cert."
    )
    poll_interval_seconds: Annotated[float, Field(ge=0, le=LONGEST_SECONDS)] = Field(
        5.0, description="KV usage sampling in the formal phase; 0 = off."
    )


class Validation(Section):
    target_warning_pp: NonNegativeNumber = Field(
        1.0,
        description="Difference of theory from target above which a warning is given, in percentage points.",
    )
    actual_warning_pp: NonNegativeNumber = Field(
        5.0,
        description="Difference of actual from theory above which a warning is given, in percentage points.",
    )


def _extra_arguments(value: Any) -> Any:
    """Both shapes that users have: an object of flags, or the command line as a list of texts."""
    scalar = (bool, int, float, str)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    if isinstance(value, dict) and all(
        isinstance(flag, str)
        and flag.startswith("-")
        and (
            isinstance(item, scalar) or (isinstance(item, list) and all(isinstance(i, scalar) for i in item))
        )
        for flag, item in value.items()
    ):
        return value
    raise PydanticCustomError(
        "extra_args",
        'must be an object whose keys start with "-" and whose values are scalars or lists of scalars, '
        "or a list of texts",
    )


def _input_columns(value: Any) -> Any:
    if value != ["question", "max_out_len"]:
        raise PydanticCustomError("input_columns", 'must be exactly ["question", "max_out_len"]')
    return value


class AisbenchDataset(Section):
    abbr: NonEmptyText | None = Field(None, description="Name of the data in AISBench's results.")
    input_columns: Annotated[list[str], BeforeValidator(_input_columns)] = Field(
        ["question", "max_out_len"], description="Always this value."
    )
    output_column: Literal["answer"] = Field("answer", description="Always this value.")
    prompt_template: Literal["{question}"] = Field("{question}", description="Always this value.")
    pred_role: NonEmptyText = Field("BOT", description="Role of the answer in AISBench's template.")


class AisbenchModel(Section):
    abbr: NonEmptyText | None = Field(None, description="Name of the model in AISBench's results.")
    attr: Literal["service"] = Field("service", description="Always this value.")
    stream: bool = Field(
        True, description="Stream the answers, for both drivers. false: no TTFT, TPOT and ITL."
    )
    max_out_len: PositiveInt = Field(
        1, description="max_tokens of a row that has none; rows made by prepare have one."
    )
    retry: NonNegativeInt = Field(2, description="AISBench driver: new attempts after a failure; 0 = none.")
    batch_size: Concurrency = Field(1, description="Concurrency, for both drivers.")
    generation_kwargs: dict[str, Any] = Field(
        {"temperature": 0, "ignore_eos": True}, description="Merged into every request body."
    )


PLUGIN_TEMPLATE = "plugins/prefix_cache/config_examples/prefix_cache_perf.py"
"""The template of AISBench's prefix-cache plugin, which its scenarios name by default: HitLab's takes its place."""
DEFAULT_TEMPLATE = f"./{PLUGIN_TEMPLATE}"
"""A name for HitLab's own template, never a file: whatever lies at this place below a current directory is not used."""


class Aisbench(Section):
    config: NonEmptyText = Field(DEFAULT_TEMPLATE, description="Template; the default is HitLab's own.")
    work_dir: NonEmptyText = Field("./outputs/default", description="AISBench's results, a folder per run.")
    extra_args: Annotated[dict[str, Any] | list[str], BeforeValidator(_extra_arguments)] = Field(
        {"--num-warmups": 0},
        description="Further arguments of AISBench: an object of flags, or a list of texts.",
    )
    dataset: AisbenchDataset = AisbenchDataset()
    model: AisbenchModel = AisbenchModel()


class Multimodal(Section):
    mmmu_parquet_dir: NonEmptyText | None = Field(
        None, description="Folder with MMMU's Parquet files, in any folders below."
    )
    scenarios: list[Literal["single_1080p", "multi_720p_5"]] = Field(
        ["single_1080p"],
        description="Exactly one. single_1080p: one image of 1920x1080 a request; multi_720p_5: one of 1280x720, five "
        "times.",
    )


VLLM_FLAGS_OF_THE_SCENARIO = {
    "--model": "tokenizer.path",
    "--served-model-name": "service.model",
    "--data-parallel-size": "service.dp_size",
    "-dp": "service.dp_size",
    "--block-size": "tokenizer.block_size",
    "--revision": "tokenizer.revision",
    "--trust-remote-code": "tokenizer.trust_remote_code",
    "--enable-prefix-caching": "always on",
    "--no-enable-prefix-caching": "always on",
    "--host": "chosen by HitLab",
    "--port": "chosen by HitLab",
    "--uds": "chosen by HitLab",
    "--ssl-keyfile": "chosen by HitLab",
    "--ssl-certfile": "chosen by HitLab",
    "--api-key": "engine.env_from: [VLLM_API_KEY]",
    "--hf-token": "engine.env_from: [HF_TOKEN]",
}
"""Flags of `vllm serve` that a scenario says elsewhere, and where; the rest belongs into `engine.args`."""


VARIABLES_OF_HITLAB = (
    "VLLM_SERVER_DEV_MODE",
    "VLLM_NO_USAGE_STATS",
    "DO_NOT_TRACK",
    "HF_HUB_OFFLINE",
    "HF_HOME",
    "HF_MODULES_CACHE",
    "VLLM_CACHE_ROOT",
    "TRITON_CACHE_DIR",
    "FLASHINFER_WORKSPACE_BASE",
)
"""Variables that a managed engine gets from HitLab."""
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
REFUSED_VARIABLES = ("LD_", "PYTHON", "DOCKER_")
SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD")


def _variable_problem(name: str, text: str) -> str | None:
    upper = name.upper()
    if not VARIABLE.fullmatch(name):
        return "is no name of a variable (letters, digits, _)"
    if any(word in upper for word in SECRET_WORDS):
        return f"may be a secret, and scenarios are stored: set it in the environment, and env_from: [{name}]"
    if name in VARIABLES_OF_HITLAB:
        return "is set by HitLab; remove it"
    if upper.startswith(REFUSED_VARIABLES):
        return "may not be set (LD_*, PYTHON*, DOCKER_*); remove it"
    if any(unicodedata.category(character) == "Cc" for character in text):
        return "has a control character in its value; remove it"
    return None


def _plain_variables(value: dict[str, str]) -> dict[str, str]:
    """They stand in the manifest, and decide neither what is loaded nor what HitLab relies on."""
    for name, text in value.items():
        if problem := _variable_problem(name, text):
            raise PydanticCustomError("variable", "{name} {problem}", {"name": name, "problem": problem})
    return value


def _vllm_arguments(value: list[str]) -> list[str]:
    for item in value:
        flag = item.partition("=")[0]
        place = VLLM_FLAGS_OF_THE_SCENARIO.get(flag.replace("_", "-"))
        if place:
            raise PydanticCustomError(
                "vllm_args",
                "must not hold {flag}: {place}",
                {"flag": flag, "place": f"set {place}" if "." in place else f"it is {place}"},
            )
    return value


class Engine(Section):
    """Where the engine comes from. Model, served name, ranks and block size are not repeated here."""

    kind: Literal["external", "simulator", "vllm"] = Field(
        "external",
        description="external: the engine of `service`; simulator: HitLab's own; vllm: started in a container.",
    )
    blocks_per_rank: Annotated[int, Field(ge=2, le=2**22)] = Field(
        16384, description="simulator: KV-cache blocks of each rank, one of them a placeholder as in vLLM."
    )
    prefill_tokens_per_second: NonNegativeNumber = Field(
        0, description="simulator: prompt tokens computed per second and rank; 0 = at once."
    )
    decode_tokens_per_second: NonNegativeNumber = Field(
        0, description="simulator: output tokens per second of one request; 0 = at once."
    )
    speed_factor: Annotated[float, Field(ge=1e-6, le=LARGEST_NUMBER)] = Field(
        1.0, description="simulator: divides every delay."
    )
    image: NonEmptyText | None = Field(
        None, description="vllm: container image; default HITLAB_VLLM_IMAGE, else vLLM's own for CUDA."
    )
    gpus: Literal["all"] | NonNegativeInt | list[NonEmptyText | NonNegativeInt] | None = Field(
        None, description="vllm: how many, which (indices or UUIDs), or all. Default: all that Docker offers."
    )
    devices: list[Annotated[str, Field(pattern=r"^/dev/[^:]+$")]] = Field(
        [], description="vllm: other accelerators' device files, such as /dev/davinci0."
    )
    args: Annotated[list[str], AfterValidator(_vllm_arguments)] = Field(
        [], description="vllm: further arguments of `vllm serve`, each an item of its own."
    )
    env_from: list[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]] = Field(
        [], description="vllm: names of variables that the engine gets from the runner's environment."
    )
    env: Annotated[dict[str, str], AfterValidator(_plain_variables)] = Field(
        {}, description="vllm: variables that are no secrets, and their values; secrets belong into env_from."
    )
    hf_home: NonEmptyText | None = Field(
        None,
        description="vllm: the host's cache of the model hub (HF_HOME), read-only; default: a volume of Docker's.",
    )
    download: bool = Field(False, description="vllm: let the engine download into hf_home.")
    mounts: list[NonEmptyText] = Field(
        [], description="vllm: further files and folders it may read, at the same path inside."
    )
    shm_size: Annotated[str, Field(pattern=r"^[1-9][0-9]*[kmg]$")] = Field(
        "8g", description="vllm: size of /dev/shm, through which the processes of a rank talk."
    )
    kv_cache_gib: PositiveNumber | None = Field(
        None, description="vllm: KV cache of each rank's workers; default: what vLLM finds room for."
    )
    startup_timeout_seconds: Seconds = Field(
        1800, description="vllm: longest wait for a healthy engine, the pull of the image not counted."
    )
    keep: bool = Field(
        False, description="vllm: leave the engine running, for the next run with the same configuration."
    )


class Driver(Section):
    """How the formal load is sent. What is not set comes from `aisbench.model`, so that drivers mean the same."""

    kind: Literal["native", "aisbench"] | None = Field(
        None, description="Default: aisbench when there is an aisbench section, else native."
    )
    concurrency: Concurrency | None = Field(
        None, description="Requests in flight; default aisbench.model.batch_size."
    )
    timeout_seconds: Seconds | None = Field(
        3600,
        description="Longest time of a request without a new token; without its answer, where it does not stream. "
        "null: no limit.",
    )
    retries: NonNegativeInt | None = Field(
        None,
        description="New attempts after a failure; each voids its row's theory. Default: native 0, aisbench "
        "aisbench.model.retry.",
    )


class Scenario(Section):
    schema_version: Literal["1.0"] = "1.0"
    run: Run = Run()
    tokenizer: Tokenizer = Tokenizer()
    corpus: Corpus = Corpus()
    requests: Requests = Requests()
    output: Output = Output()
    prefix_cache: PrefixCache = PrefixCache()
    service: Service = Service()
    validation: Validation = Validation()
    aisbench: Aisbench = Aisbench()
    multimodal: Multimodal = Multimodal()
    engine: Engine = Engine()
    driver: Driver = Driver()

    @property
    def seed_tokens(self) -> int:
        return self.prefix_cache.seed_blocks * self.tokenizer.block_size

    @property
    def minimum_non_shared_length(self) -> int:
        """Tokens of every request that no other request shares (reference: default is the seed's length)."""
        return self.prefix_cache.minimum_non_shared_length or self.seed_tokens

    @property
    def driver_kind(self) -> Literal["native", "aisbench"]:
        """What sends the formal load."""
        return self.driver.kind or ("aisbench" if "aisbench" in self.model_fields_set else "native")

    @property
    def retries(self) -> int:
        """New attempts of a request after a failure."""
        if self.driver.retries is not None:
            return self.driver.retries
        return self.aisbench.model.retry if self.driver_kind == "aisbench" else 0

    @property
    def concurrency(self) -> int:
        return self.driver.concurrency or self.aisbench.model.batch_size

    @property
    def request_timeout_seconds(self) -> float | None:
        """Of the requests of the load; those before it have `service.timeout_seconds`."""
        return self.driver.timeout_seconds
