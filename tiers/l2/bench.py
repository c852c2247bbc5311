"""The whole of `bench l2`: adapters one after the other, each through the matrix, one verdict."""

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from contract.errors import ScenarioError, ServiceError
from contract.progress import Progress, silent
from tiers.host import description
from tiers.interfaces import Bytes, L2Backend
from tiers.l2.cell import Cell, Findings, Halted
from tiers.l2.parameters import L2Parameters
from tiers.l2.records import CellRecord, operation_figures
from tiers.l2.specs import Spec, require_alignment, require_listening
from tiers.verdict import Check, Status, Verdict, check, not_requested, verdict

PROBE_SECONDS = 10.0


class OpenL2(Protocol):
    """Makes the adapter of a spec over a buffer: `lmcache_api`'s `open_l2`, or a stand-in."""

    def __call__(self, spec: dict[str, Any], arena: Bytes, align_bytes: int) -> L2Backend: ...


@dataclass
class L2Result:
    """Everything a run of `bench l2` found."""

    parameters: L2Parameters
    specs: tuple[Spec, ...]
    cells: list[CellRecord] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    removed: list[tuple[str, int, int]] = field(default_factory=list)
    """With `clean`: adapter, own objects that were there, and that stay."""
    halted: str | None = None
    started: float = 0.0
    seconds: float = 0.0

    @property
    def checks(self) -> tuple[Check, ...]:
        return checks(self.parameters, self.findings, self.removed)

    @property
    def verdict(self) -> Verdict:
        return verdict(self.checks, interrupted=self.findings.interrupted)


def run(
    specs: Sequence[Spec],
    parameters: L2Parameters,
    open_l2: OpenL2,
    *,
    stop: threading.Event | None = None,
    progress: Progress = silent,
    say: Callable[[str], None] = lambda _line: None,
) -> L2Result:
    """Measure every adapter. `say` gets lines for people while it goes on.

    Raises ScenarioError for a spec that is not usable, ServiceError for an adapter that cannot be made or does not
    answer; failures after that are in the result.
    """
    if parameters.page_cache == "drop":
        _require_files(specs)
    for spec in specs:
        require_alignment(spec, align_bytes=parameters.l1_align_bytes, data_size_kb=parameters.data_size_kb)
    for spec in specs:
        require_listening(spec)
    result = L2Result(parameters, tuple(specs), started=time.time())
    begin = time.monotonic()
    until = begin + parameters.deadline
    token = secrets.token_hex(8)
    held: list[Cell] = []
    try:
        for spec in specs:
            for size in parameters.data_size_kb:
                for depth in parameters.in_flight:
                    say("\n[Init] Creating adapter...")
                    cell = Cell(
                        lambda arena, spec=spec: open_l2(spec.document, arena, parameters.l1_align_bytes),  # type: ignore[misc]
                        spec,
                        parameters,
                        size_kb=size,
                        depth=depth,
                        token=token,
                        until=until,
                        stop=stop or threading.Event(),
                        findings=result.findings,
                        progress=progress,
                        say=say,
                    )
                    # Buffers of tasks that never ended must stay where they are until the process does.
                    held.append(cell)
                    say(f"[Init] Adapter created successfully ({cell.record.adapter}).")
                    _measure(cell, result, spec)
    except Halted as halt:
        result.halted = str(halt)
    result.seconds = time.monotonic() - begin
    return result


def _measure(cell: Cell, result: L2Result, spec: Spec) -> None:
    p = result.parameters
    try:
        if not cell.probe(min(PROBE_SECONDS, p.task_timeout)):
            raise ServiceError(
                f"--l2-adapter {spec.type}: no answer to a lookup within {min(PROBE_SECONDS, p.task_timeout):g} s; is "
                "its storage reachable?"
            )
        if p.clean:
            before, left = cell.remove()
            result.removed.append((f"{cell.record.adapter} {cell.record.data_size_kb} KiB", before, left))
            return
        result.cells.append(cell.record)
        cell.run()
    finally:
        cell.close()


def _require_files(specs: Sequence[Spec]) -> None:
    for spec in specs:
        if spec.folder is None:
            raise ScenarioError(
                f"--page-cache drop: adapter {spec.type} has no base_path: there are no files of ours to drop"
            )


