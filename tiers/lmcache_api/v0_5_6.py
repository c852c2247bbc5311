"""LMCache 0.5.6 behind `tiers.interfaces`."""

import argparse
import json
import logging
import pkgutil
import select
import threading
from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
import zmq
from lmcache.utils import EngineType
from lmcache.v1.distributed import l2_adapters
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey, ipc_key_to_object_keys
from lmcache.v1.distributed.l2_adapters import L1MemoryDesc, create_l2_adapter
from lmcache.v1.distributed.l2_adapters import base as _base
from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey
from lmcache.v1.multiprocess.group_view import EngineGroupInfo
from lmcache.v1.multiprocess.token_hasher import TokenHasher
from lmcache.v1.multiprocess.transfer_context import EngineDrivenTransferContext, create_transfer_context
from lmcache.v1.multiprocess.transport.factory import RequestClientFactory
from lmcache.v1.platform import consume_fd

from contract.errors import ScenarioError, ServiceError
from contract.foreign_text import presentable
from tiers.interfaces import Batch, Bytes, ObjectName, Operation, Request, Task, TaskResult
from tiers.server.layout import Layout

_LOG = logging.getLogger("hitlab.tiers")

# An adapter counts what it has stored itself; objects of an earlier process that are deleted make it suspect a fault of
# its own ("accounting bug"), which is none.
logging.getLogger(_base.__name__).addFilter(lambda record: "accounting" not in record.getMessage())

VERSION = "0.5.6"
KV_RANK = ObjectKey.ComputeKVRank(world_size=1, global_rank=0, local_world_size=1, local_rank=0)
CLOSE_SECONDS = 5.0
HASH = "blake3"
SUFFIX = "_l2_adapter"


# --- L2 adapters ---


class L2Adapter:
    """`tiers.interfaces.L2Backend` on one of LMCache's adapters."""

    def __init__(self, adapter: Any, arena: Bytes) -> None:
        self.name = type(adapter).__name__
        self._adapter = adapter
        self._arena = arena.ctypes.data
        self._events = {
            Operation.STORE: adapter.get_store_event_fd(),
            Operation.LOOKUP: adapter.get_lookup_and_lock_event_fd(),
            Operation.LOAD: adapter.get_load_event_fd(),
        }
        self._stored: dict[int, Any] = {}
        self._sizes: dict[Task, int] = {}

    def prepare(self, names: Sequence[ObjectName], buffers: Sequence[Bytes] | None) -> Batch:
        keys = [_key(name) for name in names]
        objects = None if buffers is None else [self._memory(buffer) for buffer in buffers]
        return Batch(tuple(names), None if buffers is None else tuple(buffers), (keys, objects))

    def _memory(self, buffer: Bytes) -> TensorMemoryObj:
        tensor = torch.from_numpy(buffer)
        return TensorMemoryObj(
            raw_data=tensor,
            metadata=MemoryObjMetadata(
                shape=tensor.shape,
                dtype=torch.uint8,
                address=buffer.ctypes.data - self._arena,
                phy_size=buffer.nbytes,
                ref_count=1,
                fmt=MemoryFormat.KV_2LTD,
                shapes=[tensor.shape],
                dtypes=[torch.uint8],
            ),
            parent_allocator=None,
        )

    def submit(self, operation: Operation, batch: Batch) -> Task:
        keys, objects = batch.native
        if operation is Operation.STORE:
            task = self._adapter.submit_store_task(keys, objects)
        elif operation is Operation.LOAD:
            task = self._adapter.submit_load_task(keys, objects)
        else:
            task = self._adapter.submit_lookup_and_lock_task(
                keys, {0: MemoryLayoutDesc(shapes=[], dtypes=[])}
            )
        self._sizes[operation, task] = len(keys)
        return operation, task

    def wait(self, pending: Collection[Task], timeout: float) -> dict[Task, TaskResult]:
        poller = select.poll()
        operations = {operation for operation, _ in pending}
        for operation in operations:
            poller.register(self._events[operation], select.POLLIN)
        ready = {fd for fd, _ in poller.poll(timeout * 1000)}
        ended: dict[Task, TaskResult] = {}
        for operation in operations:
            event = self._events[operation]
            if event not in ready:
                continue
            consume_fd(event)
            if operation is Operation.STORE:
                self._stored.update(self._adapter.pop_completed_store_tasks())
            for task in pending:
                if task[0] is operation and (result := self._result(task)) is not None:
                    ended[task] = result
        return ended

    def _result(self, task: Task) -> TaskResult | None:
        operation, number = task
        size = self._sizes[task]
        if operation is Operation.STORE:
            stored = self._stored.pop(number, None)
            if stored is None:
                return None
            moved = stored.bytes_transferred() if stored.is_successful() else 0
            return TaskResult((stored.is_successful(),) * size, moved)
        query = (
            self._adapter.query_load_result
            if operation is Operation.LOAD
            else self._adapter.query_lookup_and_lock_result
        )
        bitmap = query(number)
        return (
            None if bitmap is None else TaskResult(tuple(bool(bitmap.test(index)) for index in range(size)))
        )

    def unlock(self, names: Sequence[ObjectName]) -> None:
        self._adapter.submit_unlock([_key(name) for name in names])

    def delete(self, names: Sequence[ObjectName]) -> None:
        self._adapter.delete([_key(name) for name in names])

    def close(self) -> None:
        self._adapter.close()


