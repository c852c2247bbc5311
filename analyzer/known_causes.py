"""The causes that are known, the likeliest first (vllm.md E.9). A new one is a function and a line of `KNOWN`."""

from collections.abc import Callable

from analyzer.causes import Cause, Pair, Situation
from analyzer.ledgers import ENGINE_PAGE


def _moves(
    sign: int, *ledgers: str, quantities: tuple[str, ...] = ("queries", "hits")
) -> dict[str, dict[str, int]]:
    return {quantity: dict.fromkeys(ledgers, sign) for quantity in quantities}


def _says(text: str) -> Callable[[Situation, Pair], str]:
    return lambda _situation, _pair: text


def _nothing(_: Situation) -> None:
    return None


def _unless(condition: Callable[[Situation], object], against: str) -> Callable[[Situation], str | None]:
    return lambda situation: None if condition(situation) else against


# ---- the counters show more than was answered ----------------------------------------------------------------------


def _counted_again_against(situation: Situation) -> str | None:
    seen = situation.seen
    if seen.before("0.11.1") and seen.preemptions:
        return None
    if not seen.before("0.27.1"):
        return f"version {seen.version_text} counts a request once"
    return "no request waited in any sample" if seen.waiting_peak == 0 else None


def _counted_again_text(situation: Situation, _: Pair) -> str:
    seen = situation.seen
    cause = "requests that waited for free blocks were counted again on each scheduling retry"
    sampled = seen.waiting_peak is not None or seen.preemptions
    return cause if sampled else f"{cause} (whether any waited was not sampled)"


COUNTED_AGAIN = Cause(
    "counted_again",
    _moves(+1, "counters"),
    _counted_again_text,
    _counted_again_against,
    witnessed=lambda situation: bool(situation.seen.waiting_peak or situation.seen.preemptions),
)


def _unanswered_text(situation: Situation, pair: Pair) -> str:
    count = situation.seen.unanswered
    what = f"{count} failed or repeated attempts: "
    if pair.second == "computed":
        return f"{what}this ledger counts only requests that ended well"
    return f"{what}the engine counted tokens that no answer reports"


UNANSWERED = Cause(
    "unanswered_attempts",
    _moves(+1, "counters"),
    _unanswered_text,
    _unless(lambda situation: situation.seen.unanswered, "every request was answered at its first attempt"),
    loose=frozenset({"by_source", "computed"}),
    witnessed=lambda situation: bool(situation.seen.unanswered),
)


def _foreign_text(_: Situation, pair: Pair) -> str:
    return f"foreign traffic: others used the engine while it was measured ({abs(pair.tokens)} tokens)"


def _foreign_against(situation: Situation) -> str | None:
    """Its tokens are in the lookups first of all; hits of others without their queries there are not."""
    if situation.quantity == "hits" and situation.surplus is not None and situation.surplus <= 0:
        return "the counters show no queries but those that were answered"
    return None


FOREIGN_TRAFFIC = Cause("foreign_traffic", _moves(+1, *ENGINE_PAGE), _foreign_text, _foreign_against)


# ---- the counters show less ----------------------------------------------------------------------------------------


def _preempted_against(situation: Situation) -> str | None:
    if not situation.seen.preemptions:
        return "no request was preempted" if situation.seen.preemptions == 0 else "preemptions are not known"
    return "versions before 0.11.1 count them again" if situation.seen.before("0.11.1") else None


PREEMPTED = Cause(
    "preempted_left_out",
    _moves(-1, "counters"),
    lambda situation, _: (
        f"{situation.seen.preemptions} preemptions: resumed requests are left out of these counters"
    ),
    _preempted_against,
    witnessed=lambda situation: bool(situation.seen.preemptions),
)


def _not_settled_text(_: Situation, pair: Pair) -> str:
    if len(pair.ranks) == 1:
        return f"the counters of rank {pair.ranks[0]} had not come to rest"
    return "the counters had not come to rest when the last scrape was taken"


