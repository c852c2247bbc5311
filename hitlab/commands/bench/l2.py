"""Measure LMCache's L2 adapters: store, look up and load, verified byte for byte."""

import secrets
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from contract.errors import ScenarioError
from contract.files import expanded
from hitlab.commands.bench.result import (
    Compare,
    FlameGraph,
    FlameGraphOutput,
    FlameGraphScripts,
    Format,
    Output,
    Quiet,
    Report,
    Samples,
    SelfTest,
    clean_stdout,
    earlier,
    numbers,
    require_words,
    show_and_write,
    show_trials,
    speaker,
    stop_on_interrupt,
)
from hitlab.terminal import Terminal

if TYPE_CHECKING:
    from tiers.flamegraph import FlameGraphs
    from tiers.l2.bench import L2Result, OpenL2
    from tiers.l2.parameters import L2Parameters
    from tiers.l2.specs import Spec
    from tiers.self_test import Trial

OPERATIONS = ("store", "lookup", "load", "mixed")


def command(
    context: typer.Context,
    l2_adapter: Annotated[
        list[str] | None,
        typer.Option(
            "--l2-adapter",
            metavar="JSON",
            help="Adapter to measure; several are compared. Else L2_ADAPTER_JSON.",
            show_default=False,
        ),
    ] = None,
    num_keys: Annotated[int, typer.Option("--num-keys", metavar="N", help="Keys per submit.")] = 32,
    in_flight: Annotated[
        str, typer.Option("--in-flight", metavar="N[,N]", help="Submits in flight; several make a matrix.")
    ] = "1",
    data_size_kb: Annotated[
        str, typer.Option("--data-size-kb", metavar="N[,N]", help="KiB per key; several make a matrix.")
    ] = "256",
    l1_align_bytes: Annotated[
        int, typer.Option("--l1-align-bytes", metavar="N", help="Alignment of the buffers (O_DIRECT: 4096).")
    ] = 1,
    l1_use_hugepages: Annotated[
        bool,
        typer.Option("--l1-use-hugepages/--no-l1-use-hugepages", help="Buffers in huge pages of 2 MiB."),
    ] = False,
    rounds: Annotated[int, typer.Option("--rounds", metavar="N", help="Measured rounds per operation.")] = 1,
    warmup_rounds: Annotated[
        int, typer.Option("--warmup-rounds", metavar="N", help="Rounds before, checked but not measured.")
    ] = 1,
    lookup_max_hit_rate: Annotated[
        float, typer.Option("--lookup-max-hit-rate", metavar="F", help="Share of stored keys in lookups.")
    ] = 0.0,
    skip_verify: Annotated[
        bool, typer.Option("--skip-verify/--no-skip-verify", help="Do not compare what is loaded.")
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(
            "--only", metavar="OPERATION", help=f"One of {', '.join(OPERATIONS)}.", show_default=False
        ),
    ] = None,
    mixed: Annotated[
        float | None,
        typer.Option(
            "--mixed", metavar="F", help="Mixed rounds as well: share of loads in them.", show_default=False
        ),
    ] = None,
    page_cache: Annotated[
        str, typer.Option("--page-cache", metavar="keep|drop", help="Drop own files from it before reads.")
    ] = "keep",
    task_timeout: Annotated[
        float,
        typer.Option("--task-timeout", metavar="SECONDS", help="A task that takes longer ends the run."),
    ] = 30.0,
    deadline: Annotated[
        float, typer.Option("--deadline", metavar="SECONDS", help="For the whole run.")
    ] = 3600.0,
    continue_after_timeout: Annotated[
        bool, typer.Option("--continue-after-timeout", help="Go on when late tasks have ended after all.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave own objects where they are.")] = False,
    clean: Annotated[
        bool, typer.Option("--clean", help="Only remove what runs with this seed and size left.")
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            metavar="N",
            help="Decides names and data; fresh by default, 0 with --only and --clean.",
            show_default=False,
        ),
    ] = None,
    self_test: SelfTest = False,
    flamegraph: FlameGraph = "off",
    flamegraph_mode: Annotated[
        str,
        typer.Option(
            "--flamegraph-mode", metavar="MODE[,MODE]", help="on-cpu, off-cpu, wakeup, offwake, wall, gil."
        ),
    ] = "on-cpu",
    flamegraph_output: FlameGraphOutput = None,
    flamegraph_scripts_dir: FlameGraphScripts = Path("~/FlameGraph"),
    form: Format = "terminal",
    output: Output = None,
    samples: Samples = None,
    report: Report = None,
    compare: Compare = None,
    quiet: Quiet = False,
) -> int:
    from tiers.execution import ensure_lmcache
    from tiers.flamegraph import FlameGraphs, parse_modes, require_tools
    from tiers.l2.parameters import L2Parameters, Only, checked
    from tiers.l2.specs import parse_specs

    require_words(
        format=(form, ("terminal", "json")),
        page_cache=(page_cache, ("keep", "drop")),
        flamegraph=(flamegraph, ("on", "off")),
    )
    if only is not None:
        require_words(only=(only, OPERATIONS))
    fixed = only is not None or clean
    parameters = checked(
        L2Parameters(
            num_keys=num_keys,
            in_flight=numbers("--in-flight", in_flight),
            data_size_kb=numbers("--data-size-kb", data_size_kb),
            l1_align_bytes=l1_align_bytes,
            l1_use_hugepages=l1_use_hugepages,
            rounds=rounds,
            warmup_rounds=warmup_rounds,
            lookup_max_hit_rate=lookup_max_hit_rate,
            skip_verify=skip_verify,
            only=cast("Only | None", only),
            mixed=mixed,
            page_cache="drop" if page_cache == "drop" else "keep",
            task_timeout=task_timeout,
            deadline=deadline,
            continue_after_timeout=continue_after_timeout,
            keep=keep,
            clean=clean,
            seed=seed if seed is not None else 0 if fixed else secrets.randbits(48),
        )
    )
    specs = parse_specs(l2_adapter or [])
    before = earlier(compare)
    graphs = None
    if flamegraph == "on":
        graphs = FlameGraphs(
            parse_modes(flamegraph_mode), flamegraph_output, expanded(str(flamegraph_scripts_dir))
        )
    if self_test and (graphs is not None or clean or only is not None or compare is not None):
        raise ScenarioError("--self-test: goes with none of --only, --clean, --compare and --flamegraph")
    ensure_lmcache(sys.argv[1:])
    if graphs is not None:
        require_tools(graphs)  # py-spy is in that environment

    terminal: Terminal = context.obj
    say = speaker(quiet or terminal.quiet)
    with clean_stdout(), stop_on_interrupt() as stop:
        from tiers import lmcache_api

        api = lmcache_api.load()
        open_l2 = cast("OpenL2", api.open_l2)
        trials = _trials(specs, parameters, open_l2, say) if self_test else ()
        if not self_test:
            result = _measured(specs, parameters, open_l2, graphs, stop, say)
    if self_test:
        return show_trials(trials, form=form, output=output)
    return _show(
        result,
        {"lmcache": api.VERSION},
        before,
        form=form,
        output=output,
        samples=samples,
        report=report,
        profiled=graphs is not None,
    )


