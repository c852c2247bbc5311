"""Show what hit rate a scenario can reach. Needs no tokenizer, no corpus and no engine."""

from hitlab.arguments import ScenarioPath
from hitlab.terminal import print_json


def command(scenario: ScenarioPath) -> None:
    from generator.inspect import inspect

    print_json(inspect(scenario))
