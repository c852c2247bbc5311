"""docker/bench and docker/bench-flags with a stand-in for Docker: what the shell does, without images or containers."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
STAND_IN = Path(__file__).with_name("docker")
HITLAB = Path(sys.executable).with_name("hitlab")
SCENARIO = REPOSITORY / "examples" / "quickstart" / "quickstart.yaml"
PATIENCE_SECONDS = 120


@dataclass(frozen=True)
class StandIn:
    """`folder` holds what the containers' commands do, and what was asked of Docker."""

    folder: Path

    def does(self, command: str, script: str) -> None:
        (self.folder / "commands" / command).write_text(script)

    def environment(self, **settings: str | Path) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG", "USER")}
        return {
            **inherited,
            "PATH": f"{STAND_IN.parent}:{os.environ['PATH']}",
            "STAND_IN": str(self.folder),
            "ARTIFACTS_DIR": str(self.artifacts),
            "TMPDIR": str(self.temporary),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "HITLAB": str(HITLAB),
            "SCENARIO": str(SCENARIO),
            **{name: str(value) for name, value in settings.items()},
        }

    def start(self, *command: str | Path, **settings: str | Path) -> subprocess.Popen[str]:
        """In a session of its own, as cron and CI start it, and with signals as a shell has them."""
        return subprocess.Popen(
            command or (REPOSITORY / "docker/bench",),
            cwd=REPOSITORY,
            env=self.environment(**settings),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: [
                signal.signal(number, signal.SIG_DFL)
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            ],
        )

    def run(self, *command: str | Path, **settings: str | Path) -> subprocess.CompletedProcess[str]:
        process = self.start(*command, **settings)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    @property
    def artifacts(self) -> Path:
        return self.folder / "artifacts"

    @property
    def temporary(self) -> Path:
        return self.folder / "temporary"

    @property
    def measurement(self) -> Path:
        return self.folder / "runs" / "20261130_120000"

    @property
    def measures(self) -> str:
        """What a container does that makes the measurement, and tells its path."""
        return (
            f"mkdir -p {self.measurement}; touch {self.measurement}/requests.parquet; echo {self.measurement}"
        )

    def answers(self, script: str) -> None:
        """What `docker` itself does with some of its arguments; it exits where it has answered."""
        (self.folder / "docker").write_text(script)

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.is_file() else []

    def compose_environment(self) -> dict[str, str]:
        lines = (self.folder / "environment").read_text().splitlines()
        return {name: value for name, _, value in (line.partition("=") for line in lines)}

    def steps(self) -> list[str]:
        """HitLab's commands that ran in containers."""
        runs = (call.partition(" run ")[2].split() for call in self.calls() if " run " in call)
        known = {path.name for path in (self.folder / "commands").iterdir()}
        return [next((word for word in words if word in known), "?") for words in runs]

    def containers(self) -> list[str]:
        folder = self.folder / "containers"
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


@pytest.fixture
def stand_in(tmp_path: Path) -> StandIn:
    """A bench whose every step succeeds: a native run of an external engine, measured and analysed."""
    stand_in = StandIn(tmp_path)
    for folder in ("commands", "artifacts", "temporary"):
        (tmp_path / folder).mkdir()
    stand_in.does("needs", r"printf 'engine external\0driver native\0'")
    stand_in.does("inspect", "echo '{}'")
    stand_in.does("prepare", f"echo {tmp_path}/x.manifest.json")
    stand_in.does("validate", "echo '{}'")
    stand_in.does("run", stand_in.measures)
    stand_in.does("analyze", f"touch {stand_in.measurement}/report.html; echo a table")
    return stand_in
