"""What happened between two snapshots of the same engine."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from enginemetrics.names import BREAKDOWNS, COUNTERS, Unit
from enginemetrics.snapshot import EngineSnapshot, Ledgers, RankMetrics

FindingCode = Literal[
    "COUNTER_WENT_BACKWARDS",
    "HITS_EXCEED_QUERIES",
    "RANKS_CHANGED",
    "ENGINE_RESTARTED",
    "METRICS_NOT_THIS_ENGINE",
    "COUNTER_CHANGED",
    "MODEL_CHANGED",
    "SERIES_CHANGED",
    "SCRAPE_UNUSABLE",
]


@dataclass(frozen=True, slots=True)
class Finding:
    """Why a difference is not to be trusted. `rank` is None when it concerns the whole engine.

    `message` is what was seen, and, behind a semicolon, what it means or what to do.
    """

    code: FindingCode
    message: str
    rank: int | None = None

    @property
    def seen(self) -> str:
        return self.message.partition("; ")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDifference(Ledgers):
    """Counter differences of one rank, never negative; None with a reason in `unavailable`."""

    rank: int
    queries: int | None
    hits: int | None


@dataclass(frozen=True, slots=True)
class EngineDifference:
    """Differences of all ranks that both snapshots show, and every reason to doubt them."""

    ranks: tuple[RankDifference, ...]
    unit: Unit
    findings: tuple[Finding, ...]

    @property
    def queries(self) -> int | None:
        """Sum over ranks; None when any rank has none."""
        return _sum([rank.queries for rank in self.ranks])

    @property
    def hits(self) -> int | None:
        return _sum([rank.hits for rank in self.ranks])

    @property
    def hit_rate(self) -> float | None:
        """hits / queries; None when either is unknown or nothing was queried."""
        return self.hits / self.queries if self.queries and self.hits is not None else None


def certain(difference: EngineDifference) -> EngineDifference:
    """Without the numbers that a finding says cannot be known: those of its rank, or of all ranks.

    Every finding puts in doubt which process was scraped, or when; so none of the counters of such a rank is kept.
    """
    return replace(difference, ranks=tuple(_certain(rank, difference.findings) for rank in difference.ranks))


def _certain(rank: RankDifference, findings: Sequence[Finding]) -> RankDifference:
    doubt = next((finding.message for finding in findings if finding.rank in (None, rank.rank)), None)
    if doubt is None:
        return rank
    names = ("queries", "hits", *COUNTERS, *BREAKDOWNS)
    return RankDifference(rank=rank.rank, queries=None, hits=None, unavailable=dict.fromkeys(names, doubt))


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def subtract(before: EngineSnapshot, after: EngineSnapshot) -> EngineDifference:
    """`after` minus `before`, per rank.

    A counter that fell, a restarted engine, other ranks or other counters are findings, one for each cause; the numbers
    concerned are None, each with its own reason. With different counters (name or unit) queries and hits of all ranks
    are None.
    """
    findings: list[Finding] = []
    mine, theirs = ({rank.rank: rank for rank in s.ranks} for s in (before, after))
    if mine.keys() != theirs.keys():
        findings.append(
            Finding(
                "RANKS_CHANGED",
                f"ranks {sorted(mine)} before, {sorted(theirs)} after; measure again with the same engine",
            )
        )
    same_counter = (before.unit, before.metric_names.queries, before.metric_names.hits) == (
        after.unit,
        after.metric_names.queries,
        after.metric_names.hits,
    )
    if not same_counter:
        findings.append(
            Finding(
                "COUNTER_CHANGED",
                f"{before.metric_names.queries} ({before.unit}) before, {after.metric_names.queries} "
                f"({after.unit}) after; both scrapes must come from one engine version",
            )
        )
    restarts = _restarts(before, after)
    findings.extend(restarts)
    findings.extend(
        found
        for rank in sorted(mine.keys() & theirs.keys())
        if same_counter and (found := _other_series(mine[rank], theirs[rank])) is not None
    )
    fallen = (
        "another process answered, or this counter is broken (the start time is the same: no restart)"
        if same_processes(before, after)
        else "the engine restarted or another one answered"
    )
    ranks = tuple(
        _subtract_rank(mine[rank], theirs[rank], findings, same_counter=same_counter, fallen=fallen)
        for rank in sorted(mine.keys() & theirs.keys())
    )
    if restarts:  # every counter begins anew then
        findings = [finding for finding in findings if finding.code != "COUNTER_WENT_BACKWARDS"]
    return EngineDifference(ranks, after.unit, tuple(_one_of_each(findings)))


def _one_of_each(findings: list[Finding]) -> Iterator[Finding]:
    """What has one cause is one finding, which says how many more there were."""
    alike: dict[FindingCode, list[Finding]] = {}
    for finding in findings:
        alike.setdefault(finding.code, []).append(finding)
    for code, (first, *others) in alike.items():
        if not others:
            yield first
            continue
        seen, separator, meaning = first.message.partition("; ")
        message = f"{seen} (and {len(others)} more of the kind){separator}{meaning}"
        ranks = {finding.rank for finding in (first, *others)}
        yield Finding(code, message, first.rank if len(ranks) == 1 else None)


def stood_still(difference: EngineDifference, *, prompt_tokens: int, cached_tokens: int) -> str | None:
    """Why counters that stood still are no hit rate of 0; None: they moved, or nothing says that they should have.

    Some engines never move them (vLLM-Ascend with BalanceScheduler or hybrid models). Hits that an external tier served
    are none of the engine's own cache, so they do not count against it.

    Args:
        prompt_tokens, cached_tokens: what the answers told.
    """
    advice = "this engine does not report its prefix cache there"
    if difference.queries == 0 and prompt_tokens:
        return (
            f"not measurable from counters: they show 0 queries, the answers {prompt_tokens} tokens; {advice}"
        )
    external = sum(rank.external_hits or 0 for rank in difference.ranks)
    if difference.queries and difference.hits == 0 and cached_tokens > external:
        return f"not measurable from counters: they show 0 hits, the answers {cached_tokens} cached tokens; {advice}"
    return None


def _other_series(before: RankMetrics, after: RankMetrics) -> Finding | None:
    """A series that came or went in between has a part of the tokens, and nobody knows which."""
    if before.model != after.model:
        message = (
            f"the counters of rank {after.rank} are labelled model {before.model!r} before, {after.model!r} after; both "
            "scrapes must come from one engine"
        )
        return Finding("MODEL_CHANGED", message, after.rank)
    if before.series != after.series:
        message = (
            f"queries and hits of rank {after.rank} stand in {len(before.series)} series before, in "
            f"{len(after.series & before.series)} of them after, and in {len(after.series - before.series)} others; one "
            "of the pages is incomplete, or another process answered"
        )
        return Finding("SERIES_CHANGED", message, after.rank)
    return None


def _restarts(before: EngineSnapshot, after: EngineSnapshot) -> list[Finding]:
    begun = {rank.rank: rank.counters_created for rank in before.ranks}
    changes = [
        *(
            ("process start time", was, now, None)
            for was, now in zip(before.process_start_times, after.process_start_times, strict=False)
        ),
        *(
            (
                f"begin of the counters of rank {rank.rank}",
                begun.get(rank.rank),
                rank.counters_created,
                rank.rank,
            )
            for rank in after.ranks
        ),
    ]
    return [
        _another_process(what, was, now, rank)
        for what, was, now, rank in changes
        if was is not None and now is not None and was != now
    ]


def _another_process(what: str, was: float, now: float, rank: int | None) -> Finding:
    """Time only goes forward: a process that started earlier has not restarted, it is another one."""
    if now < was:
        message = (
            f"{what} went back from {was} to {now}; another process answered the second time, so the page is that of one "
            "of several engines (behind a router or a balancer): scrape the engine's own page"
        )
        return Finding("METRICS_NOT_THIS_ENGINE", message, rank)
    message = (
        f"{what} changed from {was} to {now}; the engine restarted between the scrapes, or another one answered: "
        "measure again, and scrape the engine's own page"
    )
    return Finding("ENGINE_RESTARTED", message, rank)


def same_processes(before: EngineSnapshot, after: EngineSnapshot) -> bool | None:
    """Whether the start times say that the same processes made both pages; None: they do not report."""
    pairs = [
        *zip(before.process_start_times, after.process_start_times, strict=False),
        *zip(
            [rank.counters_created for rank in before.ranks],
            [rank.counters_created for rank in after.ranks],
            strict=False,
        ),
    ]
    known = [was == now for was, now in pairs if was is not None and now is not None]
    return all(known) if known else None


def another_process(earlier: EngineSnapshot, later: EngineSnapshot) -> str | None:
    """What proves that two processes made the pages, and that no restart lies between them; None: nothing does.

    A later start is no proof, it may be a restart. Of the counters the front end's prompt tokens are asked, where there
    are any: a single counter that fell may as well be broken.
    """
    for finding in _restarts(earlier, later):
        if finding.code == "METRICS_NOT_THIS_ENGINE":
            return finding.message
    if not same_processes(earlier, later):
        return None
    mine = {rank.rank: rank for rank in earlier.ranks}
    for rank in later.ranks:
        before = mine.get(rank.rank)
        if before is None:
            continue
        name, was, now = "vllm:prompt_tokens", before.prompt_tokens, rank.prompt_tokens
        if was is None or now is None:
            name, was, now = later.metric_names.queries, before.queries, rank.queries
        if now < was:
            return (
                f"{name} of rank {rank.rank} fell from {was} to {now} while the start time is the same; another engine's "
                "page was read, as behind a router: scrape the engine's own page"
            )
    return None


def _subtract_rank(
    before: RankMetrics, after: RankMetrics, findings: list[Finding], *, same_counter: bool, fallen: str
) -> RankDifference:
    """`fallen`: what a counter that fell means, as far as the start times tell."""
    unavailable: dict[str, str] = {}
    rank = after.rank

    def fell(name: str, was: int, now: int) -> None:
        message = f"rank {rank}: {name} fell from {was} to {now}; {fallen}"
        findings.append(Finding("COUNTER_WENT_BACKWARDS", message, rank))
        unavailable[name.partition("{")[0]] = message

    def change(name: str, was: int, now: int) -> int | None:
        if now >= was:
            return now - was
        fell(name, was, now)
        return None

    def missing(name: str) -> bool:
        for when, metrics in (("before", before), ("after", after)):
            if getattr(metrics, name) is None:
                unavailable[name] = f"{when}: {metrics.unavailable.get(name, 'not measured')}"
                return True
        return False

    values: dict[str, Any] = {}
    for name in COUNTERS:
        if not missing(name):
            values[name] = change(name, getattr(before, name), getattr(after, name))
    for name in BREAKDOWNS:
        if not missing(name):
            values[name] = _change_of_parts(name, getattr(before, name), getattr(after, name), fell)

    queries = hits = None
    if same_counter:
        queries = change("queries", before.queries, after.queries)
        hits = change("hits", before.hits, after.hits)
        if queries is not None and hits is not None and hits > queries:
            message = f"rank {rank}: {hits} hits from {queries} queries; the scrapes were taken while the engine ran"
            findings.append(Finding("HITS_EXCEED_QUERIES", message, rank))
    else:
        unavailable["queries"] = unavailable["hits"] = "the two scrapes show different counters"
    return RankDifference(rank=rank, queries=queries, hits=hits, unavailable=unavailable, **values)


def _change_of_parts(
    name: str, was: Mapping[str, int], now: Mapping[str, int], fell: Any
) -> dict[str, int] | None:
    """Difference per label value. A value that appears later began at 0; one that vanished fell to 0."""
    parts = {key: now.get(key, 0) - was.get(key, 0) for key in sorted(was.keys() | now.keys())}
    backwards = [key for key, part in parts.items() if part < 0]
    for key in backwards:
        fell(f"{name}{{{key}}}", was.get(key, 0), now.get(key, 0))
    return None if backwards else parts
