"""The JSON Schema of a scenario, for editors: `python -m contract.scenario.schema` writes it beside this module.

It says what single fields may hold. Rules between fields are checked when a scenario is loaded.
"""

import json
from pathlib import Path
from typing import Any

from contract.scenario.model import Scenario

SCHEMA_PATH = Path(__file__).with_name("scenario.schema.json")


def scenario_schema() -> dict[str, Any]:
    schema = Scenario.model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "HitLab scenario 1.0",
        **schema,
    }


def schema_text() -> str:
    return json.dumps(scenario_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    SCHEMA_PATH.write_text(schema_text(), encoding="utf-8")
