"""`hitlab bench server` on real cache servers, and every known defect of the original beside it."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.tiers.real.conftest import HOST, SMALL, CacheServer, Run, free_port

JSON = ("--interval", "0", "--format", "json", "-q")
MLA = "(1,128,16,1,128):bfloat16:4"
MIXED = "(1,128,16,1,128):float16:4;(2,128,16,2,64):float16:3"


def bench(run: Run, server: CacheServer, *arguments: Any, spec: str = SMALL, timeout: float = 120) -> Any:
    return run("bench", "server", *server.here, "--kvcache-shape-spec", spec, *arguments, timeout=timeout)


@pytest.mark.parametrize("mode", ["lmcache_driven", "engine_driven", "inline"])
@pytest.mark.parametrize(
    ("spec", "options"),
    [
        (SMALL, ()),
        (SMALL, ("--tp-size", "2")),
        (MLA, ("--tp-size", "2")),
        (MIXED, ()),
        (SMALL, ("--concurrency", "2")),
    ],
    ids=["plain", "tp2", "mla-tp2", "two groups", "concurrency"],
)
def test_right_servers_are_called_right_and_left_clean(
    hitlab: Run, request: pytest.FixtureRequest, mode: str, spec: str, options: tuple[str, ...]
) -> None:
    server: CacheServer = request.getfixturevalue(
        {"lmcache_driven": "lmcache_driven", "engine_driven": "both_modes", "inline": "inline"}[mode]
    )
    transfer = "lmcache_driven" if mode == "lmcache_driven" else "engine_driven"
    before = server.objects()
    result = bench(hitlab, server, "--transfer-mode", transfer, "--end", "4", *options, *JSON, spec=spec)
    assert result.code == 0, result.err
    document = result.json
    assert document["results"]["checksum_ok"] == 4
    assert result.status()["data"] == "passed"
    assert result.status()["server checksums"] == ("passed" if mode == "lmcache_driven" else "not requested")
    assert ("TAKE THE CLASSICAL LAYOUT" in result.err) is (spec == MIXED and transfer == "engine_driven")
    for operation in ("cold_store", "warm_retrieve"):
        assert document["operations"][operation]["gb_per_second"] > 0
    assert document["memcpy_gb_per_second"] > 0
    counters = document["server_counters"]["measured"]
    assert counters["lmcache_mp_lookup_hit_tokens"] >= 4 * 512
    assert (server.objects(), server.read_locks()) == (before, 0)


def test_the_servers_own_counters_agree_with_what_was_done(hitlab: Run, lmcache_driven: CacheServer) -> None:
    result = bench(
        hitlab, lmcache_driven, "--transfer-mode", "lmcache_driven", "--tp-size", "2", "--end", "3", *JSON
    )
    counters = result.json["server_counters"]["measured"]
    assert counters["lmcache_mp_num_finished_stores"] == counters["lmcache_mp_num_finished_retrieves"] == 6


@pytest.mark.parametrize("phase", ["store", "retrieve"])
def test_phases_with_an_end_and_with_a_duration(
    hitlab: Run, both_modes: CacheServer, phase: str, tmp_path: Path
) -> None:
    samples = tmp_path / "samples.parquet"
    ended = bench(hitlab, both_modes, "--phase", phase, "--end", "6", "--samples", samples, *JSON)
    assert ended.code == 0, ended.err
    assert ended.json["results"]["checksum_ok"] == 6
    table = pq.read_table(samples).to_pylist()
    operation = "cold_store" if phase == "store" else "warm_retrieve"
    assert (
        len([row for row in table if row["measured"] and row["operation"] == operation and row["rank"] == -1])
        == 6
    )
    timed = bench(hitlab, both_modes, "--phase", phase, "--duration", "1", *JSON)
    assert timed.code == 0, timed.err
    assert 1 <= timed.json["seconds"] < 5


def test_a_server_that_is_not_there_is_one_line_within_seconds(hitlab: Run) -> None:
    result = hitlab("bench", "server", "--rpc-url", f"tcp://{HOST}:{free_port()}", "--mode", "cpu")
    assert result.code == 4
    assert result.seconds < 30
    assert len(result.err.splitlines()) == 1
    assert "start it with lmcache server --port" in result.err


def test_a_port_that_is_something_else_is_one_line(hitlab: Run, lmcache_driven: CacheServer) -> None:
    result = hitlab(
        *("bench", "server", "--rpc-url", f"tcp://{HOST}:{lmcache_driven.http_port}", "--mode", "cpu"),
        *("--transfer-mode", "lmcache_driven", "--timeout", "2", "-q", "--kvcache-shape-spec", SMALL),
    )
    assert result.code == 4
    assert "reports no chunk size" in result.err.splitlines()[-1]


def test_a_mode_that_is_not_offered_names_the_flag(hitlab: Run, lmcache_driven: CacheServer) -> None:
    result = bench(hitlab, lmcache_driven, "--end", "1", "-q")
    assert result.code == 4
    assert "--supported-transfer-mode engine_driven" in result.err
    assert "--transfer-mode lmcache_driven" in result.err
    assert len(result.err.splitlines()) == 1


def test_without_the_api_the_same_is_said_after_a_time_out(hitlab: Run, lmcache_driven: CacheServer) -> None:
    result = hitlab(
        *(
            "bench",
            "server",
            "--rpc-url",
            f"tcp://{HOST}:{lmcache_driven.port}",
            "--mode",
            "cpu",
            "--end",
            "1",
        ),
        *("--timeout", "2", "--kvcache-shape-spec", SMALL),
    )
    assert result.code == 4
    assert "--supported-transfer-mode engine_driven" in result.err.splitlines()[-1]


def test_gpu_mode_without_a_gpu_is_one_line(hitlab: Run) -> None:
    result = hitlab("bench", "server", "-q")
    assert result.code == 4
    assert "--mode cpu" in result.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--num-tokens", "100"], "nothing would be stored"),
        (["--num-tokens", "4096"], "need NB of at least"),
        (["--phase", "store", "--end", "100000"], "lower --end"),
    ],
)
def test_what_does_not_fit_is_one_line(
    hitlab: Run, lmcache_driven: CacheServer, arguments: list[str], says: str
) -> None:
    result = bench(
        hitlab, lmcache_driven, "--transfer-mode", "lmcache_driven", "--end", "1", *arguments, "-q"
    )
    assert result.code in (2, 4)
    assert says in result.err
    assert len(result.err.splitlines()) == 1


def test_self_test_is_all_red(hitlab: Run, lmcache_driven: CacheServer, both_modes: CacheServer) -> None:
    for server, mode in ((lmcache_driven, "lmcache_driven"), (both_modes, "engine_driven")):
        result = bench(hitlab, server, "--transfer-mode", mode, "--self-test", "--format", "json", "-q")
        assert result.code == 0, result.out
        codes = {trial["fault"]: trial["exit_code"] for trial in result.json["trials"]}
        assert codes.pop("no fault") == 0
        assert (set(codes.values()), len(codes)) == ({1}, 6)


def interrupted(server: CacheServer, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        str(Path(sys.executable).parent / "hitlab"),
        "bench",
        "server",
        *server.here,
        "--kvcache-shape-spec",
        SMALL,
    ]
    process = subprocess.Popen(
        [*command, "--transfer-mode", "lmcache_driven", "--interval", "0", "--format", "json", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "[seq=2] CHECKSUM MATCH OK" in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def test_ctrl_c_ends_a_run_without_an_end_well_and_one_with_an_end_not(
    lmcache_driven: CacheServer, hitlab: Run
) -> None:
    before = lmcache_driven.objects()
    endless = interrupted(lmcache_driven)
    assert endless.returncode == 0
    assert json.loads(endless.stdout)["results"]["checksum_ok"] >= 3
    bounded = interrupted(lmcache_driven, "--end", "100000")
    assert bounded.returncode == 130
    assert json.loads(bounded.stdout)["results"]["checksum_ok"] >= 3
    assert lmcache_driven.objects() == before


def test_a_server_that_dies_ends_the_run_red(hitlab: Run, start_server: Callable[..., CacheServer]) -> None:
    server = start_server()
    timer = threading.Timer(10, server.process.kill)
    timer.start()
    result = bench(
        hitlab,
        server,
        *("--transfer-mode", "lmcache_driven", "--end", "100000", "--timeout", "2", "--interval", "0"),
        *("--format", "json", "-q"),
        timeout=90,
    )
    timer.cancel()
    assert result.code == 1, result.err
    assert "no answer within 2 s" in result.json["halted"]
    assert result.seconds < 60


def test_flame_graph_of_the_server(hitlab: Run, both_modes: CacheServer, tmp_path: Path) -> None:
    graph = tmp_path / "server.svg"
    result = bench(
        hitlab,
        both_modes,
        *("--duration", "3", "--flamegraph", "on", "--flamegraph-mode", "wall", "--flamegraph-output", graph),
        *("--profile-server-pid", str(both_modes.process.pid), *JSON),
    )
    assert result.code == 0, result.err
    assert "<svg" in graph.read_text()
    assert result.json["profiled"] is True


# --- defects of the original: what it does, and what we do on the same server ---


def test_1_and_3_a_second_run_on_one_server_and_another_shape(
    hitlab: Run, original: Run, lmcache_driven: CacheServer
) -> None:
    arguments = ("--transfer-mode", "lmcache_driven", "--end", "2", "--interval", "0.1")
    bench(original, lmcache_driven, *arguments)
    theirs = bench(original, lmcache_driven, *arguments)
    assert (
        theirs.code,
        "Checksum OK:                                                   0" in theirs.out,
    ) == (0, True)
    ours = bench(hitlab, lmcache_driven, *arguments, "--format", "json")
    assert (ours.code, ours.json["results"]["checksum_ok"]) == (0, 2)
    other = bench(hitlab, lmcache_driven, *arguments, "--format", "json", spec="(2,128,16,4,64):float16:4")
    assert other.code == 0


def test_4_without_a_pause_nothing_is_missed_and_the_delay_is_a_figure(
    hitlab: Run, lmcache_driven: CacheServer
) -> None:
    result = bench(hitlab, lmcache_driven, "--transfer-mode", "lmcache_driven", "--end", "20", *JSON)
    assert result.code == 0
    assert result.json["operations"]["store_to_visible"]["count"] == 20


def test_5_lookups_do_not_wait_for_a_poll(hitlab: Run, both_modes: CacheServer) -> None:
    """With an L2 below, the original's lookups take 50 ms more whenever its first question comes too early."""
    result = bench(hitlab, both_modes, "--end", "20", *JSON)
    assert result.json["operations"]["warm_lookup"]["p90"] < 50


