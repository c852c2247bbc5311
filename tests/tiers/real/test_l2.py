"""`hitlab bench l2` on LMCache's real adapters, and every known defect of the original beside it."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.tiers.real.conftest import HOST, Run, free_port

HERE = str(Path(__file__).parent)
FEW = (
    "--num-keys",
    "8",
    "--in-flight",
    "2",
    "--data-size-kb",
    "64",
    "--rounds",
    "2",
    "-q",
    "--format",
    "json",
)
PLUGIN = {
    "PYTHONPATH": os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")])),
    "PYTHONDONTWRITEBYTECODE": "1",
}


def fs(folder: Path, **fields: object) -> str:
    folder.mkdir(exist_ok=True)
    return json.dumps({"type": "fs", "base_path": str(folder), **fields})


def plugin(name: str) -> str:
    return json.dumps({"type": "plugin", "module_path": "plugin_adapter", "class_name": name})


def spec(kind: str, folder: Path) -> str:
    device = folder / "device"
    with device.open("wb") as file:
        file.truncate(64 << 20)
    return {
        "fs": fs(folder),
        "fs O_DIRECT": fs(folder, use_odirect=True),
        "fs_native": json.dumps({"type": "fs_native", "base_path": str(folder)}),
        "mock": json.dumps({"type": "mock", "max_size_gb": 1, "mock_bandwidth_gb": 10}),
        "fault_inject": json.dumps({"type": "fault_inject", "inner": json.loads(fs(folder)), "rate": 0.0}),
        "plugin": plugin("Right"),
        "dax": json.dumps(
            {"type": "dax", "device_path": str(device), "max_dax_size_gb": 0.0625, "slot_bytes": 65536}
        ),
    }[kind]


@pytest.mark.parametrize("kind", ["fs", "fs O_DIRECT", "fs_native", "mock", "fault_inject", "plugin", "dax"])
def test_right_adapters_are_called_right(hitlab: Run, kind: str, tmp_path: Path) -> None:
    result = hitlab(
        *("bench", "l2", "--l2-adapter", spec(kind, tmp_path), "--l1-align-bytes", "4096", *FEW),
        *("--lookup-max-hit-rate", "0.5", "--mixed", "0.5"),
        environment=PLUGIN,
    )
    assert result.code == 0, result.err
    document = result.json
    operations = document["cells"][0]["operations"]
    assert set(operations) == {"store", "lookup", "load", "mixed"}
    assert operations["lookup"]["expected_hit_keys"] == 16
    assert operations["lookup"]["actual_hit_rate"] == 0.5
    assert operations["load"]["avg_throughput_mbps"] > 0
    assert set(result.status().values()) == {"passed"}
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and "hitlab-l2" in path.name]


def test_redis(hitlab: Run, redis: tuple[int, subprocess.Popen[bytes]]) -> None:
    adapter = json.dumps({"type": "resp", "host": HOST, "port": redis[0]})
    result = hitlab("bench", "l2", "--l2-adapter", adapter, *FEW, "--lookup-max-hit-rate", "1")
    assert result.code == 0, result.err
    assert result.json["cells"][0]["adapter"]


def test_a_redis_that_is_not_there_is_one_line_within_seconds(hitlab: Run) -> None:
    port = free_port()
    result = hitlab("bench", "l2", "--l2-adapter", json.dumps({"type": "resp", "host": HOST, "port": port}))
    assert result.code == 4
    assert result.seconds < 30
    assert result.err.splitlines()[-1].startswith(
        f"ERROR: --l2-adapter resp: nothing answers at {HOST}:{port}"
    )


def test_a_redis_that_dies_ends_the_run_red(
    hitlab: Run, redis: tuple[int, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    port, process = redis
    adapter = json.dumps({"type": "resp", "host": HOST, "port": port})
    timer = threading.Timer(12, process.kill)
    timer.start()
    result = hitlab(
        *("bench", "l2", "--l2-adapter", adapter, *FEW, "--rounds", "100000", "--task-timeout", "3"),
        timeout=90,
    )
    timer.cancel()
    assert result.code == 1, result.err
    document = result.json
    assert document["verdict"]["line"].startswith("FAILED")
    assert result.seconds < 60


def test_store_then_lookup_and_load_in_other_processes_then_clean(hitlab: Run, tmp_path: Path) -> None:
    adapter = ("--l2-adapter", fs(tmp_path / "l2"))
    stored = hitlab("bench", "l2", *adapter, *FEW, "--only", "store", "--page-cache", "drop")
    assert (stored.code, stored.status()["data"]) == (0, "passed"), stored.err
    found = hitlab("bench", "l2", *adapter, *FEW, "--only", "lookup", "--lookup-max-hit-rate", "1")
    assert found.code == 0
    assert found.json["cells"][0]["operations"]["lookup"]["actual_hit_rate"] == 1.0
    loaded = hitlab("bench", "l2", *adapter, *FEW, "--only", "load", "--page-cache", "drop")
    assert (loaded.code, loaded.status()["data"]) == (0, "passed"), loaded.err

    victim = sorted((tmp_path / "l2").glob("*.data"))[3]
    content = bytearray(victim.read_bytes())
    content[777] ^= 1
    victim.write_bytes(content)
    damaged = hitlab("bench", "l2", *adapter, *FEW, "--only", "load")
    assert damaged.code == 1
    data = next(item for item in damaged.json["checks"] if item["name"] == "data")
    assert (data["failed"], "1 of 65536 bytes differ, the first at offset 777" in data["detail"]) == (1, True)

    cleaned = hitlab("bench", "l2", *adapter, *FEW, "--clean")
    assert cleaned.code == 0
    assert not list((tmp_path / "l2").glob("*.data"))


def test_several_adapters_and_a_matrix_with_files_for_people_and_machines(
    hitlab: Run, tmp_path: Path
) -> None:
    samples, page, saved = tmp_path / "samples.parquet", tmp_path / "page.html", tmp_path / "saved.json"
    arguments = ("--num-keys", "4", "--in-flight", "1,2", "--data-size-kb", "16,64", "--rounds", "3", "-q")
    adapters = (
        "--l2-adapter",
        fs(tmp_path / "one"),
        "--l2-adapter",
        '{"type":"mock","max_size_gb":1,"mock_bandwidth_gb":10}',
    )
    result = hitlab(
        *("bench", "l2", *adapters, *arguments, "--format", "json", "--output", saved),
        *("--samples", samples, "--report", page),
    )
    assert result.code == 0, result.err
    assert len(result.json["cells"]) == 8
    assert json.loads(saved.read_text()) == result.json
    table = pq.read_table(samples)
    assert table.num_rows == 2 * 2 * 3 * 4 * (
        1 + 2
    )  # adapters, sizes, operations, rounds, tasks of both depths
    text = page.read_text()
    assert text.count("<svg") == 2
    assert "<script" not in text
    again = hitlab("bench", "l2", *adapters, *arguments, "--compare", saved)
    assert again.code == 0
    assert re.search(r"FSL2Adapter 64 KiB x2 load avg_throughput_mbps:?\s", again.out)


def test_the_environment_variable_and_the_guides_names(hitlab: Run, tmp_path: Path) -> None:
    result = hitlab("bench", "l2", "--num-keys", "4", environment={"L2_ADAPTER_JSON": fs(tmp_path / "l2")})
    assert result.code == 0, result.err
    for name in (
        "Keys / submit:",
        "In-flight / round:",
        "Rounds timed out:",
        "Throughput avg (MiB/s):",
        "Avg ops/s:",
    ):
        assert name in result.out
    assert "[Store] Round 1:" in result.err
    assert "[Store]" not in result.out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--num-keys", "0"], 2, "--num-keys 0"),
        (["--rounds", "0"], 2, "--rounds 0"),
        (["--lookup-max-hit-rate", "7"], 2, "--lookup-max-hit-rate 7"),
        (["--in-flight", "1,x"], 2, "--in-flight 1,x"),
        (["--only", "delete"], 2, "--only delete"),
        (["--l2-adapter", '{"type":"nosuch"}'], 2, "LMCache 0.5.6 has aerospike"),
        (["--l2-adapter", '{"type":"fs"}'], 2, "base_path"),
        (["--l2-adapter", '{"type":"nixl_store","backend":"POSIX"}'], 4, "nixl"),
        (["--l2-adapter", "nonsense"], 2, "not JSON"),
        (["--flamegraph", "on", "--flamegraph-mode", "off-cpu"], 2, "offcputime"),
        (
            ["--page-cache", "drop", "--l2-adapter", '{"type":"mock","max_size_gb":1,"mock_bandwidth_gb":1}'],
            2,
            "base_path",
        ),
    ],
)
def test_bad_invocations_are_one_line(
    hitlab: Run, arguments: list[str], code: int, says: str, tmp_path: Path
) -> None:
    default = [] if "--l2-adapter" in arguments else ["--l2-adapter", fs(tmp_path / "l2")]
    result = hitlab("bench", "l2", *default, *arguments, "-q")
    assert result.code == code, result.err
    lines = [line for line in result.err.splitlines() if line.startswith("ERROR:")]
    assert len(lines) == 1
    assert says in lines[0]
    assert not result.out


def test_self_test_is_all_red(hitlab: Run, tmp_path: Path) -> None:
    result = hitlab(
        "bench", "l2", "--l2-adapter", fs(tmp_path / "l2"), "--self-test", "--format", "json", "-q"
    )
    assert result.code == 0, result.err
    codes = {trial["fault"]: trial["exit_code"] for trial in result.json["trials"]}
    assert codes.pop("no fault") == 0
    assert set(codes.values()) == {1}
    assert len(codes) == 7


def test_interruption_keeps_the_result_and_removes_own_objects(tiers_python: Path, tmp_path: Path) -> None:
    command = [
        str(Path(sys.executable).parent / "hitlab"),
        "bench",
        "l2",
        "--l2-adapter",
        fs(tmp_path / "l2"),
    ]
    process = subprocess.Popen(
        [*command, "--rounds", "100000", "--format", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "[Store] Round 3" in line:
            break
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert json.loads(out)["cells"][0]["operations"]["store"]["rounds"] >= 2
    assert not list((tmp_path / "l2").glob("*.data"))


def test_flame_graph_of_the_own_process(hitlab: Run, tmp_path: Path) -> None:
    graph = tmp_path / "flame.svg"
    result = hitlab(
        *(
            "bench",
            "l2",
            "--l2-adapter",
            fs(tmp_path / "l2"),
            "--rounds",
            "60",
            "--num-keys",
            "8",
            "--flamegraph",
            "on",
        ),
        *("--flamegraph-mode", "wall,gil", "--flamegraph-output", graph, "--format", "json"),
    )
    assert result.code == 0, result.err
    assert result.json["profiled"] is True
    for mode in ("wall", "gil"):
        assert "<svg" in (tmp_path / f"flame.{mode}.svg").read_text()


# --- defects of the original: what it does, and what we do on the same adapter ---


def l2_of_both(hitlab: Run, original: Run, adapter: str, *arguments: str) -> tuple:  # type: ignore[type-arg]
    theirs = original("bench", "l2", "--l2-adapter", adapter, *arguments, environment=PLUGIN)
    ours = hitlab("bench", "l2", "--l2-adapter", adapter, *arguments, "--format", "json", environment=PLUGIN)
    return theirs, ours


def test_1_failed_work_is_no_throughput(hitlab: Run, original: Run, tmp_path: Path) -> None:
    theirs, ours = l2_of_both(hitlab, original, fs(tmp_path / "empty"), "--only", "load")
    assert theirs.code == 0
    assert float(re.findall(r"Throughput avg \(MB/s\):\s+([\d.]+)", theirs.out)[0]) > 0
    assert ours.code == 1
    assert ours.json["cells"][0]["operations"]["load"]["avg_throughput_mbps"] is None

    theirs, ours = l2_of_both(hitlab, original, plugin("FailsStores"), "--only", "store")
    assert theirs.code == 0
    assert ours.code == 1
    assert ours.json["cells"][0]["operations"]["store"]["avg_throughput_mbps"] is None


def test_2_and_11_time_outs_count_end_the_run_and_are_red(hitlab: Run) -> None:
    begin = time.monotonic()
    ours = hitlab(
        *("bench", "l2", "--l2-adapter", plugin("NeverEndsLoads"), "--task-timeout", "1", "--format", "json"),
        environment=PLUGIN,
    )
    assert ours.code == 1
    assert time.monotonic() - begin < 30
    load = ours.json["cells"][0]["operations"]["load"]
    assert (load["rounds"], load["warmup_rounds_timed_out"]) == (0, 1), (
        "the first time-out, in warm-up, ends the run"
    )
    ours = hitlab(
        *(
            "bench",
            "l2",
            "--l2-adapter",
            plugin("NeverEndsLoads"),
            "--task-timeout",
            "1",
            "--warmup-rounds",
            "0",
        ),
        *("--format", "json"),
        environment=PLUGIN,
    )
    load = ours.json["cells"][0]["operations"]["load"]
    assert (load["rounds"], load["rounds_timed_out"], load["total_keys"]) == (1, 1, 32)


def test_3_an_adapter_that_loads_nothing_never_passes(hitlab: Run, original: Run) -> None:
    arguments = ("--num-keys", "1", "--in-flight", "4", "--no-skip-verify")
    theirs, ours = l2_of_both(hitlab, original, plugin("LoadsNothing"), *arguments)
    assert (theirs.code, "verified OK" in theirs.out) == (0, True)
    assert ours.code == 1
    data = next(item for item in ours.json["checks"] if item["name"] == "data")
    assert data["failed"] == data["checked"] > 0


def test_3_failed_loads_of_fault_inject_are_seen(hitlab: Run, original: Run, tmp_path: Path) -> None:
    adapter = json.dumps(
        {"type": "fault_inject", "inner": json.loads(fs(tmp_path / "l2")), "rate": 0.3, "seed": 3}
    )
    theirs, ours = l2_of_both(hitlab, original, adapter, "--no-skip-verify")
    assert ours.code == 1
    assert ours.status()["operations"] == "failed"
    load = ours.json["cells"][0]["operations"]["load"]
    assert load["total_success"] < load["total_keys"]
    assert theirs.code == 0


def test_4_a_second_store_writes(hitlab: Run, tmp_path: Path) -> None:
    adapter = fs(tmp_path / "l2")
    for _ in range(2):
        ours = hitlab("bench", "l2", "--l2-adapter", adapter, "--only", "store", "--format", "json", "-q")
        assert ours.code == 0
        assert ours.json["cells"][0]["operations"]["store"]["moved_bytes"] == 32 * 256 * 1024


@pytest.mark.parametrize(("rate", "rounds", "expected"), [("1.0", "1", 32), ("0.5", "3", 48)])
def test_5_expected_hits_are_scaled_once(
    hitlab: Run, original: Run, rate: str, rounds: str, expected: int, tmp_path: Path
) -> None:
    arguments = ("--lookup-max-hit-rate", rate, "--rounds", rounds)
    theirs, ours = l2_of_both(hitlab, original, fs(tmp_path / "l2"), *arguments)
    assert ours.json["cells"][0]["operations"]["lookup"]["expected_hit_keys"] == expected
    assert re.findall(r"Expected hit keys:\s+(\d+)", theirs.out) != [str(expected)]


def test_6_missing_keys_are_missing_after_a_longer_run(hitlab: Run, original: Run, tmp_path: Path) -> None:
    adapter = fs(tmp_path / "l2")
    for run in (original, hitlab):
        run("bench", "l2", "--l2-adapter", adapter, "--only", "store", "--rounds", "5")
    theirs, ours = l2_of_both(
        hitlab, original, adapter, "--only", "lookup", "--rounds", "1", "--warmup-rounds", "1"
    )
    assert ours.json["cells"][0]["operations"]["lookup"]["total_success"] == 0
    assert re.findall(r"Total success:\s+(\d+)", theirs.out) == ["32"]


def test_9_payload_does_not_compress(hitlab: Run, tmp_path: Path) -> None:
    import zlib

    hitlab("bench", "l2", "--l2-adapter", fs(tmp_path / "l2"), "--only", "store", "-q")
    for path in (tmp_path / "l2").glob("*.data"):
        content = path.read_bytes()
        assert len(zlib.compress(content)) > 0.99 * len(content)
