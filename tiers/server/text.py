"""The summary of `bench server`, with the section and row names that LMCache's guide uses."""

from typing import Any

from tiers.sections import Section, render
from tiers.server.bench import ServerResult, figures, ranks, totals

TITLES = {
    "cold_lookup": "Cold Lookup (ms)",
    "cold_store": "Cold Store (ms)",
    "store_to_visible": "Store to Visible (ms)",
    "warm_lookup": "Warm Lookup (ms)",
    "warm_retrieve": "Warm Retrieve (ms)",
}
SHOWN = ("count", "mean", "min", "max", "p50", "p90", "p99", "gb_per_second")
COUNTERS = ("lookup", "stores", "retrieves", "eviction")


def summary(result: ServerResult) -> str:
    p = result.parameters
    total = totals(result)
    sections: list[Section] = [
        (
            "Configuration",
            {
                "RPC URL": p.rpc_url,
                "Server version": result.peer.version,
                "Mode": p.mode,
                "Transfer mode": p.resolved_transfer_mode,
                "Tokens / request": result.blocks * result.layout.block_size,
                "KV shape": result.layout.spec,
                "TP size": p.tp_size,
                "Concurrency": p.concurrency,
                "Phase": p.phase,
                "Interval (s)": p.interval,
            },
        ),
        (
            "Results",
            {
                "Total requests": total["total_requests"],
                "Checksum OK": total["checksum_ok"],
                "Checksum FAIL": total["checksum_fail"],
                "Pass rate (%)": total["pass_rate"],
                "Requests/s": total["requests_per_s"],
                "memcpy, same buffers (GB/s)": result.baseline_gb_per_second,
            },
        ),
    ]
    for operation, title in TITLES.items():
        rows = figures(result, operation)
        if rows is None:
            continue
        shown: dict[str, Any] = {_label(key): rows[key] for key in SHOWN if key in rows}
        own = ranks(result, operation)
        if len(own) > 1:
            for rank in own:
                part = figures(result, operation, rank) or {}
                shown[f"rank {rank}"] = (
                    f"p50 {part['p50']:.3f}  p99 {part['p99']:.3f}  {part.get('gb_per_second', 0):.2f} GB/s"
                )
        sections.append((title, shown))
    measured = {
        name: int(value)
        for name, value in result.counters.get("measured", {}).items()
        if any(word in name for word in COUNTERS)
    }
    if measured:
        sections.append(("Server Counters (measured phase)", measured))
    sections.append(("Checks", {item.name: f"{item.status.value} ({item.detail})" for item in result.checks}))
    if result.removed is not None:
        sections.append(("Own Objects", {"Removed": f"{result.removed[0]} of {result.removed[1]}"}))
    if result.notes:
        sections.append(("Notes", {f"Note {number}": note for number, note in enumerate(result.notes, 1)}))
    verdict = {"Verdict": result.verdict.line}
    if result.halted:
        verdict["Ended early"] = result.halted
    sections.append(("Verdict", verdict))
    return render("Server Bench Result", sections)


def _label(key: str) -> str:
    return "GB/s" if key == "gb_per_second" else key
