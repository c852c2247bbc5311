"""Loading a scenario: every problem at once, each with its place, what was found and what would be right."""

import contextlib
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import ExitCode, ScenarioError
from contract.scenario import Scenario, load_scenario, parse_scenario
from contract.scenario.schema import SCHEMA_PATH, scenario_schema, schema_text


def problems(raw: Any, **options: Any) -> list[str]:
    with pytest.raises(ScenarioError) as raised:
        parse_scenario(raw, **options)
    assert raised.value.exit_code == ExitCode.USAGE
    return [line.removeprefix("scenario: ") for line in str(raised.value).splitlines()]


def test_defaults_are_those_of_the_reference() -> None:
    scenario = parse_scenario({})
    assert scenario.run.run_id == "gsm8k-prefix-cache-60"
    assert scenario.tokenizer.path == "/home/weights/Qwen3.6-27B"
    assert scenario.tokenizer.block_size == 16
    assert scenario.requests.count == 100
    assert scenario.requests.input_length.value == 1024
    assert scenario.requests.output_length.value == 32
    assert scenario.prefix_cache.target_hit_rate == 0.6
    assert scenario.minimum_non_shared_length == 16
    assert scenario.service.poll_interval_seconds == 5.0
    assert scenario.aisbench.extra_args == {"--num-warmups": 0}
    assert scenario.concurrency == 1
    assert scenario.retries == 0


def test_driver_falls_back_to_aisbench_settings() -> None:
    assert parse_scenario({"aisbench": {"model": {"batch_size": 7}}}).concurrency == 7
    assert (
        parse_scenario({"aisbench": {"model": {"batch_size": 7}}, "driver": {"concurrency": 3}}).concurrency
        == 3
    )


