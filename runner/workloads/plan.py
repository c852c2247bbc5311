"""What a workload is: documents, sessions, requests and phases, described and not yet made. Pure data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


@dataclass(frozen=True, slots=True)
class Words:
    """Filler of exactly `tokens` tokens. Equal keys (and openings) are equal texts: that is how sharing is said."""

    key: str
    tokens: int
    opening: str = ""


@dataclass(frozen=True, slots=True)
class Fixed:
    """A text as it stands."""

    text: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat: its parts, joined by `separator`."""

    role: Literal["system", "user", "assistant"]
    parts: tuple[Words | Fixed, ...]
    separator: str = "\n\n"


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        group: what it reuses, for tables: a document, a session.
        session: its messages follow the session's context and all that was said in it before; requests of a session run
            one after another.
        remember: the session keeps these messages and the answer.
    """

    request_id: str
    messages: tuple[Message, ...]
    max_tokens: int
    group: str
    session: str | None = None
    remember: bool = False


@dataclass(frozen=True, slots=True)
class InFlight:
    """`limit` requests at a time; the next starts as one ends. 1: one after another."""

    limit: int


@dataclass(frozen=True, slots=True)
class AllAtOnce:
    """Every request is sent at the beginning."""


@dataclass(frozen=True, slots=True)
class FixedRate:
    """A request every 1 / `per_second` s, whatever the others do; nothing starts after `seconds`."""

    per_second: float
    seconds: float


Pace = InFlight | AllAtOnce | FixedRate


@dataclass(frozen=True, slots=True)
class Phase:
    """Requests that are sent the same way. Warm phases are sent before the measured one and left out of its numbers."""

    name: str
    measured: bool
    requests: Sequence[Request]
    pace: Pace
    pause_after_seconds: float = 0.0


@dataclass(frozen=True)
class QaSample:
    """A question with its passages and the answers that count as right, from a data set."""

    sample_id: str
    question: str
    passages: tuple[str, ...]
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """A workload with all its numbers.

    Attributes:
        phases: in order; exactly one is measured, the last.
        sessions: name -> the messages that every request of the session begins with.
        facts: what follows from the parameters (label -> value), for the summary.
        template_kwargs: variables of the chat template.
        samples: request id -> the sample whose answer it asks for; the texts of these answers are kept and scored.
        needs_blend: with LMCache only its CacheBlend can find what the workload reuses.
        notes: what a reader of the numbers has to know.
        meaningless_without_warmup: why the numbers of a run without its warm phases do not mean what they seem to.
    """

    phases: tuple[Phase, ...]
    sessions: Mapping[str, tuple[Message, ...]] = field(default_factory=dict)
    facts: Mapping[str, int | float | str] = field(default_factory=dict)
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    samples: Mapping[str, QaSample] = field(default_factory=dict)
    needs_blend: bool = False
    notes: tuple[str, ...] = ()
    meaningless_without_warmup: str | None = None

    @property
    def measured(self) -> Phase:
        return self.phases[-1]


class Parameters(BaseModel):
    """Base of a workload's parameters. A field's name is its key in config files and, with dashes, its flag."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class Resources:
    """What a plan is made from, beside its parameters.

    Attributes:
        seed: of everything that is drawn.
        kv_cache_volume: target of active KV cache, GB.
        tokens_per_gb: tokens that a GB (2^30 bytes) of KV cache holds; None where no workload asks for it.
        tier_tokens: tokens that the cache tier to overflow holds (LMCache's L1, else the engine's own cache); None: not
            known.
        samples: of a data set, for the workload that asks for one. skipped_records: of it, unusable ones.
        frame_tokens: tokens that the chat template puts in front of the first message's text; None: not known.
        count: tokens of a text.
        filler: words of exactly so many tokens, by a key.
    """

    seed: int
    kv_cache_volume: float
    tokens_per_gb: int | None
    tier_tokens: int | None
    count: Callable[[str], int]
    filler: Callable[[str, int], str]
    samples: tuple[QaSample, ...] = ()
    skipped_records: int = 0
    frame_tokens: int | None = None

    def volume_tokens(self) -> float:
        if self.tokens_per_gb is None:
            raise ValueError("this workload is sized by tokens_per_gb")
        return self.kv_cache_volume * self.tokens_per_gb


@dataclass(frozen=True)
class Workload:
    """A workload as menus and the command line see it.

    Attributes:
        prefix: of the names of its parameters.
        needs_size: its amount of data follows from tokens_per_gb.
        uses_volume: ... and from kv_cache_volume.
        needs_tokenizer: lengths that are only about right would make it another workload.
    """

    name: str
    title: str
    prefix: str
    parameters: type[Parameters]
    plan: Callable[[Any, Resources], Plan]
    needs_size: bool = False
    uses_volume: bool = False
    needs_tokenizer: bool = False
