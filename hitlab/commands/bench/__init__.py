"""`hitlab bench`: workloads on engines and on what lies below them."""

import typer

from hitlab.commands.bench import compare, engine, l2, server
from hitlab.signals import interruptible

app = typer.Typer(
    name="bench",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Benchmarks compatible with `lmcache bench`, with evidence of what the cache did.",
)
app.command(
    name="engine",
    help=engine.__doc__,
    add_help_option=False,  # its options are made from the workloads' parameters, and so is its --help
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)(interruptible(engine.command))
app.command(name="compare", help=compare.__doc__)(interruptible(compare.command))
app.command(name="server", help=server.__doc__)(interruptible(server.command))
app.command(name="l2", help=l2.__doc__)(interruptible(l2.command))