def test_the_limit_of_requests_is_the_drivers_alone() -> None:
    assert parse_scenario({"service": {"timeout_seconds": 9}}).request_timeout_seconds == 3600
    assert parse_scenario({"driver": {"timeout_seconds": None}}).request_timeout_seconds is None
    assert parse_scenario({"driver": {"timeout_seconds": 5}}).request_timeout_seconds == 5


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"reqests": {}}, "reqests: unknown field; did you mean 'requests'?"),
        ({"requests": {"cuont": 3}}, "requests.cuont: unknown field; did you mean 'count'?"),
        ({"requests": {"count": 0}}, "requests.count: found 0; must be >= 1"),
        ({"requests": {"count": True}}, "requests.count: found true; must be an integer"),
        ({"requests": {"count": "5"}}, "requests.count: found '5'; must be an integer"),
        ({"requests": {"count": 2.0}}, "requests.count: found 2.0; must be an integer"),
        ({"requests": []}, "requests: found []; must be an object"),
        ({"tokenizer": None}, "tokenizer: found null; must be an object"),
        ({"schema_version": "2.0"}, "schema_version: found '2.0'; must be '1.0'"),
        (
            {"prefix_cache": {"target_hit_rate": 1.2}},
            "prefix_cache.target_hit_rate: found 1.2; must be <= 1",
        ),
        (
            {"prefix_cache": {"target_hit_rate": True}},
            "prefix_cache.target_hit_rate: found true; must be a number",
        ),
        (
            {"prefix_cache": {"order": {"strategy": "random"}}},
            (
                "prefix_cache.order.strategy: found 'random'; must be 'sequential', 'within_group_shuffle', "
                "'interleave', 'global_shuffle' or 'input_len_asc'"
            ),
        ),
        (
            {"requests": {"input_length": {"mode": "range", "ranges": [{"min": 64, "count": 100}]}}},
            "requests.input_length.ranges[0].max: is missing",
        ),
        (
            {"requests": {"count": 3, "input_length": {"mode": "explicit", "values": [64, 64]}}},
            "requests.input_length.values: has 2 lengths for 3 requests",
        ),
        (
            {"requests": {"input_length": {"mode": "truncated_normal", "min": 64, "max": 32}}},
            "requests.input_length.max: found 32; must be >= min 64",
        ),
        (
            {"requests": {"input_length": {"mode": "truncated_normal", "min": 64}}},
            "requests.input_length.max: is missing; mode truncated_normal needs it",
        ),
        (
            {"requests": {"output_length": {"mode": "explicit"}}},
            "requests.output_length.mode: found 'explicit'; must be 'fixed', 'uniform', 'truncated_normal' or 'csv'",
        ),
        (
            {"prefix_cache": {"groups": {"count": 2, "assignment": {"mode": "weights", "weights": [1]}}}},
            "prefix_cache.groups.assignment.weights: has 1 weights for groups.count 2",
        ),
        (
            {"prefix_cache": {"groups": {"count": 2, "assignment": {"mode": "weights", "weights": [0, 0]}}}},
            "prefix_cache.groups.assignment.weights: must not all be 0",
        ),
        (
            {"prefix_cache": {"groups": {"count": 2, "assignment": {"mode": "weights", "weights": [1, -1]}}}},
            "prefix_cache.groups.assignment.weights[1]: found -1; must be >= 0",
        ),
        (
            {"prefix_cache": {"groups": {"assignment": {"mode": "zipf", "exponent": 0}}}},
            "prefix_cache.groups.assignment.exponent: found 0; must be > 0",
        ),
        (
            {"prefix_cache": {"groups": {"count": 2, "overrides": {"group-2": {}}}}},
            "prefix_cache.groups.overrides.group-2: no such group; groups.count is 2 (group-0 to group-1)",
        ),
        (
            {
                "prefix_cache": {
                    "groups": {
                        "count": 2,
                        "overrides": {"group-1": {"input_length": {"mode": "explicit", "values": [64]}}},
                    }
                }
            },
            "prefix_cache.groups.overrides.group-1.input_length.values: has 1 lengths for 50 requests",
        ),
        (
            {"requests": {"input_length": {"mode": "fixed", "value": 15}}},
            "requests.input_length: can be 15 tokens; must be >= the 16 that are never shared",
        ),
        (
            {"prefix_cache": {"minimum_non_shared_length": 15}},
            "prefix_cache.minimum_non_shared_length: found 15; must be >= seed_blocks x block_size = 16",
        ),
        (
            {"corpus": {"selection": {"mode": "mixed"}}},
            "corpus.selection: mode mixed needs indices or question_sha256, not both empty",
        ),
        (
            {"corpus": {"selection": {"mode": "indices", "values": [1, "a"]}}},
            "corpus.selection.values[1]: found 'a'; must be an integer >= 0",
        ),
        (
            {"corpus": {"selection": {"mode": "indices", "indices": []}}},
            "corpus.selection.indices: mode indices needs a list of record numbers that is not empty",
        ),
        (
            {"output": {"output_key": "tokens"}},
            "output.output_key: found 'tokens'; must be 'max_tokens' or 'output_tokens' or null",
        ),
        (
            {"driver": {"kind": "other"}},
            "driver.kind: found 'other'; must be 'native' or 'aisbench' or null",
        ),
        (
            {"engine": {"kind": "other"}},
            "engine.kind: found 'other'; must be 'external', 'simulator' or 'vllm'",
        ),
        (
            {"service": {"dp_size": 2, "engine_label_map": {"a": 2}}},
            "service.engine_label_map.a: found 2; must be below service.dp_size 2",
        ),
        (
            {"service": {"metrics_url": "localhost:8000/metrics"}},
            "service.metrics_url: found 'localhost:8000/metrics'; must be a full http:// or https:// address",
        ),
        (
            {"aisbench": {"model": {"attr": "local"}}},
            "aisbench.model.attr: found 'local'; must be 'service'",
        ),
        (
            {"run": {"run_id": "a/b"}},
            "run.run_id: found 'a/b'; names files, so it must hold no path separator",
        ),
        *(
            (
                {"run": {"run_id": f"a{control}b"}},
                f"run.run_id: found {f'a{control}b'!r}; names files, so it must hold no control characters",
            )
            for control in ("\n", "\x1b[2J", "\u202e")
        ),
        (
            {"requests": {"input_length": {"mode": "csv"}}},
            "requests.input_length.path: is missing; mode csv needs it",
        ),
    ],
)
def test_one_mistake_is_one_line(raw: dict[str, Any], expected: str) -> None:
    assert problems(raw) == [expected]


def test_the_text_alone_can_be_checked(tmp_path: Path) -> None:
    """A container that does not see the files yet tells every mistake but theirs."""
    lengths = {"mode": "csv", "path": "absent.csv"}
    groups = {"count": 1, "overrides": {"group-0": {"input_length": lengths}}}
    raw = {"requests": {"input_length": lengths}, "prefix_cache": {"groups": groups}}
    assert parse_scenario(raw, folder=tmp_path, files=False).requests.input_length.mode == "csv"
    assert len(problems(raw, folder=tmp_path)) == 2
    (mistake,) = problems({**raw, "run": {"run_id": "a/b"}}, folder=tmp_path, files=False)
    assert mistake.startswith("run.run_id: ")


