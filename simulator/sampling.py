"""vLLM's checks of sampling parameters, in its order and with its words."""

from simulator.bodies import ChatBody, CompletionBody, RefusedError, refused_value

_MOST_CHOICES = 16384


def check_sampling(body: CompletionBody | ChatBody, max_tokens: int) -> None:
    """Refuse what vLLM refuses; `max_tokens` is what is left of the limit beside the prompt."""
    if body.n < 1:
        raise RefusedError(f"n must be at least 1, got {body.n}.")
    if body.n > _MOST_CHOICES:
        raise RefusedError(
            f"n must be at most {_MOST_CHOICES}, got {body.n}. To increase this limit, set the "
            "VLLM_MAX_N_SEQUENCES environment variable."
        )
    if body.temperature is not None and body.temperature < 0:
        raise refused_value(
            f"temperature must be non-negative, got {body.temperature}.", "temperature", body.temperature
        )
    if body.top_p is not None and not 0 < body.top_p <= 1:
        raise refused_value(f"top_p must be in (0, 1], got {body.top_p}.", "top_p", body.top_p)
    if body.top_k is not None and body.top_k < -1:
        raise RefusedError(f"top_k must be 0 (disable), or at least 1, got {body.top_k}.")
    if max_tokens < 1:
        raise refused_value(f"max_tokens must be at least 1, got {max_tokens}.", "max_tokens", max_tokens)
    if body.min_tokens < 0:
        raise RefusedError(f"min_tokens must be greater than or equal to 0, got {body.min_tokens}.")
    if body.min_tokens > max_tokens:
        raise RefusedError(
            f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {body.min_tokens}."
        )
    if body.temperature == 0 and body.n > 1:
        raise RefusedError(f"n must be 1 when using greedy sampling, got {body.n}.")
