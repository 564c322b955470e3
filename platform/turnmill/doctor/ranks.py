"""Check of the communication between training processes: sums of gradients among all ranks of this machine."""

import os
import time
from datetime import timedelta
from pathlib import Path
from statistics import median

from turnmill.doctor.results import CheckFailedError, Machine

MIB = 2**20
NUM_BYTES = {"cpu": 16 * MIB, "cuda": 256 * MIB}
REPEATS = 5
SECONDS = 120.0


def ranks(machine: Machine) -> str:
    """All-reduce between ranks: one per GPU with NCCL, two with gloo on a CPU; sums must be right."""
    import torch
    from torch.multiprocessing.spawn import spawn

    backend, world = ("nccl", torch.cuda.device_count()) if machine.device == "cuda" else ("gloo", 2)
    folder = machine.scratch / "ranks"
    folder.mkdir()
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        spawn(_all_reduce, args=(world, backend, machine.device, folder), nprocs=world)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise CheckFailedError(
            f"{backend} between {world} ranks: {str(error).strip().splitlines()[-1]}",
            "With NCCL_DEBUG=INFO it says what it tries; NCCL_SOCKET_IFNAME names the network interface.",
        ) from error
    seconds = max(float((folder / str(rank)).read_text()) for rank in range(world))
    version = " {}.{}.{}".format(*torch.cuda.nccl.version()) if backend == "nccl" else ""  # type: ignore[no-untyped-call]
    # Each rank sends and receives 2 (world - 1) / world of the bytes, as nccl-tests counts it.
    rate = NUM_BYTES[machine.device] * 2 * (world - 1) / world / seconds
    speed = f", {rate / 1e9:.2f} GB/s" if world > 1 else ""
    return f"{backend}{version}, {world} rank{'s' * (world > 1)}{speed}"


def _all_reduce(rank: int, world: int, backend: str, device: str, folder: Path) -> None:
    """Measure one rank's all-reduce and write its median duration in seconds to a file."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    distributed.init_process_group(
        backend,
        init_method=(folder / "rendezvous").as_uri(),
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=SECONDS),
    )
    durations = []
    for _ in range(REPEATS):
        values = torch.full((NUM_BYTES[device] // 4,), float(rank + 1), device=device)
        _wait(device)
        started = time.perf_counter()
        distributed.all_reduce(values)
        _wait(device)
        durations.append(time.perf_counter() - started)
        if not bool((values == world * (world + 1) / 2).all()):
            raise ValueError("a sum over all ranks is wrong")
    distributed.destroy_process_group()
    (folder / str(rank)).write_text(repr(median(durations)))


def _wait(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()