def _key(name: ObjectName) -> ObjectKey:
    return ObjectKey(chunk_hash=name.chunk_hash, model_name=name.model, kv_rank=KV_RANK)


def open_l2(spec: dict[str, Any], arena: Bytes, align_bytes: int) -> L2Adapter:
    """The adapter that a JSON spec describes, over a buffer that it may register.

    Raises ScenarioError for a spec that LMCache does not take, ServiceError for an adapter that cannot be made here.
    """
    known = _types()
    if spec["type"] not in known:
        raise ScenarioError(f"--l2-adapter {spec['type']}: LMCache {VERSION} has {', '.join(sorted(known))}")
    try:
        # LMCache would import module after module until one has the type, with all that the others need.
        import_module(f"{l2_adapters.__name__}.{spec['type'].replace('-', '_')}{SUFFIX}")
        config = parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=[json.dumps(spec)])).adapters[
            0
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ScenarioError(f"--l2-adapter {spec.get('type')}: {_one_line(error)}") from error
    except ImportError as error:
        raise ServiceError(
            f"--l2-adapter {spec['type']}: needs a package that is not here ({error})"
        ) from error
    memory = L1MemoryDesc(ptr=arena.ctypes.data, size=arena.nbytes, align_bytes=align_bytes)
    try:
        return L2Adapter(create_l2_adapter(config, memory), arena)
    except Exception as error:  # adapters are third parties' code and fail in their own ways
        raise ServiceError(f"--l2-adapter {spec['type']}: cannot be made ({_one_line(error)})") from error


def _types() -> set[str]:
    """Types of adapters; every one has a module that is only imported when it is asked for."""
    names = [module.name for module in pkgutil.iter_modules(l2_adapters.__path__)]
    found = {name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)} - {"native_connector"}
    return {name.replace("sagemaker_hyperpod", "sagemaker-hyperpod") for name in found}


def _one_line(error: BaseException) -> str:
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return presentable(f"{type(error).__name__}: {text}")


# --- the cache server ---

DTYPES = {
    "float16": torch.float16,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "uint8": torch.uint8,
    "int8": torch.int8,
}


def cuda_available() -> bool:
    return bool(torch.cuda.is_available())


class Connection:
    """One connection to the server: what a scheduler, or a worker, has of its own."""

    def __init__(self, url: str) -> None:
        self._context = zmq.Context()
        self._context.setsockopt(zmq.LINGER, 0)
        self.client = RequestClientFactory.create(url, context=self._context)

    def chunk_size(self, timeout: float) -> int:
        """Tokens per chunk. Raises TimeoutError: an answer is never made up."""
        return int(self.client.get_chunk_size().result(timeout=timeout))

    def close(self) -> None:
        self.client.close()
        self._context.term()


class _Worker:
    """One rank: its tensors and the way they are transferred."""

    def __init__(self, url: str, layout: Layout, *, device: str, engine_driven: bool, instance: int) -> None:
        self.connection = Connection(url)
        self.tensors = {
            f"layer.{index}": torch.zeros(layer.shape, dtype=DTYPES[layer.dtype], device=device)
            for index, layer in enumerate(layout.layers)
        }
        # LMCache chooses by what the host could do; CPU tensors on a GPU host want the plain way.
        self.transfer: Any = (
            EngineDrivenTransferContext(instance, self.connection.client)
            if engine_driven and device == "cpu"
            else create_transfer_context(
                self.tensors,
                instance_id=instance,
                req_client=self.connection.client,
                mode="engine_driven" if engine_driven else "lmcache_driven",
            )
        )

    def bytes_of(self, layer: int) -> torch.Tensor:
        """A layer as bytes, its blocks first: (blocks, planes, bytes of a plane); a view on the CPU."""
        tensor = self.tensors[f"layer.{layer}"].view(torch.uint8)
        if tensor.dim() == 3:
            return tensor.flatten(1).unsqueeze(1)
        return tensor.flatten(2).transpose(0, 1)


