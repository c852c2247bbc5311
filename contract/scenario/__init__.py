"""The scenario: one file that says what to build, where to send it, and how to judge it."""

from contract.scenario.load import load_scenario, parse_scenario
from contract.scenario.model import (
    Aisbench,
    Corpus,
    Driver,
    Engine,
    Groups,
    InputLength,
    Multimodal,
    Order,
    OutputLength,
    PrefixCache,
    Requests,
    Run,
    Scenario,
    Selection,
    Service,
    Tokenizer,
    Validation,
)

__all__ = [
    "Aisbench",
    "Corpus",
    "Driver",
    "Engine",
    "Groups",
    "InputLength",
    "Multimodal",
    "Order",
    "OutputLength",
    "PrefixCache",
    "Requests",
    "Run",
    "Scenario",
    "Selection",
    "Service",
    "Tokenizer",
    "Validation",
    "load_scenario",
    "parse_scenario",
]
