"""Where the artifacts of a run live (design, section 4): names and paths, and nothing of their content."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from contract.errors import ArtifactError

STAMP_FORMAT = "%Y%m%d_%H%M%S"
STAMP_LENGTH = len("20260825_123456")
MANIFEST_SUFFIX = ".manifest.json"


@dataclass(frozen=True)
class RunDirectory:
    """`<output_dir>_<stamp>/` with `result/` and `log/`. `run_id` carries the same stamp."""

    root: Path
    run_id: str

    @property
    def result(self) -> Path:
        return self.root / "result"

    @property
    def full(self) -> Path:
        return self.result / f"{self.run_id}.full.jsonl"

    @property
    def requests(self) -> Path:
        return self.result / f"{self.run_id}.requests.jsonl"

    @property
    def token_ids(self) -> Path:
        return self.result / f"{self.run_id}.token_ids.arrow"

    @property
    def manifest(self) -> Path:
        return self.result / f"{self.run_id}{MANIFEST_SUFFIX}"

    @property
    def analysis(self) -> Path:
        return self.result / f"{self.run_id}.analysis.json"

    @property
    def runs(self) -> Path:
        return self.result / "runs"

    def log(self, command: str) -> Path:
        return self.root / "log" / f"{self.run_id}.{command}.log"

    def new_measurement(self, now: Callable[[], datetime] = datetime.now) -> "MeasurementDirectory":
        """A fresh directory under `runs/`; it exists when this returns."""
        stamp = _create_free(now(), lambda stamp: self.runs / stamp)
        return MeasurementDirectory(self.runs / stamp)

    def measurements(self) -> "list[MeasurementDirectory]":
        """Every directory under `runs/`, oldest first, whatever has become of its measurement."""
        roots = self.runs.iterdir() if self.runs.is_dir() else ()
        return [MeasurementDirectory(root) for root in sorted(roots) if root.is_dir()]

    @classmethod
    def of_manifest(cls, manifest: Path) -> "RunDirectory":
        """The run directory that holds this manifest, wherever it has been copied to."""
        if not manifest.name.endswith(MANIFEST_SUFFIX):
            raise ArtifactError(f"{manifest}: a manifest's name ends in {MANIFEST_SUFFIX}")
        if not manifest.is_file():
            raise ArtifactError(f"{manifest}: no such manifest; prepare prints its path")
        return cls(manifest.resolve().parent.parent, manifest.name.removesuffix(MANIFEST_SUFFIX))


@dataclass(frozen=True)
class MeasurementDirectory:
    """`result/runs/<stamp>/`: one measurement and its analysis; never overwritten by another."""

    root: Path

    @property
    def stamp(self) -> str:
        return self.root.name

    @property
    def measurement(self) -> Path:
        return self.root / "measurement.json"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def baseline(self) -> Path:
        return self.root / "baseline.prom"

    @property
    def after(self) -> Path:
        return self.root / "after.prom"

    @property
    def engine_log(self) -> Path:
        return self.root / "engine.log"

    @property
    def aisbench(self) -> Path:
        return self.root / "aisbench"

    @property
    def aisbench_config(self) -> Path:
        return self.aisbench / "config.py"

    @property
    def aisbench_log(self) -> Path:
        return self.aisbench / "aisbench.log"

    @property
    def requests(self) -> Path:
        return self.root / "requests.parquet"

    @property
    def requests_stream(self) -> Path:
        return self.root / "requests.arrows"

    @property
    def kv_samples(self) -> Path:
        return self.root / "kv_samples.parquet"

    @property
    def kv_samples_stream(self) -> Path:
        return self.root / "kv_samples.arrows"

    @property
    def analysis(self) -> Path:
        return self.root / "analysis.json"

    @property
    def report(self) -> Path:
        return self.root / "report.html"


def create_run_directory(
    output_dir: Path, run_id: str, now: Callable[[], datetime] = datetime.now
) -> RunDirectory:
    """A fresh run directory, stamped with local time; on a collision with the next free second."""
    stamp = _create_free(now(), lambda stamp: output_dir.with_name(f"{output_dir.name}_{stamp}"))
    directory = RunDirectory(output_dir.with_name(f"{output_dir.name}_{stamp}"), f"{run_id}_{stamp}")
    for folder in (directory.result, directory.root / "log"):
        folder.mkdir()
    return directory


def _create_free(start: datetime, path_of: Callable[[str], Path]) -> str:
    moment = start
    while True:
        stamp = moment.strftime(STAMP_FORMAT)
        path = path_of(stamp)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir()
        except FileExistsError as error:
            if path.parent.is_dir():
                moment += timedelta(seconds=1)
                continue
            raise ArtifactError(f"{path.parent}: is not a directory; change run.output_dir") from error
        except OSError as error:
            raise ArtifactError(
                f"{path}: cannot be created ({error.strerror}); change run.output_dir"
            ) from error
        return stamp


def existing_run_directories(output_dir: Path, run_id: str) -> Iterator[RunDirectory]:
    """Run directories of this task that hold a manifest, newest first."""
    prefix = f"{output_dir.name}_"
    if not output_dir.parent.is_dir():
        return
    for root in sorted(output_dir.parent.iterdir(), key=lambda path: path.name, reverse=True):
        stamp = root.name.removeprefix(prefix)
        if root.name.startswith(prefix) and _is_stamp(stamp):
            directory = RunDirectory(root, f"{run_id}_{stamp}")
            if directory.manifest.is_file():
                yield directory


def _is_stamp(text: str) -> bool:
    if len(text) != STAMP_LENGTH:
        return False
    try:
        datetime.strptime(text, STAMP_FORMAT)
    except ValueError:
        return False
    return True
