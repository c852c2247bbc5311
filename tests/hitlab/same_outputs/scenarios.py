"""Ten jobs of a user on simulated engines, small ones. One request at a time, so that an order decides nothing."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any
from unittest.mock import patch

from contract.run_directory import RunDirectory
from hitlab.main import main
from prompts.tokenizer import Tokenizer, load_tokenizer
from simulator.config import SimulatorConfig
from tests.hitlab.conftest import BLOCK_SIZE, Ended, end_of, scenario_document, start_command
from tests.hitlab.same_outputs import normalise
from tests.misbehaving_server import MisbehavingServer, answers, hangs, misbehaving_server
from tests.mmmu import FULL_HD, HD, picture, write_mmmu

REQUESTS = 12
SIZES: dict[str, Any] = {
    "count": REQUESTS,
    "input_length": {"mode": "truncated_normal", "min": 64, "max": 200},
    "output_length": {"mode": "uniform", "min": 1, "max": 4},
}
# Tokens come slowly enough to be read one by one.
TEXTS = SimulatorConfig(block_size=BLOCK_SIZE, decode_tokens_per_second=200)
IMAGES = SimulatorConfig(
    multimodal=True, block_size=BLOCK_SIZE, blocks_per_rank=4096, decode_tokens_per_second=200
)
BENCHES = SimulatorConfig(
    block_size=BLOCK_SIZE, ranks=1, max_model_len=8192, blocks_per_rank=4096, decode_tokens_per_second=200
)


@dataclass
class Job:
    """A user at work in `folder`, with an engine. What was said is kept in order."""

    folder: Path
    engine: MisbehavingServer
    said: list[dict[str, Any]] = field(default_factory=list)

    def hitlab(self, *arguments: str | Path) -> Ended:
        """A command in this process."""
        out, err = (TextIOWrapper(BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        code = 0
        with redirect_stdout(out), redirect_stderr(err):
            try:
                main([str(argument) for argument in arguments])
            except SystemExit as ending:
                code = int(ending.code or 0)
        texts = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
        return self.keep(Ended(code, *texts), *arguments)

    def keep(self, ended: Ended, *arguments: str | Path) -> Ended:
        words, folder = " ".join(str(argument) for argument in arguments), str(self.folder)
        self.said.append(
            {
                "command": normalise.text(words, folder),
                "code": ended.code,
                "out": _out(ended.out, folder),
                "err": normalise.lines(ended.err, folder),
            }
        )
        return ended

    def scenario(self, **sections: dict[str, Any]) -> Path:
        driver = {"kind": "native", "concurrency": 1} | sections.pop("driver", {})
        service = {"poll_interval_seconds": 0} | sections.pop("service", {})
        sections = {"requests": SIZES, "driver": driver, "service": service} | sections
        path = self.folder / "scenario.json"
        document = scenario_document(self.engine.url, self.folder / "out", **sections)
        path.write_text(json.dumps(document))
        return path

    def prepared(self, path: Path, mode: str = "text") -> RunDirectory:
        ended = self.hitlab("prepare", "--scenario", path, "--mode", mode)
        assert ended.code == 0, ended.err
        return RunDirectory.of_manifest(Path(json.loads(ended.out)["manifest"]))

    def outcome(self) -> dict[str, Any]:
        """All that was said and written, blanked."""
        files = sorted(file for file in self.folder.rglob("*") if file.is_file() and file.suffix != ".lock")
        written: dict[str, Any] = {}
        for file in files:
            name = normalise.text(str(file.relative_to(self.folder)), str(self.folder))
            while name in written:
                name += "+"
            if not name.startswith(("scenario.json", "MMMU")):
                content = normalise.file(file.name, file.read_bytes(), str(self.folder))
                twin = next((other for other, seen in written.items() if seen == content), None)
                written[name] = content if twin is None else f"as {twin}"
        return {"said": self.said, "written": written}


def _out(printed: str, folder: str) -> Any:
    """What a command prints is a document, or lines."""
    try:
        return normalise.document(printed.encode(), folder)
    except json.JSONDecodeError:
        return normalise.lines(printed, folder)


def text_cold(job: Job) -> None:
    path = job.scenario(
        prefix_cache={
            "mode": "cold",
            "target_hit_rate": 0.5,
            "groups": {"count": 2, "assignment": {"mode": "zipf"}},
        }
    )
    job.hitlab("inspect", "--scenario", path)
    job.prepared(path)
    job.hitlab("run", "--scenario", path)


def text_warmup(job: Job) -> None:
    path = job.scenario(prefix_cache={"groups": {"count": 1}}, service={"dp_size": 1})
    manifest = job.prepared(path).manifest
    job.hitlab("validate", "--manifest", manifest)
    job.hitlab("run", "--scenario", path)
    job.hitlab("report", "--manifest", manifest)


def warmup_ranks_and_groups(job: Job) -> None:
    path = job.scenario(
        prefix_cache={"groups": {"count": 3, "assignment": {"mode": "weights", "weights": [0.5, 0.3, 0.2]}}},
        aisbench={"model": {"stream": False}},
    )
    directory = job.prepared(path)
    measured = job.hitlab("run", "--scenario", path, "--measure-only")
    stamp = Path(measured.out.strip()).name
    job.hitlab("analyze", "--manifest", directory.manifest, "--measurement", stamp)
    job.hitlab("analyze", "--manifest", directory.manifest, "--measurement", stamp, "--table")


def _images(job: Job, name: str) -> None:
    folder = job.folder / "MMMU"
    write_mmmu(folder / "test-0.parquet", [[picture(FULL_HD)], [picture(HD, file_format="JPEG")]])
    path = job.scenario(
        requests={
            "count": 6,
            "input_length": {"mode": "fixed", "value": 30},
            "output_length": {"mode": "fixed", "value": 2},
        },
        multimodal={"mmmu_parquet_dir": str(folder), "scenarios": [name]},
        service={"inference_url": f"{job.engine.url}/v1/chat/completions"},
    )
    document = json.loads(path.read_text())
    del document["prefix_cache"]
    path.write_text(json.dumps(document))
    directory = job.prepared(path, "mm")
    job.hitlab("validate", "--manifest", directory.manifest)
    job.hitlab("run", "--scenario", path)
    job.hitlab("report", "--manifest", directory.manifest)


def one_image(job: Job) -> None:
    _images(job, "single_1080p")


def five_images(job: Job) -> None:
    _images(job, "multi_720p_5")


def _bench(job: Job, workload: str, *options: str) -> None:
    os.chdir(job.folder)
    arguments = ("bench", "engine", "--engine-url", job.engine.url, "--workload", workload, *options)
    job.hitlab(*arguments, "--reset-cache", "--json")


def bench_documents(job: Job) -> None:
    _bench(
        job, "long-doc-permutator", "--ldp-num-contexts", "3", "--ldp-context-length", "100",
        "--ldp-system-prompt-length", "50", "--ldp-max-output-length", "2", "--ldp-num-inflight-requests", "1",
    )  # fmt: skip


def bench_tiers(job: Job) -> None:
    _bench(
        job, "kv-tier-pressure", "--ktp-pool-size", "6", "--ktp-docs-per-request", "2", "--ktp-context-length", "100",
        "--ktp-num-requests", "6", "--ktp-num-inflight-requests", "1",
    )  # fmt: skip


def two_scrapes(job: Job) -> None:
    path = job.scenario()
    directory = job.prepared(path)
    job.hitlab("run", "--scenario", path, "--measure-only")
    (measured,) = directory.measurements()
    scrapes = ("--baseline", measured.baseline, "--after", measured.after)
    job.hitlab("analyze", "--manifest", directory.manifest, *scrapes)


def failed_requests(job: Job) -> None:
    path = job.scenario(driver={"retries": 0})
    job.prepared(path)
    job.engine.formal[5] = answers(500, b'{"error": {"message": "out of blocks"}}')
    job.hitlab("run", "--scenario", path)


def interrupted(job: Job) -> None:
    path = job.scenario()
    directory = job.prepared(path)
    job.engine.formal[8] = hangs
    process = start_command("run", "--scenario", path)
    job.engine.wait_until(lambda: job.engine.formal_requests >= 8)
    process.send_signal(signal.SIGINT)
    job.keep(end_of(process, 120), "run", "--scenario", path)
    (measured,) = directory.measurements()
    job.hitlab("analyze", "--manifest", directory.manifest, "--measurement", measured.stamp)


def refused(job: Job) -> None:
    """Preflight ends the run before its load."""
    path = job.scenario(service={"model": "another"}, driver={"retries": 1})
    job.prepared(path)
    job.hitlab("run", "--scenario", path)


SCENARIOS: dict[str, tuple[SimulatorConfig, Callable[[Job], None]]] = {
    "text_cold": (TEXTS, text_cold),
    "text_warmup": (TEXTS.model_copy(update={"ranks": 1}), text_warmup),
    "warmup_ranks_and_groups": (TEXTS, warmup_ranks_and_groups),
    "one_image": (IMAGES, one_image),
    "five_images": (IMAGES, five_images),
    "bench_documents": (BENCHES, bench_documents),
    "bench_tiers": (BENCHES, bench_tiers),
    "two_scrapes": (TEXTS, two_scrapes),
    "failed_requests": (TEXTS, failed_requests),
    "interrupted": (TEXTS, interrupted),
    "refused": (TEXTS, refused),
}


class _NoPictures:
    """In the place of the renderer: charts take long, and their words stand beside them."""

    @staticmethod
    def draw(specs: list[dict[str, Any]]) -> list[str]:
        return ['<svg xmlns="http://www.w3.org/2000/svg"/>' for _ in specs]


@contextmanager
def quick(tokenizer: Tokenizer) -> Iterator[None]:
    """Without what takes long and is not compared."""
    folder = Path.cwd()
    with ExitStack() as stack:
        stack.callback(os.chdir, folder)
        stack.enter_context(patch("analyzer.html_report.drawing.RENDERER", _NoPictures))
        # Requests that take no time leave slots empty on a busy machine, which is then rightly said.
        stack.enter_context(patch("contract.concurrency.ENOUGH", 0.0))
        yield


def outcome(name: str, folder: Path) -> dict[str, Any]:
    """Do the job `name` in the empty `folder`; what it said and wrote."""
    config, work = SCENARIOS[name]
    tokenizer = load_tokenizer("builtin:demo")
    with quick(tokenizer), misbehaving_server(config, tokenizer) as engine:
        job = Job(folder, engine)
        work(job)
        return job.outcome()
