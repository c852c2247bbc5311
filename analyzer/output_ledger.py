"""Tokens that were written, by two accounts: the engine's counter, and the answers. Nothing is found in a cache here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from analyzer.actual import sum_known
from analyzer.causes import NO_CAUSE, Circumstances
from analyzer.ledgers import requests_of_ranks
from analyzer.request_table import RequestTable
from contract.planned import UNKNOWN
from enginemetrics.difference import EngineDifference

NAME: Final = "output_tokens"


@dataclass(frozen=True)
class OutputLedger:
    """Attributes:
    counters, answers: tokens in total; None: not known, and then `reason` says why.
    by_dp: rank -> both, where the ranks can be told apart.
    answers_without: answers of `answered` that do not say how many tokens they have.
    """

    counters: int | None
    answers: int | None
    reason: str | None = None
    by_dp: Mapping[int, tuple[int | None, int | None]] = field(default_factory=dict)
    answered: int = 0
    answers_without: int = 0
    cause: str | None = None

    @property
    def tokens(self) -> int | None:
        """The counters minus the answers; None where one of them is not known."""
        return None if self.counters is None or self.answers is None else self.counters - self.answers

    @property
    def ranks_differ(self) -> dict[int, int]:
        """The same per rank, where it is not 0."""
        return {
            rank: counted - told
            for rank, (counted, told) in self.by_dp.items()
            if counted is not None and told is not None and counted != told
        }

    def document(self) -> dict[str, Any]:
        """`ledgers.output_tokens` of the analysis."""
        return {
            "counters": self.counters,
            "answers": self.answers,
            "tokens": self.tokens,
            "by_dp": {
                str(rank): {"counters": counted, "answers": told}
                for rank, (counted, told) in self.by_dp.items()
            },
            "reason": self.reason,
            "cause": self.cause,
            "source": {"counters": "vllm:generation_tokens", "answers": "usage.completion_tokens"},
        }

    def state(self) -> dict[str, Any]:
        """`validation.ledgers.output_tokens`: equal, differs or absent, as the other ledgers say it."""
        if self.tokens is None:
            counted = {"answers": self.answered, "answers_without": self.answers_without}
            return {"status": "absent", "reason": self.reason, **counted}
        ranks = {str(rank): {NAME: -tokens} for rank, tokens in self.ranks_differ.items()}
        status = "differs" if self.tokens or ranks else "equal"
        return {"status": status, "against": "counters", NAME: -self.tokens, "by_dp": ranks}

    def warnings(self) -> list[dict[str, Any]]:
        if not self.tokens and not self.ranks_differ:
            return []
        ranks = "; ".join(f"rank {rank}: {tokens:+}" for rank, tokens in self.ranks_differ.items())
        answers = "not known" if self.answers is None else self.answers
        message = f"output tokens differ: counters {self.counters}, answers {answers}"
        return [
            {
                "code": "OUTPUT_TOKENS_DIFFER",
                "message": "; ".join(part for part in (message, ranks, self.cause) if part),
            }
        ]


def output_ledger(
    difference: EngineDifference | None, requests: RequestTable, ranks: int, seen: Circumstances
) -> OutputLedger:
    """Both accounts of a measured load."""
    written = requests.completion_tokens
    answered = requests.answered
    without = int((answered & (written == UNKNOWN)).sum())
    counters = _counted(difference)
    counted = sum_known(list(counters.values()))
    told = None if without or not answered.any() else int(written[answered].sum())
    reason = None
    if difference is None or not counters:
        reason = "the scrapes are not there"
    elif counted is None:
        reason = (
            next((rank.unavailable.get("generation_tokens") for rank in difference.ranks), None)
            or "the engine does not count them"
        )
    elif told is None:
        reason = f"{without} of {int(answered.sum())} answers have no usage.completion_tokens"
        reason = reason if without else "no request was answered"
    by_dp = {
        rank: (counters.get(rank), _of(written, answered & chosen))
        for rank, chosen in requests_of_ranks(requests, ranks).items()
        if chosen is not None and answered.any()
    }
    found = OutputLedger(counted, told, reason, by_dp, int(answered.sum()), without)
    cause = _cause(found, seen) if found.tokens or found.ranks_differ else None
    return OutputLedger(counted, told, reason, by_dp, int(answered.sum()), without, cause)


def _counted(difference: EngineDifference | None) -> dict[int, int | None]:
    return {rank.rank: rank.generation_tokens for rank in difference.ranks} if difference else {}


def _of(written: Any, chosen: Any) -> int | None:
    return None if (written[chosen] == UNKNOWN).any() else int(np.sum(written[chosen]))


def _cause(found: OutputLedger, seen: Circumstances) -> str:
    """Only what fits the sign of the difference; of a sum that is not known, of the ranks that can be compared."""
    if found.tokens == 0:
        return "the ranks differ though the sums agree: requests were served by other ranks than they were sent to"
    by_rank = found.ranks_differ.values()
    tokens = sum(by_rank) if found.tokens is None else found.tokens
    if found.tokens is None and min(by_rank) < 0 < max(by_rank):
        return NO_CAUSE
    if tokens < 0:
        return "the counters had not come to rest" if seen.settled is False else NO_CAUSE
    if seen.unanswered:
        return (
            f"{seen.unanswered} failed or repeated attempts: the engine wrote tokens that no answer reports"
        )
    if "FOREIGN_TRAFFIC" in seen.findings:
        return "foreign traffic: others used the engine while it was measured"
    return NO_CAUSE
