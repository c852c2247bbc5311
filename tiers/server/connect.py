"""Before anything is registered: is the server there, of our version, and able to do what is asked?"""

import os
import shutil
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from contract.errors import ScenarioError, ServiceError
from contract.foreign import name
from tiers.server.http_api import HttpApi, HttpApiError, within
from tiers.server.layout import Layout
from tiers.server.parameters import DEFAULT_URL, RETRIEVE_SET, ServerParameters

CONNECT_SECONDS = 3.0


@dataclass(frozen=True)
class Peer:
    """What is known of the server. `http` is None where no API answers at the default address."""

    http: HttpApi | None
    version: str | None
    l1_bytes: int | None
    notes: tuple[str, ...]


def require_peer(parameters: ServerParameters, client_version: str) -> Peer:
    """Raises ServiceError naming the server flag to add, or what else to do."""
    _require_listening(parameters.rpc_url)
    api = HttpApi(parameters.url or DEFAULT_URL)
    try:
        version = api.version()
        offered = name(within(api.config(), "mp", "supported_transfer_mode"))
        l1_bytes = api.l1_bytes()
    except HttpApiError as error:
        if parameters.url is not None:
            raise ServiceError(
                f"--url {api.url}: the server's HTTP API does not answer ({error}); it is at "
                "--http-port of lmcache server"
            ) from error
        return Peer(
            None, None, None, (f"no HTTP API at {api.url}: version, checksums, counters not checked",)
        )
    if version is None or version.split("-")[0] != client_version:
        there = version or "of a version that it does not tell"
        raise ServiceError(
            f"{parameters.rpc_url} is LMCache {there}, this side has {client_version}: their protocols differ; install "
            "the same version on both sides"
        )
    wanted = parameters.resolved_transfer_mode
    if offered is not None and offered not in (wanted, "auto"):
        raise ServiceError(
            f"{parameters.rpc_url} offers {offered} transfers, not {wanted}: start lmcache server with "
            f"--supported-transfer-mode {wanted} (or auto)" + _other_way(parameters, offered)
        )
    return Peer(api, version, l1_bytes, ())


def _other_way(parameters: ServerParameters, offered: str) -> str:
    return f", or add --transfer-mode {offered} here" if parameters.transfer_mode == "auto" else ""


def _require_listening(url: str) -> None:
    """ZMQ connects to nothing without a word: ask the port itself."""
    parts = urlsplit(url if "://" in url else f"tcp://{url}")
    if parts.scheme not in ("tcp", "grpc"):
        return
    try:
        port = parts.port
    except ValueError as error:
        raise ScenarioError(f"--rpc-url {url}: {error}") from error
    if not parts.hostname or port is None:
        raise ScenarioError(f"--rpc-url {url}: must be tcp://HOST:PORT")
    try:
        socket.create_connection((parts.hostname, port), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise ServiceError(
            f"--rpc-url {url}: no server answers ({error.strerror or error}); start it with lmcache server --port {port}"
        ) from error


def require_fit(parameters: ServerParameters, layout: Layout, chunk_size: int, peer: Peer) -> int:
    """Blocks per sequence, once it is clear that everything fits.

    Raises ScenarioError for a prompt that the tensors or the chunks cannot take, ServiceError for memory.
    """
    if chunk_size % layout.block_size:
        raise ScenarioError(
            f"--kvcache-shape-spec: BS {layout.block_size} must divide the server's chunk of {chunk_size} tokens"
        )
    tokens = parameters.num_tokens // chunk_size * chunk_size
    if not tokens:
        raise ScenarioError(
            f"--num-tokens {parameters.num_tokens}: shorter than the server's chunk of {chunk_size} tokens; nothing "
            "would be stored"
        )
    blocks = tokens // layout.block_size
    if 2 * blocks > layout.blocks:
        raise ScenarioError(
            f"--num-tokens {parameters.num_tokens}: {blocks} blocks to store from and as many others to retrieve into "
            f"need NB of at least {2 * blocks}, --kvcache-shape-spec has {layout.blocks}"
        )
    _require_shared_memory(parameters, layout)
    _require_l1(parameters, layout, blocks, peer)
    return blocks


def _require_shared_memory(parameters: ServerParameters, layout: Layout) -> None:
    """Without room in /dev/shm a process dies of SIGBUS the moment it writes its tensors."""
    if parameters.mode != "cpu" or parameters.engine_driven or not os.path.isdir("/dev/shm"):  # noqa: PTH112, S108
        return
    needed = layout.total_bytes * parameters.tp_size * parameters.concurrency
    free = shutil.disk_usage("/dev/shm").free  # noqa: S108 - the host's shared memory
    if needed > free:
        raise ServiceError(
            f"the KV tensors take {needed / 2**30:.1f} GiB of shared memory, /dev/shm has {free / 2**30:.1f}: give "
            "a smaller --kvcache-shape-spec, or the container a larger --shm-size"
        )


def _require_l1(parameters: ServerParameters, layout: Layout, blocks: int, peer: Peer) -> None:
    if peer.l1_bytes is None:
        return
    writers = 1 if layout.shared_between_ranks else parameters.tp_size
    each = blocks * sum(layout.layer_bytes) * writers
    held = parameters.concurrency
    if parameters.phase != "pair" and (parameters.end is not None or parameters.phase == "retrieve"):
        end = parameters.start + RETRIEVE_SET if parameters.end is None else parameters.end
        held = end - parameters.start
    if each * held > peer.l1_bytes:
        raise ServiceError(
            f"{held} sequences of {each / 2**20:.0f} MiB do not fit the server's L1, which evicts above "
            f"{peer.l1_bytes / 2**20:.0f} MiB: a lower --end, fewer --num-tokens, or lmcache server --l1-size-gb "
            f"{-(-each * held * 2 // 2**30)}"
        )
