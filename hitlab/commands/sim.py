"""Run the simulator: a small OpenAI-compatible server that behaves like vLLM's prefix cache."""

import typer


def command(context: typer.Context) -> None:
    from simulator.options import parse_options
    from simulator.server import run_simulator

    run_simulator(parse_options(context.args, program="hitlab sim"))