def test_all_mistakes_at_once() -> None:
    found = problems(
        {
            "requests": {"count": 0, "typo": 1},
            "prefix_cache": {"target_hit_rate": -1, "groups": {"overrides": {"group-x": {}}}},
            "service": {"dp_size": "2"},
            "corpus": {"selection": {"mode": "indices"}},
        }
    )
    assert {line.partition(":")[0] for line in found} == {
        "requests.count",
        "requests.typo",
        "prefix_cache.target_hit_rate",
        "prefix_cache.groups.overrides.group-x",
        "service.dp_size",
        "corpus.selection.values",
    }


def test_a_mistake_in_one_section_does_not_hide_rules_of_another() -> None:
    found = problems(
        {
            "unknown": 1,
            "prefix_cache": {"typo": 1, "groups": {"count": 1, "overrides": {"group-5": {}}}},
            "requests": {"count": 2, "input_length": {"mode": "explicit", "values": [64]}},
        }
    )
    assert {line.partition(":")[0] for line in found} == {
        "unknown",
        "prefix_cache.typo",
        "prefix_cache.groups.overrides.group-5",
        "requests.input_length.values",
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "input_length\n5\n",
            "needs a column input_prompt_tokens or content_tokens or input_tokens; found input_length",
        ),
        ("input_tokens\n64\n", "has 1 rows for 2 requests"),
        ("input_tokens\n64\n0\n", ":3: input_tokens is '0'; must be an integer >= 1"),
        ("input_tokens\n64\nx\n", ":3: input_tokens is 'x'; must be an integer >= 1"),
        ("", "needs a column"),
    ],
)
def test_csv_files_are_read_at_load(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "lengths.csv").write_text(content)
    raw = {"requests": {"count": 2, "input_length": {"mode": "csv", "path": "lengths.csv"}}}
    (line,) = problems(raw, folder=tmp_path)
    assert line.startswith("requests.input_length.path: ")
    assert message in line


def test_csv_columns_in_order_of_preference_and_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_bytes(b"\xef\xbb\xbfinput_tokens,input_prompt_tokens\n10,64\n10,65\n")
    raw = {"requests": {"count": 2, "input_length": {"mode": "csv", "path": "lengths.csv"}}}
    assert parse_scenario(raw, folder=tmp_path).requests.input_length.path == str(tmp_path / "lengths.csv")


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_json_and_yaml_mean_the_same(tmp_path: Path) -> None:
    one = load_scenario(write(tmp_path / "a.json", '{"requests": {"count": 5}, "run": {"output_dir": "o"}}'))
    two = load_scenario(write(tmp_path / "a.yaml", "requests:\n  count: 5\nrun: {output_dir: o}\n"))
    assert one == two
    assert one.run.output_dir == str(tmp_path / "o")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", '{"a": 1,}', "a.json:1:9: not JSON"),
        ("a.json", '{"run": {}, "run": {}}', "the key 'run' stands twice"),
        (
            "a.json",
            '{"validation": {"target_warning_pp": NaN}}',
            "validation.target_warning_pp: found nan; must be a finite number",
        ),
        ("a.json", "[1]", "must hold one object at the top"),
        ("a.yaml", "a: [1", "not YAML"),
        ("a.yaml", "run: {}\nrun: {}\n", "the key 'run' stands twice"),
        ("a.yaml", "run: !!python/object:os.system {}\n", "not YAML"),
        ("a.yaml", "", "must hold one object at the top"),
    ],
)
def test_unreadable_documents(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message.replace("[", r"\[")) as raised:
        load_scenario(write(tmp_path / name, text))
    assert len(str(raised.value).splitlines()) == 1


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="no such file"):
        load_scenario(tmp_path / "none.json")


def test_paths_are_seen_from_the_scenarios_folder(tmp_path: Path) -> None:
    (tmp_path / "tok").mkdir()
    raw = {
        "tokenizer": {"path": "tok"},
        "corpus": {"path": "c.jsonl"},
        "aisbench": {"work_dir": "w", "config": "c.py"},
    }
    scenario = parse_scenario(raw, folder=tmp_path)
    assert scenario.tokenizer.path == str(tmp_path / "tok")
    assert scenario.corpus.path == str(tmp_path / "c.jsonl")
    assert scenario.aisbench.work_dir == str(tmp_path / "w")
    assert scenario.aisbench.config == str(tmp_path / "c.py")
    assert (
        parse_scenario({"tokenizer": {"path": "Qwen/Qwen3"}}, folder=tmp_path).tokenizer.path == "Qwen/Qwen3"
    )
    assert (
        parse_scenario({"corpus": {"path": "builtin:word-problems"}}).corpus.path == "builtin:word-problems"
    )
    assert raw["corpus"] == {"path": "c.jsonl"}, "the caller's object is left alone"


