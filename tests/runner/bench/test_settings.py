"""Flags, config files, and which of them wins."""

import json
from pathlib import Path
from typing import Any

import pytest

from contract.errors import ScenarioError
from contract.options import flag
from runner.bench.settings import (
    General,
    Settings,
    fields_of,
    missing,
    parse_arguments,
    read_config,
    resolve,
    write_config,
)
from runner.workloads import WORKLOADS

URL = ["--engine-url", "http://e"]
GUIDE_SAMPLE = {
    "model": "Qwen/Qwen3-14B",
    "workload": "long-doc-qa",
    "tokens_per_gb_kvcache": 6553,
    "kv_cache_volume": 100.0,
    "ldqa_document_length": 10000,
    "ldqa_query_per_document": 2,
    "ldqa_shuffle_policy": "random",
    "ldqa_num_inflight_requests": 3,
}
# Flags and defaults of the guide and of the tool that it describes, written down here once more by hand.
DEFAULTS: dict[str, dict[str, Any]] = {
    "long-doc-qa": {
        "ldqa_document_length": 10000,
        "ldqa_query_per_document": 2,
        "ldqa_shuffle_policy": "random",
        "ldqa_num_inflight_requests": 3,
        "ldqa_max_output_length": 128,
    },
    "multi-round-chat": {
        "mrc_shared_prompt_length": 2000,
        "mrc_chat_history_length": 10000,
        "mrc_user_input_length": 50,
        "mrc_output_length": 200,
        "mrc_qps": 1.0,
        "mrc_duration": 60.0,
    },
    "long-doc-permutator": {
        "ldp_num_contexts": 5,
        "ldp_context_length": 5000,
        "ldp_system_prompt_length": 1000,
        "ldp_num_permutations": 10,
        "ldp_num_inflight_requests": 1,
        "ldp_max_output_length": 128,
    },
    "prefix-suffix-tuner": {"psf_context_length": 8000, "psf_prefix_ratio": 0.8, "psf_thrash": 20.0},
    "rag-qa-quality": {
        "rag_dataset": "x.json",
        "rag_num_samples": 50,
        "rag_max_output_length": 1024,
        "rag_doc_align_tokens": 256,
        "rag_template_kwargs": {},
    },
    "random-prefill": {"rp_request_length": 10000, "rp_num_requests": 50},
    "kv-tier-pressure": {
        "ktp_overflow_factor": 2.0,
        "ktp_pool_size": None,
        "ktp_docs_per_request": 16,
        "ktp_context_length": 2560,
        "ktp_system_prompt_length": 256,
        "ktp_num_requests": 200,
        "ktp_access_skew": 0.0,
        "ktp_num_inflight_requests": 8,
        "ktp_max_output_length": 1,
    },
}
OTHER: dict[str, str] = {"random": "tile", "x.json": "y.json"}


def from_flags(*arguments: str) -> Settings:
    return resolve(parse_arguments(arguments, "bench").given)


def required(name: str) -> list[str]:
    return ["--rag-dataset", "x.json"] if name == "rag-qa-quality" else []


@pytest.mark.parametrize("name", WORKLOADS)
def test_defaults(name: str) -> None:
    settings = from_flags(*URL, "--workload", name, *required(name))
    assert settings.parameters.model_dump() == DEFAULTS[name]
    general = settings.general
    assert (general.kv_cache_volume, general.seed, general.output_dir) == (100.0, 42, Path())
    assert not any(
        (
            general.no_csv,
            general.json_summary,
            general.quiet,
            general.ignore_eos,
            general.no_warmup,
            general.reset_cache,
        )
    )


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_parameter_has_a_flag_and_replays_from_a_file(name: str, tmp_path: Path) -> None:
    arguments, wanted = [], {}
    for key, default in DEFAULTS[name].items():
        if key == "rag_template_kwargs":
            arguments += [flag(key), "thinking=false", flag(key), "effort=high"]
            wanted[key] = {"thinking": False, "effort": "high"}
            continue
        value = (
            OTHER.get(str(default)) or {"psf_prefix_ratio": 0.5, "ktp_pool_size": 40}.get(key) or default + 1
        )
        arguments += [flag(key), str(value)]
        wanted[key] = value
    given = [*URL, "--workload", name, "--seed", "7", "--kv-cache-volume", "3", "--ignore-eos", *arguments]
    settings = from_flags(*given)
    assert settings.parameters.model_dump() == wanted
    path = tmp_path / "config.json"
    write_config(path, settings.exported(model="m", tokens_per_gb_kvcache=6000))
    stored = json.loads(path.read_text())
    assert "http://e" not in path.read_text()
    assert not {"engine_url", "lmcache_url", "output_dir"} & stored.keys()
    assert stored["seed"] == 7
    replayed = resolve({**read_config(path), "engine_url": "http://other"})
    assert replayed.parameters == settings.parameters
    assert replayed.general.seed == 7
    assert replayed.general.ignore_eos
    assert (replayed.general.model, replayed.general.tokens_per_gb_kvcache) == ("m", 6000)
    assert replayed.exported() == stored