def test_6_no_lock_is_released_that_nobody_holds(
    hitlab: Run, start_server: Callable[..., CacheServer]
) -> None:
    server = start_server()
    with_warnings = bench(
        hitlab, server, "--transfer-mode", "lmcache_driven", "--tp-size", "2", "--end", "3", *JSON, spec=MLA
    )
    assert with_warnings.code == 0
    assert "non-read-locked" not in server.log.read_text(errors="replace")
    assert server.read_locks() == 0


def test_8_json_alone_on_stdout_and_a_quiet_run_has_a_summary(
    hitlab: Run, original: Run, lmcache_driven: CacheServer
) -> None:
    arguments = ("--transfer-mode", "lmcache_driven", "--end", "1", "--interval", "0.1")
    theirs = bench(original, lmcache_driven, *arguments, "--format", "json")
    with pytest.raises(json.JSONDecodeError):
        json.loads(theirs.out)
    ours = bench(hitlab, lmcache_driven, *arguments, "--format", "json")
    assert ours.json["verdict"]["exit_code"] == 0
    quiet = bench(hitlab, lmcache_driven, *arguments, "-q")
    assert "Checksum OK:" in quiet.out
    assert not quiet.err


def test_9_ranks_have_figures_of_their_own(hitlab: Run, lmcache_driven: CacheServer) -> None:
    result = bench(
        hitlab, lmcache_driven, "--transfer-mode", "lmcache_driven", "--tp-size", "2", "--end", "3", *JSON
    )
    store = result.json["operations"]["cold_store"]
    assert set(store["by_rank"]) == {"0", "1"}
    assert (
        store["bytes"]
        == sum(rank["bytes"] for rank in store["by_rank"].values())
        == 3 * 2 * 512 * 4 * 2 * 2 * 64 * 2
    )