def test_multimodal_mode_does_without_block_size_and_prefix_cache() -> None:
    raw = {
        "tokenizer": {"block_size": "no"},
        "prefix_cache": {"nonsense": 1},
        "multimodal": {"mmmu_parquet_dir": "/m"},
    }
    assert parse_scenario(raw, mode="mm").multimodal.scenarios == ["single_1080p"]
    assert len(problems(raw)) == 2
    assert problems({"requests": {"input_length": {"mode": "range"}}}, mode="mm")[-1].startswith(
        "requests.input_length.mode: found 'range'"
    )


def test_exported_schema_is_in_step() -> None:
    assert SCHEMA_PATH.read_text(encoding="utf-8") == schema_text()


def test_exported_schema_is_a_schema_and_accepts_the_defaults() -> None:
    jsonschema.Draft202012Validator.check_schema(scenario_schema())
    jsonschema.validate(json.loads(Scenario().model_dump_json()), scenario_schema())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from([*Scenario.model_fields, "other"]),
        json_values
        | st.dictionaries(st.sampled_from(["count", "mode", "path", "groups", "values"]), json_values),
    )
)
def test_any_object_loads_or_is_refused_in_lines_with_a_place(raw: dict[str, Any]) -> None:
    try:
        parse_scenario(raw)
    except ScenarioError as error:
        for line in str(error).splitlines():
            assert line.startswith("scenario: ")
            assert ": " in line.removeprefix("scenario: ")


