"""Check and measure an LMCache cache server: store, look up and retrieve, verified byte for byte."""

import secrets
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from contract.errors import ScenarioError, ServiceError
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
    require_words,
    show_and_write,
    show_trials,
    speaker,
    stop_on_interrupt,
)
from hitlab.terminal import Terminal

if TYPE_CHECKING:
    from tiers.flamegraph import FlameGraphs
    from tiers.self_test import Trial
    from tiers.server.bench import ServerResult
    from tiers.server.connect import Peer
    from tiers.server.parameters import ServerParameters


def command(
    context: typer.Context,
    rpc_url: Annotated[
        str, typer.Option("--rpc-url", metavar="URL", help="Where the server listens (--port).")
    ] = "tcp://localhost:5555",
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="URL",
            help="Its HTTP API (--http-port): version, checksums, counters, removal. [default: http://localhost:8080]",
            show_default=False,
        ),
    ] = None,
    mode: Annotated[str, typer.Option("--mode", metavar="gpu|cpu", help="Where the KV tensors are.")] = "gpu",
    transfer_mode: Annotated[
        str,
        typer.Option(
            "--transfer-mode",
            metavar="MODE",
            help="auto, engine_driven or lmcache_driven; auto: the latter for gpu, the former for cpu.",
        ),
    ] = "auto",
    tp_size: Annotated[int, typer.Option("--tp-size", metavar="N", help="Ranks per simulated engine.")] = 1,
    use_mla: Annotated[
        bool,
        typer.Option("--use-mla", help="Fold the ranks as with MLA (kv_size 1): rank 0 stores, all read."),
    ] = False,
    num_tokens: Annotated[int, typer.Option("--num-tokens", metavar="N", help="Tokens per request.")] = 512,
    num_blocks: Annotated[
        int, typer.Option("--num-blocks", metavar="N", help="Blocks, where the spec's NB is 0.")
    ] = 1024,
    block_size: Annotated[
        int, typer.Option("--block-size", metavar="N", help="Tokens per block, where the spec's BS is 0.")
    ] = 16,
    start: Annotated[int, typer.Option("--start", metavar="N", help="First sequence.")] = 0,
    end: Annotated[
        int | None,
        typer.Option(
            "--end", metavar="N", help="End of the sequences; without: until Ctrl-C.", show_default=False
        ),
    ] = None,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", help="Pause between the passes.")
    ] = 0.5,
    kvcache_shape_spec: Annotated[
        str,
        typer.Option(
            "--kvcache-shape-spec",
            metavar="SPEC",
            help="(kv_size,NB,BS,NH,HS):dtype:layers[;...]; kv_size 1: MLA.",
        ),
    ] = "(2,1024,16,8,128):float16:32",
    concurrency: Annotated[
        int, typer.Option("--concurrency", metavar="N", help="Simulated engines at once.")
    ] = 1,
    block_allocation: Annotated[
        str,
        typer.Option(
            "--block-allocation",
            metavar="sequential|random",
            help="Blocks a sequence is stored from: behind one another, or drawn.",
        ),
    ] = "sequential",
    phase: Annotated[
        str,
        typer.Option(
            "--phase", metavar="PHASE", help="pair (store, then retrieve each), store, or retrieve."
        ),
    ] = "pair",
    duration: Annotated[
        float | None,
        typer.Option("--duration", metavar="SECONDS", help="End of the measured phase.", show_default=False),
    ] = None,
    warmup: Annotated[
        int, typer.Option("--warmup", metavar="N", help="Sequences before, checked but not measured.")
    ] = 1,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="SECONDS", help="For each call; one that takes longer ends the run."
        ),
    ] = 10.0,
    keep: Annotated[bool, typer.Option("--keep", help="Leave own objects in the server.")] = False,
    self_test: SelfTest = False,
    flamegraph: FlameGraph = "off",
    profile_server_pid: Annotated[
        int | None,
        typer.Option(
            "--profile-server-pid",
            metavar="PID",
            help="The server's process, for --flamegraph.",
            show_default=False,
        ),
    ] = None,
    flamegraph_mode: Annotated[
        str,
        typer.Option(
            "--flamegraph-mode", metavar="MODE[,MODE]", help="on-cpu, off-cpu, wakeup, offwake, wall, gil."
        ),
    ] = "gil",
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
    from tiers.server.layout import make_layout
    from tiers.server.parameters import ServerParameters, checked

    require_words(format=(form, ("terminal", "json")), flamegraph=(flamegraph, ("on", "off")))
    parameters = checked(
        ServerParameters(
            rpc_url=rpc_url,
            url=url,
            mode=cast("Any", mode),
            transfer_mode=cast("Any", transfer_mode),
            tp_size=tp_size,
            use_mla=use_mla,
            num_tokens=num_tokens,
            num_blocks=num_blocks,
            block_size=block_size,
            kvcache_shape_spec=kvcache_shape_spec,
            start=start,
            end=end,
            interval=interval,
            concurrency=concurrency,
            block_allocation=cast("Any", block_allocation),
            phase=cast("Any", phase),
            duration=duration,
            warmup=warmup,
            timeout=timeout,
            keep=keep,
            seed=secrets.randbits(48),
        )
    )
    make_layout(  # what is wrong with the spec is said before anything is looked for
        kvcache_shape_spec,
        num_blocks=num_blocks,
        block_size=block_size,
        engine_driven=parameters.engine_driven,
        use_mla=use_mla,
    )
    before = earlier(compare)
    graphs = None
    if flamegraph == "on":
        if profile_server_pid is None:
            raise ScenarioError(
                "--flamegraph on: name the server, --profile-server-pid $(pgrep -f 'lmcache server')"
            )
        graphs = FlameGraphs(
            parse_modes(flamegraph_mode),
            flamegraph_output,
            expanded(str(flamegraph_scripts_dir)),
            profile_server_pid,
        )
        if len(graphs.modes) > 1 and not parameters.bounded:
            raise ScenarioError(
                "--flamegraph-mode: several modes need a run with an end: add --end or --duration"
            )
    if self_test and (graphs is not None or compare is not None):
        raise ScenarioError("--self-test: goes with neither --compare nor --flamegraph")
    ensure_lmcache(sys.argv[1:])
    if graphs is not None:
        require_tools(graphs)  # py-spy is in that environment

    terminal: Terminal = context.obj
    say = speaker(quiet or terminal.quiet)
    with clean_stdout(), stop_on_interrupt() as stop:
        from tiers import lmcache_api
        from tiers.server.connect import require_peer

        api = lmcache_api.load()
        if mode == "gpu" and not api.cuda_available():
            raise ServiceError("--mode gpu needs CUDA, which this host does not have: add --mode cpu")
        peer = require_peer(parameters, api.VERSION)
        trials = _trials(api, parameters, peer, say) if self_test else ()
        if not self_test:
            result = _measured(api, parameters, peer, graphs, stop, say)
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
    api: Any,
    parameters: "ServerParameters",
    peer: "Peer",
    graphs: "FlameGraphs | None",
    stop: threading.Event,
    say: Callable[[str], None],
) -> "ServerResult":
    """One run, or one per flame graph; the last one's result."""
    from tiers.flamegraph import recording
    from tiers.server.bench import run

    once = partial(run, parameters, peer, partial(_chunk_size, api, parameters), _client(api, parameters))
    if graphs is None:
        return once(stop=stop, say=say)
    for mode in graphs.modes:
        with recording(graphs, mode, lambda: "server", say):
            result = once(stop=stop, say=say)
    return result