def checks(
    parameters: L2Parameters, findings: Findings, removed: Sequence[tuple[str, int, int]] = ()
) -> tuple[Check, ...]:
    """What a run claims and how each claim stands."""
    p, f = parameters, findings
    if p.clean:
        failures = [
            f"{where}: {left} of {before} own objects stay" for where, before, left in removed if left
        ]
        return (check("removal", checked=len(removed), failures=failures + f.timeouts),)
    moves = any(operation != "lookup" for operation in p.operations)
    made = []
    if moves:
        made.append(
            check(
                "operations", checked=f.operations, failures=f.operation_failures, failed=f.failed_operations
            )
        )
        made.append(
            not_requested("data", "--skip-verify")
            if p.skip_verify
            else check("data", checked=f.verified, failures=f.data_failures)
        )
    if "lookup" in p.operations:
        looked = check("lookups", checked=f.lookups, failures=f.lookup_failures)
        made.append(
            replace(looked, detail=f"{looked.detail}; {f.never_stored}") if f.never_stored else looked
        )
    if "store" in p.operations:
        made.append(check("cold start", checked=f.cold_keys, failures=f.warm_keys))
    made.append(check("time-outs", checked=f.rounds, failures=f.timeouts))
    if p.page_cache == "drop":
        made.append(_page_cache(f))
    return tuple(made)


def _page_cache(findings: Findings) -> Check:
    """Loads that were not cold are no fault of the adapter; they are just not what was asked for."""
    if findings.not_dropped:
        first = findings.not_dropped[0]
        return Check("page cache", Status.NOT_RUN, findings.dropped, len(findings.not_dropped), first)
    return check("page cache", checked=findings.dropped, failures=())


def document(result: L2Result, versions: dict[str, str]) -> dict[str, Any]:
    """The result as JSON: parameters, versions, host, figures of every cell, checks, verdict."""
    p = result.parameters
    return {
        "title": "L2 Adapter Benchmark Result",
        "metrics": _guide_metrics(result),
        "kind": "l2",
        "config": asdict(p)
        | {"operations": list(p.operations), "adapters": [spec.shown for spec in result.specs]},
        "versions": versions,
        "host": description(),
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(result.started)),
        "seconds": result.seconds,
        "cells": [
            {
                "adapter": cell.adapter,
                "type": cell.type,
                "data_size_kb": cell.data_size_kb,
                "in_flight": cell.in_flight,
                "operations": {
                    operation: figures
                    for operation in p.operations
                    if (figures := operation_figures(cell, operation, max_hit_rate=p.lookup_max_hit_rate))
                },
                "notes": cell.notes,
            }
            for cell in result.cells
        ],
        "removed": [{"what": what, "before": before, "left": left} for what, before, left in result.removed],
        "halted": result.halted,
        "checks": [asdict(item) for item in result.checks],
        "verdict": {"exit_code": int(result.verdict.exit_code), "line": result.verdict.line},
    }


GUIDE_KEYS = {
    "operation": "operation",
    "rounds": "rounds",
    "rounds_timed_out": "rounds_timed_out",
    "keys_per_round": "keys_per_round",
    "total_keys": "total_keys",
    "total_success": "total_success",
    "duration_avg_ms": "duration_avg_ms",
    "duration_min_ms": "duration_min_ms",
    "duration_max_ms": "duration_max_ms",
    "duration_p50_ms": "duration_p50_ms",
    "duration_p99_ms": "duration_p99_ms",
    "duration_std_ms": "duration_std_ms",
    "throughput_avg_mbps": "avg_throughput_mbps",
    "throughput_min_mbps": "min_throughput_mbps",
    "throughput_max_mbps": "max_throughput_mbps",
    "ops_per_sec_avg": "avg_ops_per_sec",
    "latency_per_key_ms": "avg_latency_per_key_ms",
    "expected_max_hit_rate": "expected_max_hit_rate",
    "expected_hit_count": "expected_hit_keys",
    "actual_hit_rate": "actual_hit_rate",
}
"""Key in LMCache's own bench -> key here."""


def _guide_metrics(result: L2Result) -> dict[str, Any]:
    """The first cell in the sections and under the keys of LMCache's own bench, which measures one."""
    p = result.parameters
    keys, size = p.in_flight[0] * p.num_keys, p.data_size_kb[0]
    sections: dict[str, Any] = {
        "config": {
            "l2_adapter_json": result.specs[0].shown,
            "num_keys": p.num_keys,
            "in_flight": p.in_flight[0],
            "keys_per_round": keys,
            "data_size_kb": size,
            "data_per_round_mb": round(keys * size / 1024, 2),
            "measurement_rounds": p.rounds,
            "warmup_rounds": p.warmup_rounds,
            "lookup_max_hit_rate": p.lookup_max_hit_rate,
        }
    }
    for cell in result.cells[:1]:
        measured = (
            figures
            for operation in p.operations
            if (figures := operation_figures(cell, operation, max_hit_rate=p.lookup_max_hit_rate))
        )
        for number, figures in enumerate(measured):
            sections[f"op_{number}"] = {
                theirs: figures[ours] for theirs, ours in GUIDE_KEYS.items() if ours in figures
            }
    return sections
