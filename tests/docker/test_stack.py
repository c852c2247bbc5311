"""Several people on one host: whose stack it is, which ports it takes, and what `up` and `down` touch."""

import getpass
import os
import re
import shutil
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docker.conftest import REPOSITORY, StandIn

UP = REPOSITORY / "docker/up"
DOWN = REPOSITORY / "docker/down"
MEASURED = 'case "$1" in logs) echo Run 1 done. ;; esac'


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Scripts and compose.yaml in a folder of their own, for a .env beside them."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    shutil.copytree(REPOSITORY / "docker", folder / "docker")
    shutil.copy(REPOSITORY / "compose.yaml", folder)
    return folder


@contextmanager
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


def errors(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("ERROR: ")]


def test_names_come_from_the_user_unless_they_are_set(stand_in: StandIn, checkout: Path) -> None:
    stand_in.answers(MEASURED)
    assert stand_in.run(checkout / "docker/up", "demo").returncode == 0
    assert re.fullmatch(r"hitlab-[a-z0-9_-]+", stand_in.compose_environment()["COMPOSE_PROJECT_NAME"])
    assert stand_in.compose_environment()["HITLAB_OWNER"] == getpass.getuser()
    (checkout / ".env").write_text("COMPOSE_PROJECT_NAME='team-a' # ours\nCOMPOSE_FILE=other.yml\n")
    assert (
        stand_in.run(checkout / "docker/up", "demo", COMPOSE_PROFILES="x", COMPOSE_FILE="y").returncode == 0
    )
    environment = stand_in.compose_environment()
    assert environment["COMPOSE_PROJECT_NAME"] == "team-a"
    assert environment["COMPOSE_PROFILES"] == ""
    assert "COMPOSE_FILE" not in environment
    assert any(f"--file {checkout}/compose.yaml " in call for call in stand_in.calls())
    refused = stand_in.run(checkout / "docker/up", "demo", COMPOSE_PROJECT_NAME="A B")
    assert refused.returncode == 2
    assert errors(refused.stderr)[0].startswith("ERROR: COMPOSE_PROJECT_NAME=A B: must be")


def test_nothing_in_docker_has_a_name_that_everybody_shares() -> None:
    text = (REPOSITORY / "compose.yaml").read_text()
    assert re.findall(r"^name: .*$", text, re.MULTILINE) == ["name: hitlab-${USER:-local}"]
    assert not re.search(r"^\s+(container_)?name:|\{name:", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("owner", "folder", "code"),
    [("me", "HERE", 0), ("bob", "/home/bob/hitlab", 4), ("me", "/other/checkout", 4)],
)
def test_up_does_not_touch_the_stack_of_another(
    stand_in: StandIn, owner: str, folder: str, code: int
) -> None:
    owner = getpass.getuser() if owner == "me" else owner
    folder = str(REPOSITORY) if folder == "HERE" else folder
    stand_in.answers(f'case "$*" in *working_dir*) echo "{owner} {folder}"; exit ;; esac\n{MEASURED}')
    done = stand_in.run(UP, "watch")
    assert done.returncode == code
    ups = [call for call in stand_in.calls() if " up " in call]
    if code:
        assert f"is {owner}'s, from {folder}: end it there with make down" in errors(done.stderr)[0]
        assert ups == []
    else:
        assert ups


def test_a_port_that_is_set_is_taken_or_refused(stand_in: StandIn, checkout: Path) -> None:
    with listening() as port:
        (checkout / ".env").write_text(f"PROMETHEUS_PORT={port}\n")
        done = stand_in.run(checkout / "docker/up", "watch")
    assert done.returncode == 4
    (error,) = errors(done.stderr)
    assert error == (
        f"ERROR: PROMETHEUS_PORT: port {port} of 127.0.0.1 is taken: stop what listens there, or choose another: "
        "PROMETHEUS_PORT=<port>"
    )


def test_ports_are_those_of_the_settings_and_are_printed(stand_in: StandIn, checkout: Path) -> None:
    (checkout / ".env").write_text("GRAFANA_PORT=39001\n")
    done = stand_in.run(checkout / "docker/up", "watch", ANALYZER_PORT="39002", PROMETHEUS_PORT="39003")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"http://127.0.0.1:(\d+)", done.stdout) == ["39001", "39002", "39003"]
    environment = stand_in.compose_environment()
    assert [environment[f"{name}_PORT"] for name in ("GRAFANA", "ANALYZER", "PROMETHEUS")] == [
        "39001", "39002", "39003",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "wrong", [{"GRAFANA_PORT": "39009", "ANALYZER_PORT": "39009"}, {"GRAFANA_PORT": "x"}]
)
def test_ports_that_cannot_be_are_told(stand_in: StandIn, wrong: dict[str, str]) -> None:
    done = stand_in.run(UP, "watch", **wrong)
    assert done.returncode == 2
    assert "GRAFANA_PORT" in errors(done.stderr)[0]
    assert not any(" up " in call for call in stand_in.calls())