def _chunk_size(api: Any, parameters: "ServerParameters") -> int:
    connection = api.Connection(parameters.rpc_url)
    try:
        return int(connection.chunk_size(parameters.timeout))
    finally:
        connection.close()


def _client(api: Any, parameters: "ServerParameters") -> Any:
    return partial(
        api.Client,
        parameters.rpc_url,
        ranks=parameters.tp_size,
        device="cuda" if parameters.mode == "gpu" else "cpu",
        engine_driven=parameters.engine_driven,
        timeout=parameters.timeout,
    )


def _trials(
    api: Any, parameters: "ServerParameters", peer: "Peer", say: Callable[[str], None]
) -> tuple["Trial", ...]:
    """Small runs without and with every fault; two ranks that differ (no MLA), so that they can be mixed up."""
    from tiers.self_test import self_test
    from tiers.server.bench import run
    from tiers.server.faults import FAULTS, FaultyClient
    from tiers.verdict import Verdict

    small = replace(
        parameters,
        kvcache_shape_spec="(2,128,16,2,64):float16:2",
        use_mla=False,
        tp_size=2,
        num_tokens=512,
        concurrency=1,
        phase="pair",
        start=0,
        end=2,
        duration=None,
        interval=0.0,
        warmup=1,
        timeout=min(parameters.timeout, 3.0),
    )

    def once(fault: str | None) -> Verdict:
        fresh = replace(small, seed=secrets.randbits(48))
        make = _client(api, fresh)
        chunk_size = partial(_chunk_size, api, fresh)
        if fault is None:
            return run(fresh, peer, chunk_size, make).verdict
        return run(fresh, peer, chunk_size, lambda *a, **k: FaultyClient(make(*a, **k), fault)).verdict

    return self_test(FAULTS, once, say)


def _show(
    result: "ServerResult",
    versions: dict[str, str],
    before: dict[str, Any] | None,
    *,
    profiled: bool,
    **files: Any,
) -> int:
    """`files`: where results go, as `show_and_write` takes them. Returns the exit code."""
    from tiers.report.page import server_charts
    from tiers.samples import server_table
    from tiers.server.bench import document
    from tiers.server.text import summary

    made = document(result, versions) | {"profiled": profiled}
    show_and_write(
        made,
        summary(result),
        before,
        table=lambda: server_table(result.findings.samples),
        charts=lambda: server_charts(result.findings.samples),
        **files,
    )
    return int(result.verdict.exit_code)