NOT_SETTLED = Cause(
    "not_settled",
    _moves(-1, "counters"),
    _not_settled_text,
    _unless(lambda situation: situation.seen.settled is False, "the counters came to rest"),
    loose=frozenset({"by_source", "computed"}),
)
SKIPPED_LOOKUPS = Cause(
    "skipped_lookups",
    _moves(-1, "counters", quantities=("queries",)),
    _says(
        "lookups were skipped: requests with prompt_logprobs, or that skip reading the cache, are not counted"
    ),
    _nothing,
)


# ---- answers show more hits ----------------------------------------------------------------------------------------


def _external_text(situation: Situation, pair: Pair) -> str:
    ledger = pair.second if pair.second in ("cached_tokens", "computed") else pair.first
    hits = situation.seen.external_hits
    if hits is None:
        return f"perhaps an external cache: {ledger} includes it, and this engine has no counters of it"
    return f"external cache: {ledger} includes what a KV connector delivered, exactly {hits} tokens by its counters"


EXTERNAL_CACHE = Cause(
    "external_cache",
    _moves(+1, "cached_tokens", "computed", quantities=("hits",)),
    _external_text,
    _unless(lambda situation: situation.seen.external_hits != 0, "the external counters show no hit"),
    witnessed=lambda situation: bool(situation.seen.external_hits),
    tokens=lambda situation: situation.seen.external_hits,
)
ALL_BUT_ONE = Cause(
    "disaggregated_decode",
    _moves(+1, "cached_tokens", quantities=("hits",)),
    _says("a disaggregated decode instance reports all but one token of each prompt as cached"),
    _unless(
        lambda situation: situation.seen.all_but_one, "answers report other numbers than all but one token"
    ),
    witnessed=lambda situation: situation.seen.all_but_one,
)


# ---- the prediction stands alone -----------------------------------------------------------------------------------


def _drops_text(situation: Situation, _: Pair) -> str:
    text = "one block less per request: a server with EAGLE or MTP speculation drops the last matched block"
    return f"{text} (its metrics show no speculation)" if situation.seen.speculative is False else text


DROPS_LAST_BLOCK = Cause(
    "drops_last_block",
    _moves(+1, "prediction", quantities=("hits",)),
    _drops_text,
    _unless(
        lambda situation: situation.seen.one_block_less, "requests differ by other numbers than one block"
    ),
    witnessed=lambda situation: situation.seen.one_block_less,
)


def _less_text(situation: Situation, _: Pair) -> str:
    others = "others used the engine too and may have evicted blocks, " if situation.surplus else ""
    return (
        f"the engine found less than its blocks allow: {others}another match unit, other block sizes in the pool, or the "
        "cache was emptied meanwhile"
    )


FOUND_LESS = Cause("found_less", _moves(+1, "prediction", quantities=("hits",)), _less_text, _nothing)


def _more_against(situation: Situation) -> str | None:
    if situation.seen.emptied and situation.surplus == 0:
        return "the cache was proved empty at the beginning, and nobody else's tokens are on the counters"
    return None


def _more_text(situation: Situation, _: Pair) -> str:
    causes = [] if situation.seen.emptied else ["the cache was not empty at the beginning"]
    if situation.surplus != 0:
        causes.append("others filled it while it was measured")
    return ", or ".join(causes)


FOUND_MORE = Cause("found_more", _moves(-1, "prediction", quantities=("hits",)), _more_text, _more_against)


def _other_tokens(sign: int) -> Cause:
    return Cause(
        "other_prompt_tokens",
        _moves(sign, "prediction", quantities=("queries",)),
        lambda situation, _: (
            f"{situation.seen.prompt_tokens_differing} answers count other input tokens than were planned: another "
            "tokenizer, or a proxy that rewrites prompts"
        ),
        _unless(
            lambda situation: situation.seen.prompt_tokens_differing, "every answer counts the planned tokens"
        ),
        witnessed=lambda situation: bool(situation.seen.prompt_tokens_differing),
    )


KNOWN = (
    COUNTED_AGAIN,
    UNANSWERED,
    EXTERNAL_CACHE,
    ALL_BUT_ONE,
    PREEMPTED,
    FOREIGN_TRAFFIC,
    NOT_SETTLED,
    SKIPPED_LOOKUPS,
    DROPS_LAST_BLOCK,
    FOUND_LESS,
    FOUND_MORE,
    _other_tokens(-1),
    _other_tokens(+1),
)
