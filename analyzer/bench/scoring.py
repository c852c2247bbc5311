"""Scoring of short answers: token overlap F1 over normalised texts, the best over the gold answers (as SQuAD does)."""

import re
import string
from collections import Counter
from collections.abc import Sequence

_REGION = re.compile(r"<final_answer>(.*?)(</final_answer>|(?=<final_answer>)|\Z)", re.IGNORECASE | re.DOTALL)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def parse_answer(text: str) -> str | None:
    """What stands between the last answer tags; None without tags, or when the last region is not closed."""
    regions = _REGION.findall(text)
    if not regions:
        return None
    answer, end = regions[-1]
    return answer.strip() if end else None


def normalised(text: str) -> list[str]:
    """Words in lower case, without punctuation and articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def best_f1(answer: str, golds: Sequence[str]) -> float:
    """The highest F1 over the gold answers, 0 to 1."""
    return max((_f1(normalised(answer), normalised(gold)) for gold in golds), default=0.0)


def _f1(answer: list[str], gold: list[str]) -> float:
    if not answer or not gold:
        return float(answer == gold)
    common = sum((Counter(answer) & Counter(gold)).values())
    if not common:
        return 0.0
    precision, recall = common / len(answer), common / len(gold)
    return 2 * precision * recall / (precision + recall)