class Client:
    """`tiers.interfaces.CacheClient` on the real server: a connection for the scheduler and one per rank."""

    def __init__(
        self,
        url: str,
        layout: Layout,
        *,
        model: str,
        ranks: int,
        first_instance: int,
        device: str,
        engine_driven: bool,
        timeout: float,
    ) -> None:
        self.ranks = ranks
        self.layer_bytes = layout.layer_bytes
        self._layout = layout
        self._model = model
        self._world = 1 if layout.shared_between_ranks else ranks
        self._scheduler = Connection(url)
        self._workers: list[_Worker] = []
        try:
            self.chunk_size = self._scheduler.chunk_size(timeout)
            self._blocks_in_chunk = self.chunk_size // layout.block_size
            for rank in range(ranks):
                worker = _Worker(
                    url, layout, device=device, engine_driven=engine_driven, instance=first_instance + rank
                )
                self._workers.append(worker)
                self._register(worker, timeout)
        except BaseException:
            self.close()
            raise
        self._hasher = TokenHasher(self.chunk_size, HASH)
        self._lock = threading.Lock()

    def _register(self, worker: _Worker, timeout: float) -> None:
        worker.transfer.register(
            worker.tensors,
            self._model,
            self._world,
            self._blocks_in_chunk,
            timeout,
            layout_hints={"kv_layout": "NHD"},
            engine_group_infos=[
                EngineGroupInfo(
                    engine_group_id=number, layer_indices=indices, tokens_per_block=self._layout.block_size
                )
                for number, indices in enumerate(self._layout.groups)
            ],
            engine_type=EngineType.VLLM,
        )

    def _key(self, request: Request, rank: int | None) -> IPCCacheServerKey:
        worker = None if rank is None else (0 if self._layout.shared_between_ranks else rank)
        return IPCCacheServerKey.from_token_ids(
            self._model,
            self._world,
            worker,
            list(request.tokens),
            start=0,
            end=len(request.tokens),
            request_id=request.request_id,
            # Every rank reads what rank 0 wrote; otherwise each its own.
            num_kv_readers=self.ranks if self._layout.shared_between_ranks else 1,
        )

    def lookup(self, request: Request, timeout: float) -> int:
        client = self._scheduler.client
        client.lookup(self._key(request, None), self.ranks).result(timeout=timeout)
        # The server waits; asking again and again would only measure how often one asks.
        found = client.wait_prefetch_status(request.request_id, timeout).result(timeout=timeout + 1)
        if found is None:
            raise TimeoutError(f"lookup of {request.request_id}: not answered within {timeout:g} s")
        return int(found)

    def release(self, request: Request, timeout: float) -> None:
        self._scheduler.client.free_lookup_locks(self._key(request, None), self.ranks).result(timeout=timeout)

    def end_session(self, request_id: str, timeout: float) -> None:
        self._scheduler.client.end_session(request_id).result(timeout=timeout)

    def store(self, rank: int, request: Request, blocks: Sequence[int], timeout: float) -> bool:
        return self._transfer("submit_store", rank, request, blocks, timeout)

    def retrieve(self, rank: int, request: Request, blocks: Sequence[int], timeout: float) -> bool:
        return self._transfer("submit_retrieve", rank, request, blocks, timeout)

    def _transfer(
        self, submit: str, rank: int, request: Request, blocks: Sequence[int], timeout: float
    ) -> bool:
        worker = self._workers[rank]
        event = worker.transfer.create_recorded_event()
        future = getattr(worker.transfer, submit)(
            request.request_id,
            self._key(request, rank),
            worker.tensors,
            [list(blocks) for _ in self._layout.groups],
            event,
            self._blocks_in_chunk,
        )
        return bool(future.result(timeout=timeout))

    def write(self, rank: int, layer: int, blocks: Sequence[int], data: Bytes) -> None:
        target = self._workers[rank].bytes_of(layer)
        source = torch.from_numpy(np.ascontiguousarray(data)).view(len(blocks), *target.shape[1:])
        target[torch.as_tensor(list(blocks), device=target.device)] = source.to(target.device)

    def read(self, rank: int, layer: int, blocks: Sequence[int]) -> Bytes:
        source = self._workers[rank].bytes_of(layer)
        data = source[torch.as_tensor(list(blocks), device=source.device)].cpu()
        flat: Bytes = data.reshape(len(blocks), -1).numpy()
        return flat

    def copy(self, rank: int, source: Sequence[int], destination: Sequence[int]) -> None:
        worker = self._workers[rank]
        for layer in range(len(self._layout.layers)):
            data = worker.bytes_of(layer)
            for read, write in zip(source, destination, strict=True):
                data[write].copy_(data[read])
        if worker.tensors["layer.0"].is_cuda:
            torch.cuda.synchronize()

    def object_names(self, tokens: tuple[int, ...]) -> list[dict[str, Any]]:
        hashes = self._hasher.compute_chunk_hashes(list(tokens), end=len(tokens))
        key = self._key(Request("", tokens), None)
        groups = ipc_key_to_object_keys(key, hashes, list(range(len(self._layout.groups))))
        return [
            {
                "chunk_hash_hex": name.chunk_hash.hex(),
                "model_name": name.model_name,
                "kv_rank": name.kv_rank,
                "object_group_id": name.object_group_id,
                "cache_salt": name.cache_salt,
            }
            for group in groups
            for name in group
        ]

    def close(self) -> None:
        for worker in self._workers:
            try:
                worker.transfer.flush_inflight_stores()
                future = worker.transfer.unregister()
                if future is not None:
                    future.result(timeout=CLOSE_SECONDS)
            except TimeoutError:
                _LOG.debug("no answer to unregistering: a server that is gone has forgotten it anyway")
            finally:
                worker.transfer.close()
                worker.tensors.clear()
                worker.connection.close()
        self._workers.clear()
        self._scheduler.close()
