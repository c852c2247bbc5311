"""What prepare starts from beside the scenario: its tokenizer and its corpus."""

from collections.abc import Iterator

import orjson

from contract.command_log import PhaseTimes
from contract.scenario import Scenario
from prompts.corpus import Corpus, load_corpus
from prompts.tokenizer import Tokenizer, load_tokenizer


def load_sources(scenario: Scenario, phase: PhaseTimes) -> tuple[Tokenizer, Corpus]:
    """Both as the scenario names them, each a phase of its own. Raises ScenarioError when one cannot be read."""
    with phase("load tokenizer"):
        tokenizer = load_tokenizer(
            scenario.tokenizer.path,
            revision=scenario.tokenizer.revision,
            trust_remote_code=scenario.tokenizer.trust_remote_code,
        )
    with phase("load corpus"):
        corpus = load_corpus(scenario.corpus.path, scenario.corpus.field)
    return tokenizer, corpus


def source_lines(tokenizer: Tokenizer, corpus: Corpus) -> Iterator[str]:
    """Which they are, for the log."""
    yield f"tokenizer: {orjson.dumps(tokenizer.identity()).decode()}"
    yield f"corpus: {len(corpus)} records, SHA-256 {corpus.file_sha256}"
