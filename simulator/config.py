"""What a simulated engine looks like: model, ranks, cache, speed, routes."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from contract.options import Unit

Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class SimulatorConfig(BaseModel):
    """One simulated engine. Every field is an option of `python -m simulator` with the same name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model_name: Annotated[str, Unit("NAME"), Field(min_length=1, description="served model name")] = "demo"
    tokenizer: Annotated[str, Unit("PATH"), Field(description="path or repository of the tokenizer")] = (
        "builtin:demo"
    )
    tokenizer_revision: Annotated[
        str | None, Unit("REVISION"), Field(description="revision of a tokenizer repository")
    ] = None
    trust_remote_code: Annotated[bool, Field(description="let the tokenizer run its own code")] = False
    vocab_size: Annotated[
        Count | None,
        Unit("IDS"),
        Field(description="token ids from here on are refused; default: what the tokenizer knows"),
    ] = None
    ranks: Annotated[Count, Field(description="data-parallel ranks")] = 2
    block_size: Annotated[Count, Unit("TOKENS"), Field(description="tokens per KV block")] = 32
    blocks_per_rank: Annotated[
        int, Unit("BLOCKS"), Field(ge=2, description="KV blocks per rank, one of them a placeholder")
    ] = 16384
    prefix_caching: Annotated[bool, Field(description="reuse the KV blocks of equal prefixes")] = True
    max_model_len: Annotated[
        int, Unit("TOKENS"), Field(ge=2, description="longest prompt plus answer, tokens")
    ] = 16384
    max_num_batched_tokens: Annotated[
        Count, Unit("TOKENS"), Field(description="tokens computed per step of a rank")
    ] = 8192
    max_num_seqs: Annotated[
        Count, Unit("REQUESTS"), Field(description="requests computed at a time on a rank")
    ] = 256
    prefill_tokens_per_second: Annotated[
        Rate,
        Unit("TOKENS/S"),
        Field(description="prompt tokens a rank computes per second; 0: takes no time"),
    ] = 0.0
    decode_tokens_per_second: Annotated[
        Rate,
        Unit("TOKENS/S"),
        Field(description="output tokens per second of each running request; 0: takes no time"),
    ] = 0.0
    speed_factor: Annotated[float, Field(gt=0, allow_inf_nan=False, description="multiplies both rates")] = (
        1.0
    )
    prompt_tokens_details: Annotated[bool, Field(description="report cached_tokens in usage")] = True
    multimodal: Annotated[bool, Field(description="take images in conversations, as a vision model does")] = (
        False
    )
    tokens_per_image: Annotated[
        Count | None,
        Unit("TOKENS"),
        Field(description="placeholder tokens of every image; default: one per patch"),
    ] = None
    patch_pixels: Annotated[
        Count,
        Unit("PIXELS"),
        Field(description="side of the square patch of an image that costs one token, pixels"),
    ] = 28
    dev_mode: Annotated[bool, Field(description="offer the reset routes, as VLLM_SERVER_DEV_MODE=1 does")] = (
        True
    )
    host: Annotated[str, Unit("ADDRESS"), Field(min_length=1, description="address to listen on")] = (
        "127.0.0.1"
    )
    port: Annotated[
        int, Unit("PORT"), Field(ge=0, le=65535, description="port to listen on; 0: any free one")
    ] = 0
    api_key: Annotated[SecretStr | None, Field(description="bearer token asked of /v1 routes")] = None

    @model_validator(mode="after")
    def _longest_request_fits(self) -> "SimulatorConfig":
        # vLLM refuses to start in this case too; later, such a request would wait forever.
        needed = -(-self.max_model_len // self.block_size) + 1
        if self.blocks_per_rank < needed:
            raise ValueError(
                f"blocks_per_rank={self.blocks_per_rank} cannot hold one request of "
                f"max_model_len={self.max_model_len}: set at least {needed}, or a shorter max_model_len"
            )
        return self

    def step_seconds(self, prefill_tokens: int, decoding: bool) -> float:
        """Seconds one step takes: its prompt tokens at the prefill rate plus, if anything decodes, one token's time.

        A batch decodes in the time of one request, as on hardware that is bound by memory: the gap between two
        tokens of a request is `1 / decode_tokens_per_second` whatever the concurrency.
        """
        seconds = 0.0
        if self.prefill_tokens_per_second:
            seconds += prefill_tokens / self.prefill_tokens_per_second
        if decoding and self.decode_tokens_per_second:
            seconds += 1 / self.decode_tokens_per_second
        return seconds / self.speed_factor
