"""Why ledgers differ: each known cause says which ledgers it moves, and is named only when every available ledger fits.

A cause moves some ledgers by the same number of tokens and leaves all others alone. One that does not fit is ruled out by
the ledger or the circumstance that speaks against it. Where several fit, none is preferred without evidence of its own:
they are named together, with the ledger that would tell them apart.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from analyzer.ledgers import KNOWN_FROM, NAMES, Ledger, LedgerDifference
from contract.engine_version import EngineVersion, is_before
from contract.foreign_text import presentable

NO_CAUSE = "no known cause fits"
OTHER_RANKS = (
    "the ranks differ though the sums agree: requests were served by other ranks than they were sent to, or labels of "
    "ranks are exchanged"
)


@dataclass(frozen=True)
class Circumstances:
    """What else is known about a measurement; None: it is not known.

    Attributes:
        version: of the engine, as `/version` said, read and as text.
        waiting_peak: most requests that waited on one rank in any sample.
        settled: whether the counters came to rest at what was answered.
        unanswered: requests that failed in the end, and attempts that were repeated.
        findings: codes of what the run found.
        all_but_one: every answer reports one cached token less than its prompt has.
        one_block_less: every request that hit something else than predicted hit exactly one block less.
        prompt_tokens_differing: answers that count other input tokens than were planned.
        speculative: whether the engine's metrics show speculative decoding.
        emptied: whether the cache was proved empty before the run.
        prediction_caveats: why the model may differ.
    """

    version: EngineVersion | None = None
    version_text: str | None = None
    waiting_peak: int | None = None
    preemptions: int | None = None
    external_hits: int | None = None
    settled: bool | None = None
    unanswered: int = 0
    findings: frozenset[str] = frozenset()
    all_but_one: bool = False
    one_block_less: bool = False
    prompt_tokens_differing: int = 0
    speculative: bool | None = None
    emptied: bool | None = None
    prediction_caveats: tuple[str, ...] = ()

    def before(self, release: str) -> bool:
        """Whether the engine is, or may be, older than `release`."""
        return is_before(self.version, release) is not False


@dataclass(frozen=True)
class Situation:
    """One quantity, hits or queries, in tokens, as every ledger that is known has it.

    `surplus`: queries that the counters show beyond what was answered; None: not known.
    """

    quantity: str
    values: Mapping[str, int]
    surplus: int | None
    seen: Circumstances


@dataclass(frozen=True)
class Pair:
    """The two ledgers that are explained, by how many tokens they differ, and on which ranks."""

    first: str
    second: str
    tokens: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Cause:
    """Something that makes ledgers differ.

    Attributes:
        moves: quantity -> ledger -> +1 or -1: it shows more, or fewer, tokens than happened to this run's requests, all
            of them by the same number. Ledgers that are not named do not move.
        loose: ledgers that it may move in the same direction, by less, or not at all.
        against: what the circumstances have against it; None: nothing.
        witnessed: the circumstances show it directly.
        tokens: by how many tokens, where the circumstances tell.
        text: one line.
    """

    name: str
    moves: Mapping[str, Mapping[str, int]]
    text: Callable[[Situation, Pair], str]
    against: Callable[[Situation], str | None]
    loose: frozenset[str] = frozenset()
    witnessed: Callable[[Situation], bool] = lambda _: False
    tokens: Callable[[Situation], int | None] = lambda _: None

    def moved(self, quantity: str) -> Mapping[str, int]:
        return self.moves.get(quantity, {})


@dataclass(frozen=True)
class Explanation:
    """`causes`: those that fit, together where it takes several. `alternatives`: other sets that fit as well.

    `ruled_out`: cause -> by what.
    """

    situation: Situation
    causes: tuple[Cause, ...] = ()
    alternatives: tuple[tuple[Cause, ...], ...] = ()
    ruled_out: Mapping[str, str] = field(default_factory=dict)

    def cause_of(self, difference: LedgerDifference) -> str:
        """One line for a difference between two of the ledgers."""
        pair = Pair(difference.first, difference.second, difference.tokens, tuple(difference.by_dp))
        caveats = self.situation.seen.prediction_caveats
        if "prediction" in (pair.first, pair.second) and caveats and self.situation.quantity == "hits":
            return f"the prediction is not certain: {caveats[0]}"
        if difference.tokens == 0:
            return OTHER_RANKS
        said = dict.fromkeys(
            text for causes in (self.causes, *self.alternatives) if (text := self._text(causes, pair))
        )
        if len(said) < 2:
            return next(iter(said), NO_CAUSE)
        telling = self._telling()
        return f"{'; or '.join(said)}{f' ({telling} would tell)' if telling else ''}"

    def _text(self, causes: Sequence[Cause], pair: Pair) -> str:
        """Of those that move the two apart."""
        quantity = self.situation.quantity
        apart = [
            cause
            for cause in causes
            if len({cause.moved(quantity).get(name, 0) for name in (pair.first, pair.second)}) > 1
            or cause.loose & {pair.first, pair.second}
        ]
        return "; ".join(cause.text(self.situation, pair) for cause in apart)

    def _telling(self) -> str:
        """The ledgers that are not there and would move by one of the sets and not by another."""
        quantity = self.situation.quantity
        moved = [
            frozenset(name for cause in causes for name in cause.moved(quantity))
            for causes in (self.causes, *self.alternatives)
        ]
        unknown = [
            name
            for name in NAMES
            if name not in self.situation.values and len({name in names for names in moved}) > 1
        ]
        return " or ".join(unknown)

    def document(self) -> dict[str, object]:
        return {
            "causes": [cause.name for cause in self.causes],
            "alternatives": [[cause.name for cause in causes] for causes in self.alternatives],
            "ruled_out": dict(self.ruled_out),
        }


def explain(
    quantity: str, ledgers: Mapping[str, Ledger], seen: Circumstances, known: Sequence[Cause]
) -> Explanation:
    """Look for the cause, or the two, that all available ledgers fit. `known`: the likeliest first."""
    values = {name: value for name in NAMES if (value := getattr(ledgers[name].total, quantity)) is not None}
    counted, answered = ledgers["counters"].total.queries, ledgers["cached_tokens"].total.queries
    surplus = None if counted is None or answered is None else counted - answered
    if quantity == "hits" and seen.prediction_caveats:
        values.pop("prediction", None)  # it proves nothing, and is told as such
    situation = Situation(quantity, values, surplus, seen)
    if len(set(values.values())) < 2:
        return Explanation(situation)
    ruled_out: dict[str, str] = {}
    possible = []
    for cause in known:
        against = _against(cause, situation)
        if against is None:
            possible.append(cause)
        else:
            ruled_out[cause.name] = against
    for number in (1, 2):
        fitting = []
        for causes in combinations(possible, number):
            misfit = _misfit(causes, situation)
            if misfit is None:
                fitting.append(causes)
            elif number == 1:
                ruled_out[causes[0].name] = misfit
        if fitting:
            first, *others = chosen = _evident(fitting, situation)
            used = {cause.name for causes in chosen for cause in causes}
            outdone = dict.fromkeys(
                (cause.name for causes in fitting for cause in causes), "another cause that fits is witnessed"
            )
            left = {name: why for name, why in (outdone | ruled_out).items() if name not in used}
            return Explanation(situation, first, tuple(others), left)
    return Explanation(situation, ruled_out=ruled_out)


def _against(cause: Cause, situation: Situation) -> str | None:
    if not cause.moved(situation.quantity):
        return f"it does not change {situation.quantity}"
    return cause.against(situation)


def _evident(fitting: list[tuple[Cause, ...]], situation: Situation) -> list[tuple[Cause, ...]]:
    """Those of which every part is witnessed, where there are any."""
    witnessed = [causes for causes in fitting if all(cause.witnessed(situation) for cause in causes)]
    return witnessed or fitting


def _misfit(causes: Sequence[Cause], situation: Situation) -> str | None:
    """Which ledger speaks against these causes acting together; None: all fit.

    The ledgers that none of them moves must be equal; each cause moves its own away from there, all by the same number.
    """
    quantity, values = situation.quantity, situation.values
    moved = [name for cause in causes for name in cause.moved(quantity)]
    if len(moved) > len(set(moved)):
        return "both move the same ledger"
    loose = {name for cause in causes for name in cause.loose} - set(moved)
    still = [name for name in values if name not in moved and name not in loose]
    if len({values[name] for name in still}) > 1:
        return f"{' and '.join(still)} differ, which it does not move"
    # Where every ledger may be moved, one that may stay is taken to have stayed.
    bases = {values[name] for name in still or loose if name in values}
    if not bases:
        return "there is no ledger that it does not move"
    misfits = [_misfit_from(base, causes, loose, situation) for base in sorted(bases)]
    return None if None in misfits else misfits[0]


def _misfit_from(base: int, causes: Sequence[Cause], loose: set[str], situation: Situation) -> str | None:
    """As `_misfit`, with what really happened."""
    values = situation.values
    for cause in causes:
        signs = cause.moved(situation.quantity)
        shifts = {name: (values[name] - base) * sign for name, sign in signs.items() if name in values}
        sign = next(iter(signs.values()))
        near = {name: (values[name] - base) * sign for name in cause.loose & loose if name in values}
        if not shifts and not any(near.values()):
            return "no ledger that it moves is known"
        for name, shift in shifts.items():
            if shift <= 0:
                return f"{name} does not show it"
        if len(set(shifts.values())) > 1:
            return f"{' and '.join(shifts)} show different numbers of it"
        size = max(shifts.values(), default=max(near.values(), default=0))
        expected = cause.tokens(situation)
        if expected is not None and size != expected:
            return f"it makes up {expected} tokens, not {size}"
        for name, shift in near.items():
            if not 0 <= shift <= size:
                return f"{name} shows something else"
    return None


def version_caveat(difference: LedgerDifference, seen: Circumstances) -> str | None:
    """What is known to be special about these ledgers in the engine's version; None when nothing is."""
    ledgers = {difference.first, difference.second}
    notes = []
    if "counters" in ledgers:
        if is_before(seen.version, "0.9.0"):
            notes.append("before 0.9.0 they count full blocks, not tokens")
        if seen.before("0.11.1"):
            notes.append("before 0.11.1 preempted requests are counted again (issue #25780)")
        if seen.before("0.27.1"):
            notes.append(
                "before 0.27.1 a waiting request is counted again on each scheduling retry (issue #43736)"
            )
    notes += [
        f"{metric} is known from {release} on"
        for name, (release, metric) in sorted(KNOWN_FROM.items(), key=lambda known: known[1])
        if name in ledgers and is_before(seen.version, release)
    ]
    if not notes:
        return None
    stated = (
        f"the engine says {presentable(seen.version_text)}"
        if seen.version_text
        else "the engine states no version"
    )
    return f"{stated}; {'; '.join(notes)}"
