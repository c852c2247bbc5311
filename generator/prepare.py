"""`prepare --mode text`: the request data, written as it is made, and the manifest that seals it."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson
import pyarrow as pa

from contract.analysis import prepared_analysis
from contract.command_log import PhaseTimes, command_log, log_lines
from contract.data_identity import data_sha256
from contract.documents import canonical_sha256, file_sha256, whole_file, write_document
from contract.effective_config import effective_config
from contract.manifest import seal
from contract.progress import Progress, silent
from contract.redaction import Redactor
from contract.rows import FULL_KEYS, request_keys
from contract.run_directory import RunDirectory
from contract.scenario import Scenario, load_scenario
from contract.token_ids import ROWS_PER_BATCH, TOKEN_IDS_SCHEMA, Int32Array, token_ids_batch
from generator.corpus_selection import corpus_selection
from generator.plan.plan import Plan, build_plan
from generator.plan_log import artifact_lines, plan_lines, settings_lines, warmup_lines
from generator.plan_warnings import plan_warnings
from generator.reuse import directory_for_prepare
from generator.room import LONG_PLAN, check_disk, check_memory, least_tokens
from generator.sources import load_sources, source_lines
from generator.summary import (
    analysis_artifact,
    length_summary,
    prefix_cache_summary,
    theory,
    trajectory_summary,
)
from generator.version import plugin_version
from prompts.corpus import Corpus, Selection
from prompts.prompt_set import BuiltPrompt, GroupInput, PromptSet, RequestColumns
from prompts.tokenizer import Tokenizer


@dataclass(frozen=True)
class WrittenFile:
    """Size, rows and hash of a file, taken while it was written."""

    path: Path
    rows: int
    bytes: int
    sha256: str

    def as_artifact(self) -> dict[str, Any]:
        return {
            "name": self.path.name,
            "path": str(self.path),
            "rows": self.rows,
            "bytes": self.bytes,
            "sha256": self.sha256,
        }


def prepare(
    scenario_path: Path,
    *,
    overwrite: bool = False,
    discard_measurements: bool = False,
    output_dir: Path | None = None,
    progress: Progress = silent,
    note: Callable[[str], None] | None = None,
    warn: Callable[[str], None] = lambda _text: None,
) -> dict[str, str]:
    """Build and write everything that a run needs. Returns the paths to show, in the guide's order.

    `discard_measurements` is for `overwrite` alone. `note` gets what the user should know about where the data lies,
    `warn` what `plan_warnings` finds, before the prompts are built.

    Raises ScenarioError when the data cannot be built, ArtifactError when there is no room for it; then no manifest is
    written.
    """
    scenario = load_scenario(scenario_path)
    if output_dir is not None:
        run = scenario.run.model_copy(update={"output_dir": str(output_dir.resolve())})
        scenario = scenario.model_copy(update={"run": run})
    check_memory(scenario)
    check_disk(scenario, least_tokens(scenario))
    phase = PhaseTimes()
    if scenario.requests.count >= LONG_PLAN:
        progress("Plan requests", 0, scenario.requests.count)
    with phase("plan"):
        plan = build_plan(scenario)
    check_disk(scenario, plan.total_input_tokens)
    tokenizer, corpus = load_sources(scenario, phase)
    with phase("build prefixes"):
        prompts = prompt_set(scenario, plan, tokenizer, corpus)
    scenario_sha256 = file_sha256(scenario_path)
    choice = directory_for_prepare(
        scenario,
        scenario_sha256=scenario_sha256,
        data_sha256=_identity(scenario, corpus, tokenizer),
        overwrite=overwrite or scenario.run.overwrite,
        discard_measurements=discard_measurements,
    )
    directory = choice.directory
    with command_log(directory.log("prepare"), Redactor(scenario.service.api_key)) as log:
        log_lines(log, settings_lines(scenario, scenario_path, scenario_sha256))
        phase.tell(log)
        if choice.note is not None:
            log.info(choice.note)
            if note is not None:
                note(choice.note)
        log_lines(log, plan_lines(scenario, plan))
        for warning in plan_warnings(scenario, plan):
            log.warning(warning)
            warn(warning)
        directory.manifest.unlink(missing_ok=True)  # from here on the directory holds no valid data
        with phase("build prompts and write requests"):
            files, unique = write_requests(directory, scenario, plan, prompts, progress)
        with phase("build manifest"):
            document = manifest_document(scenario, plan, tokenizer, corpus, prompts, directory, unique)
        document |= {
            "scenario_path": str(scenario_path.resolve()),
            "scenario_sha256": scenario_sha256,
        }
        write_document(directory.analysis, prepared_analysis(document, scenario.validation))
        document["artifacts"] = {
            **{name: file.as_artifact() for name, file in files.items()},
            "analysis": analysis_artifact(directory.analysis),
        }
        write_document(directory.manifest, seal(document))
        log_lines(log, source_lines(tokenizer, corpus))
        log.info("prompts: repairs %s, %d of %d first own blocks unique", prompts.repairs, unique, plan.count)
        log_lines(log, warmup_lines(document["warmup"]["plan"]))
        log_lines(log, artifact_lines(document["artifacts"]))
        log.info("prepared: %s", directory.manifest)
    return {
        "full": str(directory.full),
        "requests": str(directory.requests),
        "manifest": str(directory.manifest),
        "analysis": str(directory.analysis),
        "log": str(directory.log("prepare")),
    }


def _identity(scenario: Scenario, corpus: Corpus, tokenizer: Tokenizer) -> str:
    return data_sha256(
        scenario, corpus_sha256=corpus.file_sha256, tokenizer_fingerprint=tokenizer.fingerprint
    )


def prompt_set(scenario: Scenario, plan: Plan, tokenizer: Tokenizer, corpus: Corpus) -> PromptSet:
    """The prompts of a plan. Building them may still fail; nothing has been written yet."""
    groups = [
        GroupInput(
            name=group.name,
            index=group.stream,
            selection=_selection(scenario, group.name),
            max_prefix_tokens=group.max_prefix_blocks * plan.block_size,
            size=group.size,
        )
        for group in plan.groups
    ]
    columns = RequestColumns(
        request_number=plan.request,
        group=plan.group.astype(np.int32),
        occurrence=plan.occurrence.astype(np.int32),
        input_tokens=plan.input_tokens,
        prefix_tokens=plan.prefix * plan.block_size,
    )
    return PromptSet(
        tokenizer,
        corpus,
        groups,
        columns,
        block_size=plan.block_size,
        seed_tokens=scenario.seed_tokens,
        run_seed=scenario.run.random_seed,
        ranks_for_warmup=plan.dp_size if plan.mode == "warmup" else 0,
    )


def _selection(scenario: Scenario, group: str) -> Selection:
    override = scenario.prefix_cache.groups.overrides.get(group)
    selection, place = scenario.corpus.selection, "corpus.selection"
    if override is not None and override.corpus_selection is not None:
        selection = override.corpus_selection
        place = f"prefix_cache.groups.overrides.{group}.corpus_selection"
    return corpus_selection(selection, place)


class _Hashing:
    """A binary file that counts and hashes what passes through."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.bytes = 0
        self.digest = hashlib.sha256()

    def write(self, content: bytes) -> None:
        self._file.write(content)
        self.bytes += len(content)
        self.digest.update(content)


