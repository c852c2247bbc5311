"""The scenario's selection of corpus records, as the prompt builder takes it."""

from contract.scenario.model import Selection as SelectionSection
from prompts.corpus import Selection


def corpus_selection(section: SelectionSection, place: str) -> Selection:
    """`values` stands for the list that the mode names, and wins. `place` is the dotted path, for messages."""
    indices, hashes = section.indices or [], section.question_sha256 or []
    in_values = section.values is not None and section.mode in ("indices", "question_sha256")
    if section.values is not None and section.mode == "indices":
        indices = section.values
    elif section.values is not None and section.mode == "question_sha256":
        hashes = section.values
    return Selection(section.mode, tuple(indices), tuple(hashes), place, in_values)
