"""The command lines of LMCache's guide for `bench server` and `bench l2`, on a server and an adapter in memory.

Flags and values are the guide's; addresses, folders and what takes gigabytes are replaced. What LMCache itself does with
such runs is in `tests/tiers/real`. Exit codes and lines are the guide's, or those of the page of intentional differences.
"""

import json
from pathlib import Path

import pytest

from tests.tiers.test_commands import Api, api, run

__all__ = ["api"]  # the fixture

FS = '{"type":"fs","base_path":"/tmp/lmcache-bench"}'
MORE = '{"type":"fs","base_path":"/data/lmcache-bench","relative_tmp_dir":"tmp"}'
SMALL_SERVER = (
    *(
        "--mode",
        "cpu",
        "--kvcache-shape-spec",
        "(2,32,4,2,8):float16:3",
        "--num-tokens",
        "64",
        "--interval",
        "0",
    ),
    *("--end", "2"),
)


# ---- l2


@pytest.mark.parametrize(
    ("arguments", "sections", "code"),
    [
        (["--l2-adapter", FS], ["Store", "Lookup", "Load"], 0),
        (
            [
                *("--l2-adapter", MORE, "--num-keys", "32", "--in-flight", "4", "--data-size-kb", "4"),
                *("--rounds", "5", "--warmup-rounds", "1"),
            ],
            ["Store", "Lookup", "Load"],
            0,
        ),
        (["--l2-adapter", FS, "--only", "store"], ["Store"], 0),
        (["--l2-adapter", FS, "--only", "lookup", "--lookup-max-hit-rate", "0.5"], ["Lookup"], 0),
        (["--l2-adapter", FS, "--no-skip-verify"], ["Store", "Lookup", "Load"], 0),
    ],
)
def test_examples_of_l2(
    api: Api, capfd: pytest.CaptureFixture[str], arguments: list[str], sections: list[str], code: int
) -> None:
    assert run("l2", *arguments, "--data-size-kb", "4") == code
    printed = capfd.readouterr()
    for section in ("Configuration", *sections):
        assert f"- {section} -" in printed.out
    for section in {"Store", "Lookup", "Load"} - set(sections):
        assert f"- {section} -" not in printed.out
    assert "L2 Adapter Benchmark Result" in printed.out
    for line in (
        *("L2 Adapter Benchmark", "Adapter config", "L2 adapter JSON", "Keys / submit", "In-flight / round"),
        *("Keys / round", "Data size / key", "Data / round", "Rounds", "[Init] Creating adapter..."),
        "[Init] Adapter created successfully",
    ):
        assert line in printed.err
    if sections != ["Lookup"]:
        assert "[Verify] OK" in printed.err
    if "Lookup" in sections:
        for line in ("Expected max hit rate:", "Expected hit keys:", "Actual hit rate:"):
            assert line in printed.out


def test_the_spec_from_the_environment(
    api: Api, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("L2_ADAPTER_JSON", FS)
    assert run("l2", "--num-keys", "32", "--in-flight", "2", "--data-size-kb", "4") == 0
    assert "In-flight / round:                                             2" in capfd.readouterr().out


def test_store_then_lookup_then_load_in_runs_of_their_own(
    api: Api, capfd: pytest.CaptureFixture[str]
) -> None:
    small = ("--l2-adapter", FS, "--data-size-kb", "4")
    assert run("l2", *small, "--only", "store") == 0
    assert run("l2", *small, "--only", "lookup", "--lookup-max-hit-rate", "1.0") == 0
    assert run("l2", *small, "--only", "load") == 0
    assert "Actual hit rate:                                           1.000" in capfd.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--l2-adapter", "{"],
        ["--l2-adapter", FS, "--l1-align-bytes", "0"],
        ["--l2-adapter", FS, "--data-size-kb", "1", "--l1-align-bytes", "4096"],
        ["--l2-adapter", FS, "--lookup-max-hit-rate", "2"],
        ["--l2-adapter", FS, "--only", "delete"],
    ],
)
def test_invalid_calls_of_l2_end_with_2(
    api: Api, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.delenv("L2_ADAPTER_JSON", raising=False)
    assert run("l2", *arguments) == 2


# ---- server


def test_the_quick_start_of_server(api: Api, capfd: pytest.CaptureFixture[str]) -> None:
    url = ("--rpc-url", "tcp://localhost:15556", "--url", "http://localhost:8080")
    assert run("server", *url, *SMALL_SERVER) == 0
    printed = capfd.readouterr()
    for section in ("Configuration", "Results", "Cold Lookup (ms)", "Cold Store (ms)", "Warm Lookup (ms)"):
        assert f"- {section} -" in printed.out
    for line in (
        "RPC URL:",
        "Mode:",
        "Transfer mode:",
        "Tokens / request:",
        "Interval (s):",
        "Total requests:",
    ):
        assert line in printed.out
    for name, value in (("Checksum OK", "2"), ("Checksum FAIL", "0"), ("Pass rate (%)", "100.00")):
        assert f"{name}:{value:>{63 - len(name)}}" in printed.out
    for line in (
        "Connecting to LMCache MP Server at tcp://localhost:15556 (mode=cpu) ...",
        "Server chunk_size = ",
        "Resolved KV shape spec: ",
        "[seq=0] LOOKUP cold:  0/",
        "[seq=0] STORE: ",
        "[seq=0] LOOKUP warm: ",
        "[seq=0] RETRIEVE: ",
        "[seq=0] CHECKSUM MATCH OK",
    ):
        assert line in printed.err


@pytest.mark.parametrize(
    "more",
    [
        [
            "--kvcache-shape-spec",
            "(1,32,4,1,16):float16:1;(2,32,4,2,8):float16:3",
            "--transfer-mode",
            "lmcache_driven",
        ],
        ["--kvcache-shape-spec", "(1,32,4,1,16):bfloat16:61"],
        [
            "--kvcache-shape-spec",
            "(1,32,4,1,16):bfloat16:8",
            "--tp-size",
            "2",
            "--transfer-mode",
            "lmcache_driven",
        ],
    ],
)
def test_shapes_of_the_guide(api: Api, capfd: pytest.CaptureFixture[str], more: list[str]) -> None:
    assert run("server", *SMALL_SERVER, *more) == 0
    assert "Checksum FAIL:                                                 0" in capfd.readouterr().out


def test_a_mismatch_ends_with_1(api: Api, capfd: pytest.CaptureFixture[str]) -> None:
    api.server.fails.add("retrieve")
    assert run("server", *SMALL_SERVER) == 1


def test_machine_readable_output_of_server(
    api: Api, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run("server", *SMALL_SERVER, "--format", "json", "--output", tmp_path / "o.json", "-q") == 0
    document = json.loads(capfd.readouterr().out)
    assert document["title"] == "Server Bench Result"
    assert document["metrics"]["results"]["checksum_ok"] == 2
    assert document["metrics"]["cold_lookup"]["cold_lookup_count"] == 2
    assert document == json.loads((tmp_path / "o.json").read_text())


def test_gpu_without_cuda_is_4_and_not_1(api: Api, capfd: pytest.CaptureFixture[str]) -> None:
    """On the page of intentional differences."""
    assert run("server", "--rpc-url", "tcp://localhost:15556", "--end", "1") == 4
    page = Path(__file__).resolve().parents[2] / "docs" / "coming-from-lmcache-bench.md"
    assert "no CUDA, adapter that cannot be made | exit 1 | exit 4" in page.read_text()
