"""Every field of a scenario with every hostile value: each ends with 0, 2 or 3, soon and in little memory."""

import json
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from contract.errors import ExitCode, HitLabError
from contract.scenario import load_scenario
from contract.scenario.schema import scenario_schema
from hitlab.main import main

Place = tuple[str | int, ...]

CPU_SECONDS = 5.0
"""Of the processor's time, which a busy machine does not change."""
MEMORY = 500 << 20

NUMBERS = ("1e999", "-1e999", "NaN", "-Infinity", "1e308", "-1e308", "5e-324", "-1", "0", "-0.0", "0.5")
INTEGERS = (str(2**31), str(2**63), str(-(2**63)), str(10**30), "9" * 5000, "-" + "9" * 5000)
TEXTS = (
    '""',
    r'"\u0000"',
    r'"a\u0000b"',
    r'"\ud800"',
    r'"\udfff\ud800"',
    '"~nouser"',
    '"~nouser/x"',
    '"/dev/zero"',
    '"/dev/tty"',
    '"../../../../../../../../dev/full"',
    json.dumps("n" * 300),
    json.dumps("d/" * 5000),
    r'"a\nengine vllm"',
    r'"\u001b[2J"',
    '"$(id)"',
    '"builtin:nothing"',
    '"http://[::1/"',
    '"http://127.0.0.1:99999999999/"',
)
OTHERS = (
    "null",
    "true",
    "false",
    "[]",
    "{}",
    "[[[[]]]]",
    '{"a": {}}',
    "[" * 500 + "]" * 500,
    '{"\\ud800": 1}',
    "[1e999]",
)
HOSTILE = (*NUMBERS, *INTEGERS, *TEXTS, *OTHERS)


def fields(schema: dict[str, Any], definitions: dict[str, Any], place: Place = ()) -> Iterator[Place]:
    """Every place of the schema, with an item of each list and an entry of each open object."""
    if "$ref" in schema:
        yield from fields(definitions[schema["$ref"].rpartition("/")[2]], definitions, place)
    for alternative in schema.get("anyOf", ()):
        yield from fields(alternative, definitions, place)
    inner = dict(schema.get("properties", {}))
    if isinstance(schema.get("additionalProperties"), dict):
        inner["group-0" if "overrides" in place else "name"] = schema["additionalProperties"]
    if "items" in schema:
        inner[0] = schema["items"]
    for step, below in inner.items():
        yield (*place, step)
        yield from fields(below, definitions, (*place, step))


SCHEMA = scenario_schema()
FIELDS = tuple(dict.fromkeys(fields(SCHEMA, SCHEMA["$defs"])))


def base(place: Place, output_dir: Path) -> dict[str, Any]:
    """A small scenario whose modes are such that the field at `place` is looked at."""
    length: dict[str, Any] = {"mode": "fixed", "value": 64}
    wanted = {"values": "explicit", "ranges": "range", "path": "csv"}
    normal = {"mode": "truncated_normal", "min": 64, "max": 96, "mean": 80, "std": 8}
    normal_fields = {"min", "max", "mean", "std"} & {step for step in place if "ranges" not in place}
    for step in place:
        if step in wanted:
            length["mode"] = wanted[str(step)]
    length = normal if normal_fields else length
    selection = {step: str(step) for step in ("indices", "question_sha256")}
    return {
        "run": {"run_id": "h", "output_dir": str(output_dir / "h")},
        "tokenizer": {"path": "builtin:demo", "block_size": 16},
        "corpus": {
            "path": "builtin:word-problems",
            "selection": {"mode": next((selection[step] for step in place if step in selection), "random")}
            | ({"mode": "indices"} if "selection" in place and "values" in place else {}),
        },
        "requests": {
            "count": 4,
            "input_length": length if "input_length" in place else {"value": 64},
            "output_length": length if "output_length" in place else {"value": 2},
        },
        "prefix_cache": {
            "mode": "cold",
            "groups": {
                "count": 2,
                "assignment": {
                    "mode": next((f for f in ("weights", "exponent") if f in place), "uniform").replace(
                        "exponent", "zipf"
                    )
                },
                "overrides": {
                    "group-0": {
                        name: dict(length) for name in ("input_length", "output_length") if name in place
                    }
                }
                if "overrides" in place
                else {},
            },
        },
    }


def scenario_text(place: Place, value: str, output_dir: Path) -> str:
    """The base as JSON with the raw `value` at `place`."""
    mark = "@hostile@"
    document = base(place, output_dir)
    node: Any = document
    for step, following in zip(place, (*place[1:], None), strict=True):
        new: Any = mark if following is None else [] if following == 0 else {}
        if isinstance(node, list):
            node.append(new)
        elif following is None or not isinstance(node.get(step), type(new)):
            node[step] = new
        node = node[step]
    return json.dumps(document).replace(json.dumps(mark), value)


class OutOfTimeError(BaseException):
    """Not an Exception: nothing in between takes it for one of its own."""


@contextmanager
def bounded() -> Iterator[None]:
    """Processor time, and memory above what is in use, have an end inside."""
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)

    def out_of_time(*_: object) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGVTALRM, out_of_time)
    resource.setrlimit(resource.RLIMIT_AS, (in_use + MEMORY, hard))
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGVTALRM, before)


DATA_SECTIONS = ("run", "tokenizer", "corpus", "requests", "output", "prefix_cache", "service")


def code_of(place: Place, path: Path) -> int:
    """What the exit code of loading is, and of preparing where the field may change the data."""
    with bounded():
        try:
            load_scenario(path)
        except HitLabError as error:
            return int(error.exit_code)
        if place[0] not in DATA_SECTIONS or (place[0] == "service" and place[-1] != "dp_size"):
            return 0
        with pytest.raises(SystemExit) as ended:
            main(["--quiet", "prepare", "--mode", "text", "--scenario", str(path)])
        return int(ended.value.code or 0)


@pytest.mark.parametrize("section", dict.fromkeys(place[0] for place in FIELDS))
def test_a_hostile_value_ends_with_0_2_or_3(
    section: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "scenario.json"
    bad = []
    for place in (place for place in FIELDS if place[0] == section):
        for value in HOSTILE:
            path.write_text(scenario_text(place, value, tmp_path / "out"))
            code = code_of(place, path)
            if code not in (ExitCode.DONE, ExitCode.USAGE, ExitCode.ARTIFACTS):
                bad.append((place, value[:40], code, capsys.readouterr().err[-300:]))
    assert not bad, "\n".join(map(str, bad))