def write_requests(
    directory: RunDirectory, scenario: Scenario, plan: Plan, prompts: PromptSet, progress: Progress
) -> tuple[dict[str, WrittenFile], int]:
    """full.jsonl, requests.jsonl and token_ids.arrow, row by row; all three appear, or none.

    Also returns how many requests have a first block of their own that no other has.
    """
    paths = {"full": directory.full, "requests": directory.requests, "token_ids": directory.token_ids}
    prefix_sha256 = {group.name: group.sha256 for group in prompts.groups}
    keys = request_keys(scenario.output.output_key)
    with ExitStack() as stack:
        files = {name: _Hashing(stack.enter_context(whole_file(path))) for name, path in paths.items()}
        waiting: list[Int32Array] = []
        unique = 0
        with pa.ipc.new_file(_ArrowSink(files["token_ids"]), TOKEN_IDS_SCHEMA) as arrow:
            for row, prompt in rows(plan, prompts, prefix_sha256):
                files["full"].write(orjson.dumps(row) + b"\n")
                answer = {"question": row["question"], "answer": row["answer"]}
                if scenario.output.output_key:
                    answer[keys[2]] = row["max_tokens"]
                files["requests"].write(orjson.dumps(answer) + b"\n")
                unique += prompt.divergence_unique
                waiting.append(prompt.token_ids)
                if len(waiting) == ROWS_PER_BATCH:
                    arrow.write_batch(token_ids_batch(waiting))
                    waiting.clear()
                progress("Generate prompts", row["sequence_index"] + 1, plan.count)
            if waiting:
                arrow.write_batch(token_ids_batch(waiting))
        written = {
            name: WrittenFile(paths[name], plan.count, file.bytes, file.digest.hexdigest())
            for name, file in files.items()
        }
    return written, unique


class _ArrowSink:
    """What pyarrow needs of a file that it writes to once, front to back."""

    def __init__(self, file: _Hashing) -> None:
        self._file = file
        self.closed = False

    def write(self, content: bytes) -> int:
        self._file.write(bytes(content))
        return len(content)

    def tell(self) -> int:
        return self._file.bytes

    def flush(self) -> None:
        return None  # the file below is flushed when it is renamed

    def close(self) -> None:
        self.closed = True

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False