def bomb(levels: int) -> str:
    """Nine aliases in each level: 9**levels texts."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 9)}]" for at in range(1, levels)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", bomb(12), "stand for more than 64 MiB"),
        (
            "a.yaml",
            "a0: &a0 {x: 1}\n"
            + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 40)),
            "stand for more than 64 MiB",
        ),
        ("a.yaml", "run: &a {run_id: *a}\n", "an alias stands inside of what it names"),
        ("a.yaml", "service: {timeout_seconds: .inf}\n", "service.timeout_seconds: found inf"),
        ("a.yaml", "service: {timeout_seconds: .nan}\n", "service.timeout_seconds: found nan"),
        ("a.yaml", "run: {random_seed: 1" + ":1" * 100_000 + "}\n", "run.random_seed: found 1:1:1"),
        (
            "a.yaml",
            "service: {timeout_seconds: 1" + ":1" * 1000 + ".5}\n",
            "service.timeout_seconds: found 1:1",
        ),
        (
            "a.yaml",
            "run: {random_seed: 0x" + "f" * 300 + "}\n",
            "run.random_seed: found a number of more than 361 digits",
        ),
        ("a.yaml", "run: {run_id: !!binary aGk=}\n", "run.run_id: found a bytes"),
        ("a.json", '{"service": {"timeout_seconds": 1e999}}', "service.timeout_seconds: found inf"),
        ("a.json", f'{{"run": {{"random_seed": {"9" * 5000}}}}}', "run.random_seed: found 9999"),
        ("a.json", r'{"run": {"run_id": "a\u0000"}}', "run.run_id: found 'a\\x00'; must hold no NUL"),
        ("a.json", r'{"corpus": {"path": "\ud800"}}', "corpus.path: found '\\ud800'; must hold no half"),
        ("a.json", r'{"run": {"\ud800": 1}}', "run: has the key '\\ud800'"),
        (
            "a.json",
            '{"corpus": {"path": "~no-such-user/x"}}',
            "corpus.path: found '~no-such-user/x'; no user",
        ),
        (
            "a.json",
            '{"run": {"output_dir": "~no-such-user/x"}}',
            "run.output_dir: found '~no-such-user/x'; no user",
        ),
        ("a.json", '{"run": {"run_id": "a\\nb"}}', "must hold no control characters"),
        ("a.json", f'{{"run": {{"run_id": "{"n" * 201}"}}}}', "run.run_id: has 201 bytes"),
        (
            "a.json",
            '{"aisbench": {"model": {"generation_kwargs": {"x": [1e999]}}}}',
            "generation_kwargs.x[0]: found inf",
        ),
        ("a.json", '{"corpus": ' + "[" * 200 + "]" * 200 + "}", "is nested more than 64 levels deep"),
    ],
)
def test_what_no_field_can_hold_is_named_with_its_field(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ScenarioError) as raised:
        load_scenario(tmp_path / name)
    assert raised.value.exit_code == ExitCode.USAGE
    assert message in str(raised.value)


def test_every_problem_is_named_once_beside_what_no_field_can_hold() -> None:
    found = problems(
        {
            "service": {"timeout_seconds": float("inf"), "dp_size": 0},
            "corpus": {"selection": {"mode": "indices", "values": [1, float("nan")]}},
        }
    )
    assert found == [
        "service.timeout_seconds: found inf; must be a finite number",
        "corpus.selection.values[1]: found nan; must be a finite number",
        "service.dp_size: found 0; must be >= 1",
    ]


def test_of_a_long_list_of_problems_the_first_are_shown() -> None:
    found = problems(
        {"requests": {"count": 1000, "input_length": {"mode": "explicit", "values": ["x"] * 1000}}}
    )
    assert len(found) == 51
    assert found[-1] == "and 950 more"


@pytest.mark.parametrize(
    ("field", "largest"),
    [
        (("requests", "count"), 10**8),
        (("prefix_cache", "groups", "count"), 10**6),
        (("service", "dp_size"), 4096),
        (("requests", "input_length", "value"), 2**31 - 1),
        (("requests", "output_length", "value"), 2**31 - 1),
        (("tokenizer", "block_size"), 2**31 - 1),
    ],
)
def test_the_schema_has_the_largest_values_that_loading_takes(field: tuple[str, ...], largest: int) -> None:
    def document(value: int) -> dict[str, Any]:
        inner: Any = value
        for step in reversed(field):
            inner = {step: inner}
        return dict(inner)

    schema = jsonschema.Draft202012Validator(scenario_schema())
    assert schema.is_valid(document(largest))
    assert not schema.is_valid(document(largest + 1))
    too_large = f"{'.'.join(field)}: found {largest + 1}; must be <= {largest}"
    assert too_large in problems(document(largest + 1))
    with contextlib.suppress(ScenarioError):  # a rule between fields may still refuse it, with another reason
        parse_scenario(document(largest))


def test_every_number_of_the_schema_has_an_end() -> None:
    def numbers(node: Any, path: str) -> list[str]:
        if isinstance(node, list):
            return [found for item in node for found in numbers(item, path)]
        if not isinstance(node, dict):
            return []
        endless = node.get("type") in ("integer", "number") and not {
            "maximum",
            "minimum",
            "exclusiveMinimum",
        } & set(node)
        endless = endless or (node.get("type") in ("integer", "number") and "maximum" not in node)
        return [path] * endless + [
            found for key, item in node.items() for found in numbers(item, f"{path}.{key}")
        ]

    assert numbers(scenario_schema(), "") == []


@pytest.mark.parametrize(
    "digits", ["1_000", "\u0661\u0662", "+64", "6 4", "0x40", "9" * 5000, "2147483648", "64.0"]
)
def test_csv_lengths_are_ascii_digits(tmp_path: Path, digits: str) -> None:
    (tmp_path / "lengths.csv").write_text(f"input_tokens\n{digits}\n")
    raw = {"requests": {"count": 1, "input_length": {"mode": "csv", "path": "lengths.csv"}}}
    (line,) = problems(raw, folder=tmp_path)
    assert ":2: input_tokens is" in line


def test_of_a_csv_file_no_more_is_read_than_there_are_requests(tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_text("input_tokens\n" + "64\n" * 3 + "no number\n")
    raw = {"requests": {"count": 2, "input_length": {"mode": "csv", "path": "lengths.csv"}}}
    (line,) = problems(raw, folder=tmp_path)
    assert line.endswith("has more than 2 rows for 2 requests")


def test_a_line_of_a_csv_file_has_an_end(tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_text("input_tokens" * 200_000)
    raw = {"requests": {"count": 2, "input_length": {"mode": "csv", "path": "lengths.csv"}}}
    (line,) = problems(raw, folder=tmp_path)
    assert "has a line of more than 1048576 characters" in line


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1/",
        "http://",
        "http:///v1",
        "http://h:99999/",
        "http://h:x/",
        "http://h:0/",
        "http://a b/",
        "http://h/\n",
        "ftp://h/",
    ],
)
@pytest.mark.parametrize("field", ["inference_url", "metrics_url", "reset_url"])
def test_an_address_that_is_none_is_refused(field: str, url: str) -> None:
    (line,) = problems({"service": {field: url}})
    assert line.startswith(f"service.{field}: found ")
    assert line.endswith("must be a full http:// or https:// address")


def test_of_images_a_text_scenario_is_not_asked() -> None:
    section = {"mmmu_parquet_dir": "/m", "scenarios": ["single_1080p", "multi_720p_5"]}
    parse_scenario({"multimodal": section})
    assert problems({"multimodal": section}, mode="mm") == [
        "multimodal.scenarios: has 2 entries; must have exactly one"
    ]