def test_the_guides_sample_replays_as_written(tmp_path: Path) -> None:
    path = tmp_path / "my_bench.json"
    path.write_text(json.dumps(GUIDE_SAMPLE))
    settings = resolve({**read_config(path), "engine_url": "http://e"})
    assert {key: settings.exported()[key] for key in GUIDE_SAMPLE} == GUIDE_SAMPLE


def test_a_flag_that_repeats_a_default_wins_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(GUIDE_SAMPLE | {"kv_cache_volume": 50, "no_warmup": True, "seed": 3}))
    line = parse_arguments(
        [*URL, "--config", str(path), "--kv-cache-volume", "100", "--seed", "42", "--warmup"], "bench"
    )
    assert line.config == path
    settings = resolve({**read_config(path), **line.given})
    assert (settings.general.kv_cache_volume, settings.general.seed, settings.general.no_warmup) == (
        100.0,
        42,
        False,
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"workload": "long-doc-qa", "ldqa_documents": 3, "colour": 1}', "unknown colour, ldqa_documents"),
        (
            '{"engine_url": "http://e"}',
            "engine_url does not belong into a config file; give it as --engine-url",
        ),
        ('{"lmcache_url": "http://e"}', "--lmcache-url"),
        ("[]", "must hold one JSON object"),
        ("{", "not JSON"),
    ],
)
def test_config_files_are_refused_with_a_reason(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(content)
    with pytest.raises(ScenarioError) as error:
        read_config(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_a_config_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"no\.json"):
        read_config(tmp_path / "no.json")


def test_exporting_into_nowhere(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="there is no folder"):
        write_config(tmp_path / "missing" / "c.json", {})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "missing --engine-url, --workload"),
        (["--engine-url", "e"], "missing --workload"),
        ([*URL, "--workload", "rag-qa-quality"], "missing --rag-dataset"),
        (
            [*URL, "--workload", "long-doc-qa", "--rp-num-requests", "3"],
            "--rp-num-requests: belongs to another workload",
        ),
        ([*URL, "--workload", "long-doc-qa", "--seed", "x"], "--seed"),
        ([*URL, "--workload", "long-doc-qa", "--kv-cache-volume", "0"], "--kv-cache-volume"),
        ([*URL, "--workload", "long-doc-qa", "--kv-cache-volume", "nan"], "--kv-cache-volume"),
        ([*URL, "--workload", "long-doc-qa", "--tokens-per-gb-kvcache", "-1"], "--tokens-per-gb-kvcache"),
        ([*URL, "--workload", "multi-round-chat", "--mrc-qps", "inf"], "--mrc-qps"),
        ([*URL, "--workload", "long-doc-qa", "--timeout", "0"], "--timeout"),
        (
            [*URL, "--workload", "prefix-suffix-tuner", "--psf-context-length", "300"],
            "leave 28 tokens for the suffix; it needs 100",
        ),
        (
            [*URL, "--workload", "rag-qa-quality", "--rag-dataset", "x", "--rag-template-kwargs", "oops"],
            "KEY=VALUE",
        ),
    ],
)
def test_unusable_settings_are_named(arguments: list[str], message: str) -> None:
    with pytest.raises(ScenarioError) as error:
        from_flags(*arguments)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_all_problems_at_once() -> None:
    with pytest.raises(
        ScenarioError, match=r"--kv-cache-volume.*--ldqa-document-length.*--ldqa-query-per-document"
    ):
        from_flags(
            *(*URL, "--workload", "long-doc-qa", "--kv-cache-volume", "-1"),
            *("--ldqa-document-length", "0", "--ldqa-query-per-document", "many"),
        )


@pytest.mark.parametrize(
    "arguments", [["--colour", "red"], ["--seed"], ["--workload", "chess"], ["extra"], ["--ldqa"]]
)
def test_the_parser_refuses_what_it_does_not_know(arguments: list[str]) -> None:
    with pytest.raises(ScenarioError):
        parse_arguments(arguments, "bench")


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        parse_arguments(["--help"], "bench")
    assert ending.value.code == 0
    text = capsys.readouterr().out
    keys = [*fields_of(General), *(key for w in WORKLOADS.values() for key in fields_of(w.parameters))]
    assert [key for key in keys if flag(key) not in text] == []
    for name in ("--config", "--export-config", "--no-interactive", "-q"):
        assert name in text


def test_missing_keys() -> None:
    assert missing({}) == ["engine_url", "workload"]
    assert missing({"engine_url": "e", "workload": "rag-qa-quality"}) == ["rag_dataset"]
    assert missing({"engine_url": "e", "workload": "long-doc-qa"}) == []