def test_a_second_stack_gets_free_ports_and_the_first_keeps_its_own(stand_in: StandIn) -> None:
    """The usual ports are taken by somebody, which the script is told by connecting to them."""
    scripts = (REPOSITORY / "docker/ports.sh").read_text()
    with listening() as port:
        shifted = scripts.replace("grafana 3000", f"grafana {port}")
        folder = stand_in.folder / "docker-with-other-usual-ports"
        shutil.copytree(REPOSITORY / "docker", folder / "docker")
        (folder / "docker/ports.sh").write_text(shifted)
        done = stand_in.run(folder / "docker/up", "watch", ANALYZER_PORT="39002", PROMETHEUS_PORT="39003")
        assert done.returncode == 0, done.stderr
        chosen = int(stand_in.compose_environment()["GRAFANA_PORT"])
        assert chosen != port
        assert f"Grafana    http://127.0.0.1:{chosen} " in done.stdout
        stand_in.answers(f'case "$*" in *service=grafana*) echo "127.0.0.1:{port}->3000/tcp"; exit ;; esac')
        assert stand_in.run(folder / "docker/up", "watch", ANALYZER_PORT="39002").returncode == 0
        assert stand_in.compose_environment()["GRAFANA_PORT"] == str(port)


@pytest.mark.parametrize("minutes", ["abc", "-1", "1e", "", "5 "])
def test_minutes_that_are_none_are_told_before_anything_starts(stand_in: StandIn, minutes: str) -> None:
    done = stand_in.run(UP, "demo", DEMO_MINUTES=minutes or "x")
    assert done.returncode == 2
    assert errors(done.stderr)[0].startswith("ERROR: DEMO_MINUTES=")
    assert stand_in.calls() == []


def test_what_ended_is_told_with_its_reason_and_taken_down(stand_in: StandIn) -> None:
    stand_in.answers(
        """case "$*" in
        *" up "*) echo 'service "generator" did not complete successfully: exit 3' >&2; exit 1 ;;
        *service=generator*Status*) echo "Exited (3) 1 second ago"; exit ;;
        *" logs "*generator*) echo "..."; echo "ERROR: /artifacts: cannot be written (Permission denied)"; exit ;;
        esac"""
    )
    done = stand_in.run(UP, "demo")
    assert done.returncode == 3
    assert errors(done.stderr)[0] == "ERROR: /artifacts: cannot be written (Permission denied)"
    assert "generator did not get through" in errors(done.stderr)[1]
    assert any(" down " in call for call in stand_in.calls())
    assert done.stdout == ""


@pytest.mark.parametrize("before", ["", "a1b2c3"])
def test_a_runner_that_ends_without_a_measurement_is_told(stand_in: StandIn, before: str) -> None:
    """What was there before stays."""
    stand_in.answers(
        f"""case "$*" in
        *"ps --all"*service=runner*) echo runner-1; exit ;;
        "inspect "*) echo 4; exit ;;
        *" logs "*runner*) echo "ERROR: engine: cannot be reached"; exit ;;
        *"ps --all"*--quiet*) echo "{before}"; exit ;;
        esac"""
    )
    done = stand_in.run(UP, "demo")
    assert done.returncode == 4
    assert errors(done.stderr)[0] == "ERROR: engine: cannot be reached"
    assert any(" down " in call for call in stand_in.calls()) is (before == "")