def test_10_missing_tools_are_named_and_nothing_is_downloaded(
    hitlab: Run, lmcache_driven: CacheServer, tmp_path: Path
) -> None:
    pid = str(lmcache_driven.process.pid)
    result = hitlab(
        *("bench", "server", "--mode", "cpu", "--flamegraph", "on", "--flamegraph-mode", "on-cpu,offwake"),
        *("--profile-server-pid", pid, "--end", "1"),
        environment={"HOME": str(tmp_path), "XDG_CACHE_HOME": str(Path.home() / ".cache")},
    )
    assert result.code == 2
    assert "flamegraph.pl" in result.err
    assert "offwaketime" in result.err
    assert not list(tmp_path.iterdir())


def test_originals_and_ours_side_by_side(
    hitlab: Run,
    original: Run,
    lmcache_driven: CacheServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Both benches on one machine, for docs/coming-from-lmcache-bench.md; only that both run is claimed."""
    begin = time.monotonic()
    arguments = ("--transfer-mode", "lmcache_driven", "--end", "20", "--interval", "0.1")
    theirs = bench(original, lmcache_driven, *arguments)
    ours = bench(hitlab, lmcache_driven, *arguments, "--format", "json", "-q")
    assert (theirs.code, ours.code) == (0, 0)
    theirs_p50 = [float(value) for value in re.findall(r"p50:\s+([\d.]+)", theirs.out)]
    names = ("cold_lookup", "cold_store", "warm_lookup", "warm_retrieve")
    lines = [
        f"{name:>16} p50 ms  original {theirs_p50[index]:8.2f}  ours {ours.json['operations'][name]['p50']:8.2f}"
        for index, name in enumerate(names)
    ]
    adapter = json.dumps({"type": "fs", "base_path": str(tmp_path)})
    l2 = ("bench", "l2", "--l2-adapter", adapter, "--rounds", "10")
    theirs, ours = original(*l2), hitlab(*l2, "--format", "json", "-q")
    assert (theirs.code, ours.code) == (0, 0)
    rates = re.findall(r"Throughput avg \(MB/s\):\s+([\d.]+)", theirs.out)
    operations = ours.json["cells"][0]["operations"]
    for name, rate in (("store", rates[0]), ("load", rates[-1])):
        own = operations[name]["avg_throughput_mbps"]
        lines.append(f"{'l2 fs ' + name:>16} MiB/s   original {float(rate):8.2f}  ours {own:8.2f}")
    with capsys.disabled():
        print("\n" + "\n".join(lines) + f"\n({time.monotonic() - begin:.0f} s)")
