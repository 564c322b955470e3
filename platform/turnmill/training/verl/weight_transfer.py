"""Transfer of weights over the network by gloo, to engines on other machines without GPUs.

verl imports this module in every process that sends or receives (`checkpoint_engine.custom_backend_module`).
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from typing import Any, TypedDict

import ray
import torch
from torch import Tensor
from torch.distributed import ProcessGroupGloo, TCPStore
from verl.checkpoint_engine.base import (
    CheckpointEngine,
    CheckpointEngineRegistry,
    TensorMeta,
    merge_weight_chunks,
    split_weight_chunks,
)

BACKEND = "gloo"
TIMEOUT_SECONDS = 120.0
SENDER = 0

Bucket = list[tuple[TensorMeta, Tensor]]


class SenderAddress(TypedDict, total=False):
    """Host and port of the sender's store; empty in all other processes."""

    host: str
    port: int


class Connection:
    """A process group that can be closed: gloo closes one with its last reference, and tracebacks keep some."""

    def __init__(self, group: ProcessGroupGloo) -> None:
        self._group: Any = group

    def broadcast(self, tensor: Tensor, timeout: timedelta) -> None:
        """Send a tensor to all others, or receive it. Raises RuntimeError once one of them has ended."""
        if self._group is None:
            raise RuntimeError("The connection is closed.")
        self._group.broadcast(tensor, SENDER).wait(timeout)

    def close(self) -> None:
        """Disconnect; processes that wait for this one get an error."""
        self._group = None


@CheckpointEngineRegistry.register(BACKEND)
class GlooWeights(CheckpointEngine):
    """Weight transfer from the first training process to all processes of engines, connected again for each sync."""

    def __init__(self, bucket_size: int, is_master: bool = False, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.bucket_size = bucket_size
        self.is_master = is_master
        self.timeout = timedelta(seconds=timeout_seconds)
        self._store: TCPStore | None = None
        self._connection: Connection | None = None
        self._is_sending = False

    def prepare(self) -> SenderAddress:
        """Return the address of the sender; empty in all other processes. First clean up after a failed sync."""
        self.finalize()
        if not self.is_master:
            return {}
        self._store = TCPStore(_address(), 0, is_master=True, wait_for_workers=False, timeout=self.timeout)
        return {"host": _address(), "port": self._store.port}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[SenderAddress]
    ) -> tuple[dict[str, list[object]], dict[str, list[object]]]:
        """Return ranks: the first training process sends, engines' processes receive, the others have no part."""
        world_size = 1 + rollout_world_size

        def arguments(ranks: list[int]) -> dict[str, list[object]]:
            return {"rank": [*ranks], "world_size": [world_size] * len(ranks), "sender": [metadata[0]] * len(ranks)}

        return arguments([SENDER] + [-1] * (actor_wg_world_size - 1)), arguments(list(range(1, world_size)))

    def init_process_group(self, rank: int, world_size: int, sender: SenderAddress) -> None:
        """Connect to all other processes, and return when they are connected."""
        if rank < 0:
            return
        if self._store is None:
            self._store = TCPStore(sender["host"], sender["port"], is_master=False, timeout=self.timeout)
        gloo: Any = ProcessGroupGloo
        options = gloo._Options()
        # By default gloo listens on the address of the host's name, which other machines may not reach.
        options._devices = [gloo.create_device(hostname=_address())]
        options._timeout = self.timeout
        self._connection = Connection(gloo(self._store, rank, world_size, options))

    def finalize(self) -> None:
        """Disconnect until the next sync."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._store = None

    def is_idle(self) -> bool:
        """Return True if no weights are being sent: after a failed sync, the next one must wait for that."""
        return not self._is_sending

    @torch.no_grad()
    async def send_weights(self, weights: Iterable[tuple[str, Tensor]], global_steps: int | None = None) -> None:
        """Send all weights, a bucket at a time; processes without a part in it still help to gather them.

        Raises the error of the first bucket that does not arrive, but only after all weights are gathered, as the other
        training processes would wait for this one.
        """
        connection = self._connection
        error: RuntimeError | None = None
        bucket: Bucket = []
        size = 0

        async def send(bucket: Bucket) -> None:
            nonlocal error
            if connection is None or error is not None:
                return
            try:
                await asyncio.to_thread(self._send, connection, bucket)
            except RuntimeError as failure:
                error = failure
                # Receivers need not wait for the remaining buckets.
                connection.close()

        self._is_sending = True
        try:
            async for meta, chunk in split_weight_chunks(weights, self.bucket_size):
                if connection is None or error is not None:
                    continue
                if size + meta.chunk_size > self.bucket_size:
                    await send(bucket)
                    bucket, size = [], 0
                bucket.append((meta, chunk.cpu()))
                size += meta.chunk_size
            await send(bucket)
            await send([])
        finally:
            self._is_sending = False
        if error is not None:
            raise error

    def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, Tensor]]:
        """Wait for all weights and return their names and values in the order in which they are sent.

        All have arrived before the engine gets the first one: otherwise it would wait for the rest of a failed
        transfer.
        """
        assert self._connection is not None
        chunks: list[tuple[TensorMeta, Tensor]] = []
        try:
            while bucket := self._receive(self._connection):
                chunks += bucket
        except RuntimeError:
            self._connection.close()
            raise

        async def received() -> AsyncIterator[tuple[TensorMeta, Tensor]]:
            for chunk in chunks:
                yield chunk

        weights: AsyncIterator[tuple[str, Tensor]] = merge_weight_chunks(received(), self.bucket_size)
        return weights

    def _send(self, connection: Connection, bucket: Bucket) -> None:
        about = torch.frombuffer(bytearray(_encode([meta for meta, _ in bucket])), dtype=torch.uint8)
        data = torch.cat([chunk for _, chunk in bucket]) if bucket else torch.empty(0, dtype=torch.uint8)
        connection.broadcast(torch.tensor([about.numel(), data.numel()]), self.timeout)
        connection.broadcast(torch.cat([about, data]), self.timeout)

    def _receive(self, connection: Connection) -> Bucket:
        sizes = torch.zeros(2, dtype=torch.int64)
        connection.broadcast(sizes, self.timeout)
        message = torch.empty(int(sizes.sum()), dtype=torch.uint8)
        connection.broadcast(message, self.timeout)
        about, data = torch.split(message, sizes.tolist())
        metas = _decode(about.numpy().tobytes())
        chunks = torch.split(data, [meta.chunk_size for meta in metas]) if metas else ()
        # Copies, as tensors of numbers require aligned memory.
        return [(meta, chunk.clone()) for meta, chunk in zip(metas, chunks, strict=True)]


def _encode(metas: list[TensorMeta]) -> bytes:
    """Encode as JSON: unpickling could run code that another process on the network sends."""
    records = [
        (meta.name, list(meta.shape), str(meta.dtype).removeprefix("torch."), meta.chunk_offset, meta.chunk_size)
        for meta in metas
    ]
    return json.dumps(records).encode()


def _decode(encoded: bytes) -> list[TensorMeta]:
    """Undo `_encode`. Raises ValueError for anything else."""
    metas = []
    for name, shape, type_name, chunk_offset, chunk_size in json.loads(encoded):
        dtype = getattr(torch, str(type_name), None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{type_name!r} is no type of tensors")
        metas.append(TensorMeta(name, torch.Size(shape), dtype, chunk_offset, chunk_size, None))
    return metas


def _address() -> str:
    return str(ray.util.get_node_ip_address().strip("[]"))