def test_a_folder_that_cannot_be_written_is_told_first(stand_in: StandIn, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for command in ((UP, "watch"), (REPOSITORY / "docker/bench",)):
        done = stand_in.run(*command, ARTIFACTS_DIR=file / "below")
        assert done.returncode == 2
        assert (
            f"ERROR: ARTIFACTS_DIR={file}/below: cannot be made (Not a directory)" in errors(done.stderr)[0]
        )


def test_down_ends_what_is_ours_and_names_what_it_leaves(stand_in: StandIn) -> None:
    stand_in.answers(
        f"""case "$*" in
        "volume ls "*) exit 0 ;;
        *user={os.getuid()}*) echo managed-1; exit ;;
        *label=com.hitlab.managed*) echo "hitlab-vllm-9 (run bobs)"; exit ;;
        *"--filter label=com.hitlab --format"*) echo "hitlab-bob-engine-1 (bob)"; exit ;;
        "rm "*) exit 0 ;;
        esac"""
    )
    done = stand_in.run(DOWN, COMPOSE_PROJECT_NAME="hitlab-me")
    assert done.returncode == 0, done.stderr
    removed = [call.strip() for call in stand_in.calls() if call.startswith(("rm ", "rmi "))]
    assert removed == ["rm --force managed-1"]
    assert done.stderr.splitlines() == [
        "left, because it is not of this stack: hitlab-bob-engine-1 (bob)",
        "left, because it is not of this stack: hitlab-vllm-9 (run bobs)",
    ]


@pytest.mark.parametrize(
    ("arguments", "caches", "removed"), [((), "1", 0), (("--images",), "", 0), (("--images",), "1", 1)]
)
def test_caches_of_engines_go_only_when_asked(
    stand_in: StandIn, arguments: tuple[str, ...], caches: str, removed: int
) -> None:
    stand_in.answers('case "$*" in "volume ls "*) echo hitlab-7-hub; exit ;; "volume rm "*) exit 0 ;; esac')
    done = stand_in.run(DOWN, *arguments, CACHES=caches)
    assert done.returncode == 0, done.stderr
    assert sum(call == "volume rm hitlab-7-hub " for call in stand_in.calls()) == removed
    assert ("make clean CACHES=1 removes them): hitlab-7-hub" in done.stderr) is (removed == 0)


@pytest.mark.parametrize(
    ("settings", "socket_path"),
    [
        ({}, "/run/user/7/docker.sock"),
        ({"DOCKER_HOST": "unix:///other.sock"}, "/other.sock"),
        ({"DOCKER_HOST": "tcp://far:2376"}, "/var/run/docker.sock"),
        ({"DOCKER_SOCKET": "/mine.sock", "DOCKER_HOST": "unix:///other.sock"}, "/mine.sock"),
    ],
)
def test_a_managed_engine_gets_the_socket_that_docker_uses(
    stand_in: StandIn, settings: dict[str, str], socket_path: str
) -> None:
    stand_in.answers('case "$*" in "context inspect"*) echo unix:///run/user/7/docker.sock; exit ;; esac')
    done = stand_in.run(ENGINE="vllm", DRIVER="native", **settings)
    assert done.returncode == 0, done.stderr
    environment = stand_in.compose_environment()
    assert (environment["DOCKER_SOCKET"], environment["DOCKER_GROUP"]) == (socket_path, "999")


def test_a_socket_that_is_not_there_is_one_line(stand_in: StandIn) -> None:
    stand_in.answers('case "$*" in "run "*) echo "bind source path does not exist" >&2; exit 125 ;; esac')
    done = stand_in.run(ENGINE="vllm", DOCKER_SOCKET="/absent.sock")
    assert done.returncode == 2
    (error,) = errors(done.stderr)
    assert (
        "ENGINE=vllm needs Docker's socket, which /absent.sock is not (bind source path does not exist)"
        in error
    )


@pytest.mark.parametrize(
    ("zone", "code"), [("Europe/Berlin", 0), ("CET-1CEST", 0), ("Mars/Base", 2), ("../etc", 2)]
)
def test_a_time_zone_that_nobody_knows_is_told(stand_in: StandIn, zone: str, code: int) -> None:
    if not Path("/usr/share/zoneinfo").is_dir():
        pytest.skip("this host knows no time zones")
    done = stand_in.run(TZ=zone)
    assert done.returncode == code, done.stderr
    if code:
        assert f"ERROR: TZ={zone}: there is no such time zone" in errors(done.stderr)[0]
    else:
        assert stand_in.compose_environment()["TZ"] == zone


def test_a_rootless_engine_writes_as_the_caller(stand_in: StandIn) -> None:
    def user() -> str:
        (call, *_) = (call for call in stand_in.calls() if " run " in call and " needs " in call)
        return call.partition(" --user ")[2].split()[0]

    assert stand_in.run().returncode == 0
    assert user() == f"{os.getuid()}:{os.getgid()}"
    (stand_in.folder / "calls").unlink()
    stand_in.answers('case "$*" in "info "*) echo "[name=seccomp name=rootless]"; exit ;; esac')
    assert stand_in.run().returncode == 0
    assert user() == "0:0"


def test_the_umask_goes_into_the_container(stand_in: StandIn) -> None:
    assert stand_in.run("bash", "-c", f"umask 077; exec {REPOSITORY}/docker/bench").returncode == 0
    assert all("--env HITLAB_UMASK=0077 " in call for call in stand_in.calls() if " run " in call)


def test_what_a_killed_bench_left_goes_at_the_next_start(stand_in: StandIn) -> None:
    """Its secrets and its containers; those of a bench that lives stay."""
    left = stand_in.temporary / "hitlab-bench.left"
    left.mkdir(0o700)
    (left / "secrets").write_text("OPENAI_API_KEY=sk")
    stand_in.answers(
        'case "$*" in *name=^/?hitlab-bench.left-*) echo old-1; exit ;; "rm --force old-1") exit 0 ;; esac'
    )
    stand_in.does(
        "needs", f"{(stand_in.folder / 'commands/needs').read_text()}; ls {stand_in.temporary} >{left}.seen"
    )
    assert stand_in.run().returncode == 0
    assert not left.exists()
    assert "rm --force old-1 " in stand_in.calls()
    seen = Path(f"{left}.seen").read_text().split()
    assert len([name for name in seen if not name.startswith("hitlab-bench.left")]) == 1

    living = stand_in.temporary / "hitlab-bench.living"
    living.mkdir(0o700)
    done = stand_in.run("flock", str(living), REPOSITORY / "docker/bench")
    assert done.returncode == 0, done.stderr
    assert stat.S_ISDIR(living.stat().st_mode)