def rows(
    plan: Plan, prompts: PromptSet, prefix_sha256: dict[str, str]
) -> Iterator[tuple[dict[str, Any], BuiltPrompt]]:
    """Rows of full.jsonl in the order of sending, with the prompt that each was made from."""
    marks, block = plan.watermarks, plan.block_size
    for prompt in prompts.requests():
        at = prompt.position
        group = plan.groups[int(plan.group[at])]
        tokens, hit = int(plan.input_tokens[at]), int(marks.hit[at]) * block
        values = (
            prompt.request_id,
            at,
            group.name,
            int(plan.occurrence[at]),
            None if plan.rank is None else int(plan.rank[at]),
            None if plan.lane_sequence is None else int(plan.lane_sequence[at]),
            tokens,
            int(prompt.token_ids.size),
            int(plan.output_tokens[at]),
            prompt.prefix_tokens,
            prompt.seed_tokens,
            prompt.suffix_tokens,
            prompt.text,
            "none",
            list(prompt.suffix_record_indices),
            list(prompt.suffix_record_sha256),
            prefix_sha256[group.name],
            prompt.seed_sha256,
            prompt.random_seed,
            int(marks.before[at]) * block,
            hit,
            int(marks.after[at]) * block,
            hit / tokens,
            prompt.divergence_block_sha256,
            prompt.divergence_unique,
            "pass" if prompt.divergence_unique else "collision",
        )
        yield dict(zip(FULL_KEYS, values, strict=True)), prompt


def manifest_document(
    scenario: Scenario,
    plan: Plan,
    tokenizer: Tokenizer,
    corpus: Corpus,
    prompts: PromptSet,
    directory: RunDirectory,
    unique: int,
) -> dict[str, Any]:
    """The manifest but for scenario file, artifacts and seal. Call it when all requests have been built."""
    config = effective_config(scenario)
    return {
        "schema_version": "1.0",
        "plugin_version": plugin_version(),
        "benchmark_mode": "text",
        "status": "prepared",
        "run_id": directory.run_id,
        "effective_config": config,
        "effective_config_sha256": canonical_sha256(config),
        "data_sha256": _identity(scenario, corpus, tokenizer),
        "corpus_sha256": corpus.file_sha256,
        "tokenizer": {**tokenizer.identity(), "block_size": plan.block_size},
        "requests": {
            "count": plan.count,
            "total_input_tokens": plan.total_input_tokens,
            "longest_request_tokens": int((plan.input_tokens + plan.output_tokens).max()),
            "input_length_summary": length_summary(plan.input_tokens),
            "output_length_summary": length_summary(plan.output_tokens),
        },
        "prefix_cache": prefix_cache_summary(plan, scenario.minimum_non_shared_length, scenario.validation),
        "trajectory": trajectory_summary(plan),
        "theory": theory(plan),
        "groups": {
            group.name: {
                "canonical_prefix_sha256": prefix.sha256,
                "canonical_prefix_tokens": int(prefix.ids.size),
                "max_shared_prefix_tokens": group.max_prefix_blocks * plan.block_size,
                "gsm_indices": list(prefix.record_indices),
                "gsm_question_sha256": list(prefix.record_sha256),
                "reachable_min": 0.0,
                "reachable_max": group.reachable_max,
                "theoretical_hit_rate": group.theoretical_hit_rate,
            }
            for group, prefix in zip(plan.groups, prompts.groups, strict=True)
        },
        "dp": {
            "size": plan.dp_size,
            "cold_route_strategy": "group_round_robin" if plan.mode == "cold" else None,
        },
        "warmup": {"enabled": plan.mode == "warmup", "plan": list(_warmup_plan(plan, prompts))},
        "divergence": {
            "strategy": "globally_unique_seed_block",
            "unique_request_blocks": unique,
            "request_count": plan.count,
            "collision_status": "pass" if unique == plan.count else "collision",
            "repairs": dict(prompts.repairs),
        },
    }


def _warmup_plan(plan: Plan, prompts: PromptSet) -> Iterator[dict[str, Any]]:
    if plan.mode != "warmup":
        return
    for warmup in prompts.warmups():
        yield {
            "request_id": warmup.request_id,
            "group_id": warmup.group,
            "dp_rank": warmup.rank,
            "prompt": warmup.text,
            "input_tokens": int(warmup.token_ids.size),
            "shared_prefix_tokens": warmup.prefix_tokens,
            "max_tokens": 1,
            "included_in_formal_statistics": False,
        }
