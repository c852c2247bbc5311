"""Where vLLM's releases differ in what they do with their blocks.

Found by running the cache classes of these releases themselves (tests/real/cache_classes.py).
"""

from dataclasses import dataclass

from contract.engine_version import EngineVersion, is_before, parse_version

HASHLESS_FIRST_SINCE = "0.24.0"
WHOLE_PROMPT_SINCE = "0.19.0"


@dataclass(frozen=True, slots=True)
class PoolRules:
    """What a block pool does; the defaults are those of today's releases.

    Attributes:
        hashless_first: blocks without a hash that a finished request gives back are taken again before all others
            (since 0.24.0). False: they go to the end of the free queue with the rest.
        whole_prompt_must_fit: a request is admitted once there is room for its whole prompt (since 0.19.0). False: room
            for its first chunk is enough.
    """

    hashless_first: bool = True
    whole_prompt_must_fit: bool = True


def pool_rules(version: EngineVersion | None) -> PoolRules:
    """The rules of this release. Of an engine that states none, or states something else, those of today's."""
    return PoolRules(
        hashless_first=not is_before(version, HASHLESS_FIRST_SINCE),
        whole_prompt_must_fit=not is_before(version, WHOLE_PROMPT_SINCE),
    )


def release_not_known(stated: str | None) -> str | None:
    """Why the rules of `pool_rules` are an assumption for an engine that states this version; None: they are not."""
    if parse_version(stated) is not None:
        return None
    said = "the engine states no version" if not stated else f"the version {stated!r} tells no release"
    return (
        f"{said}; before {HASHLESS_FIRST_SINCE} vLLM gives blocks back in another order and finds less when it evicts, "
        "and the order of today's releases is assumed"
    )