def _measured(
    specs: tuple["Spec", ...],
    parameters: "L2Parameters",
    open_l2: "OpenL2",
    graphs: "FlameGraphs | None",
    stop: threading.Event,
    say: Callable[[str], None],
) -> "L2Result":
    """One run, or one per flame graph; the last one's result."""
    from tiers.flamegraph import recording
    from tiers.l2.bench import run
    from tiers.l2.text import header

    say(header(specs, parameters))
    if graphs is None:
        return run(specs, parameters, open_l2, stop=stop, say=say)
    results: list[L2Result] = []
    for mode in graphs.modes:
        # Names of their own: no run may find what another one left.
        own = (
            replace(parameters, seed=parameters.seed + len(results))
            if parameters.only is None
            else parameters
        )
        with recording(
            graphs, mode, lambda: "+".join(dict.fromkeys(c.adapter for c in results[-1].cells)), say
        ):
            results.append(run(specs, own, open_l2, stop=stop, say=say))
    return results[-1]


def _trials(
    specs: tuple["Spec", ...], parameters: "L2Parameters", open_l2: "OpenL2", say: Callable[[str], None]
) -> tuple["Trial", ...]:
    """Small runs of the first adapter, without and with every fault."""
    from tiers.interfaces import Bytes, L2Backend
    from tiers.l2.bench import run
    from tiers.l2.faults import FAULTS, FaultyBackend
    from tiers.self_test import self_test
    from tiers.verdict import Verdict

    small = replace(
        parameters,
        num_keys=4,
        in_flight=(2,),
        data_size_kb=parameters.data_size_kb[:1],
        rounds=2,
        warmup_rounds=1,
        lookup_max_hit_rate=0.5,
        skip_verify=False,
        page_cache="keep",
    )

    def once(fault: str | None) -> Verdict:
        def wrong(spec: dict[str, Any], arena: Bytes, align_bytes: int) -> L2Backend:
            inner = open_l2(spec, arena, align_bytes)
            return inner if fault is None else FaultyBackend(inner, fault)

        return run(specs[:1], replace(small, seed=secrets.randbits(48)), wrong).verdict

    return self_test(FAULTS, once, say)


def _show(
    result: "L2Result",
    versions: dict[str, str],
    before: dict[str, Any] | None,
    *,
    profiled: bool,
    **files: Any,
) -> int:
    """`files`: where results go, as `show_and_write` takes them. Returns the exit code."""
    from tiers.l2.bench import document
    from tiers.l2.text import summary
    from tiers.report.page import l2_charts
    from tiers.samples import l2_table

    made = document(result, versions) | {"profiled": profiled}
    show_and_write(
        made,
        summary(result),
        before,
        table=lambda: l2_table(result.cells),
        charts=lambda: l2_charts(made, result.cells),
        **files,
    )
    return int(result.verdict.exit_code)
