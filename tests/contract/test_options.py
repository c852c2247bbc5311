"""Command lines made of fields: values, opposites, help in the style of all commands."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from contract.errors import ScenarioError
from contract.options import Options, Unit, field_option, flag, given


class Model(BaseModel):
    block_size: Annotated[int, Unit("TOKENS"), Field(description="tokens per block")] = 32
    speed_factor: Annotated[float, Field(description="multiplies both rates")] = 1.5
    where: Annotated[Path, Field(description="where it goes")] = Path()
    order: Annotated[Literal["random", "tile"], Field(description="order")] = "random"
    no_csv: Annotated[bool, Field(description="write no rows")] = False
    fast: Annotated[bool, Field(description="be fast")] = True
    pairs: Annotated[dict[str, str], Field(default_factory=dict, description="a pair")]
    name: Annotated[str, Unit("NAME"), Field(description="its name")]


def parsed(*arguments: str) -> dict[str, object]:
    options = [field_option(key, field) for key, field in Model.model_fields.items()]
    return given(
        "program", "What it does.", [Options("Options", options[:4]), Options("more", options[4:])], arguments
    )


def test_only_what_was_given_is_there() -> None:
    assert parsed() == {}
    assert parsed("--block-size", "16", "--no-csv", "--pairs", "a=1", "--pairs", "b=2") == {
        "block_size": "16", "no_csv": True, "pairs": ["a=1", "b=2"],
    }  # fmt: skip
    assert parsed("--csv", "--no-fast", "--speed-factor", "-1", "--name=") == {
        "no_csv": False, "fast": False, "speed_factor": "-1", "name": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--colour", "red"], "No such option"),
        (["--block"], "No such option"),
        (["--block-size"], "requires an argument"),
        (["--order", "up"], "'up' is not one of 'random', 'tile'"),
        (["extra"], "unexpected extra argument"),
    ],
)
def test_what_is_not_understood_is_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(ScenarioError) as error:
        parsed(*arguments)
    assert message in str(error.value)
    assert str(error.value).endswith("(see program --help)")
    assert "\n" not in str(error.value)


def test_help_is_that_of_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """Usage, Options, units as metavars, sentences, defaults in brackets."""
    with pytest.raises(SystemExit) as ending:
        parsed("--help")
    assert ending.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith("Usage: program [OPTIONS]\n\n  What it does.\n\nOptions:\n")
    for line in (
        "--block-size TOKENS     Tokens per block.  [default: 32]",
        "--speed-factor F        Multiplies both rates.  [default: 1.5]",
        "--where PATH            Where it goes.  [default: .]",
        "--order [random|tile]   Order.  [default: random]",
        "--help                  Show this message and exit.",
        "--no-csv / --csv  Write no rows.  [default: csv]",
        "--fast / --no-fast  Be fast.  [default: fast]",
        "--name NAME  Its name.  [required]",
    ):
        assert " ".join(line.split()) in " ".join(text.split()), text
    assert "\nmore:\n" in text


def test_flags() -> None:
    assert flag("tokens_per_gb") == "--tokens-per-gb"
