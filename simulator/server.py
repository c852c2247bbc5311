"""The simulated engine as a server: in the running event loop, or as a blocking program."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable

import uvloop

from contract.errors import ServiceError
from prompts.tokenizer import load_tokenizer
from simulator.app import App
from simulator.config import SimulatorConfig
from simulator.http import Connection


async def serve(
    config: SimulatorConfig, *, ready: Callable[[str], None], stop: asyncio.Event | None = None
) -> None:
    """Serve until `stop` is set or the task is cancelled.

    Args:
        ready: called once with the URL, when requests are accepted.

    Raises:
        ScenarioError: the tokenizer cannot be loaded.
        ServiceError: the address is not free.
    """
    tokenizer = load_tokenizer(
        config.tokenizer, revision=config.tokenizer_revision, trust_remote_code=config.trust_remote_code
    )
    app = App(config, tokenizer)
    connections: set[Connection] = set()
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(lambda: Connection(app, connections), config.host, config.port)
    except OSError as error:
        raise ServiceError(
            f"simulator: cannot listen on {config.host}:{config.port} ({error.strerror or error}); "
            "choose another port, or 0 for any free one"
        ) from error
    engine = loop.create_task(app.engine.run())
    stopped = loop.create_task((stop or asyncio.Event()).wait())
    try:
        host = f"[{config.host}]" if ":" in config.host else config.host
        ready(f"http://{host}:{server.sockets[0].getsockname()[1]}")
        done, _ = await asyncio.wait({engine, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if engine in done:
            await engine
    finally:
        server.close()
        for connection in list(connections):
            connection.close()
        engine.cancel()
        stopped.cancel()
        await asyncio.gather(engine, stopped, return_exceptions=True)


def run_simulator(config: SimulatorConfig, *, stop_at_eof: bool = False) -> None:
    """Serve until SIGINT or SIGTERM; prints one line with the URL when ready.

    Args:
        stop_at_eof: also stop when stdin ends, so that a child does not outlive the parent that holds the pipe.
    """
    uvloop.run(_until_signalled(config, stop_at_eof=stop_at_eof))


async def _until_signalled(config: SimulatorConfig, *, stop_at_eof: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if stop_at_eof:
        stdin = sys.stdin.fileno()

        def stop_when_ended() -> None:
            if not os.read(stdin, 1):
                loop.remove_reader(stdin)
                stop.set()

        loop.add_reader(stdin, stop_when_ended)
    await serve(config, ready=lambda url: print(url, flush=True), stop=stop)
