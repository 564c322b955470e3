"""Check of the communication between training processes: sums of gradients among all ranks of this machine."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from statistics import median

from turnmill.doctor.results import CheckFailedError, Machine

MIB = 2**20
NUM_BYTES = {"cpu": 16 * MIB, "cuda": 256 * MIB}
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
REPEATS = 5
SECONDS = 120.0


def ranks(machine: Machine) -> str:
    """All-reduce between ranks: one per GPU with NCCL, two with gloo on a CPU; sums must be right."""
    import torch
    from torch.multiprocessing.spawn import spawn

    world = torch.cuda.device_count() if machine.device == "cuda" else 2
    folder = machine.scratch / "ranks"
    folder.mkdir()
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        spawn(_all_reduce, args=(world, machine.device, folder), nprocs=world)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise CheckFailedError(
            f"{BACKENDS[machine.device]} between {world} ranks: {str(error).strip().splitlines()[-1]}",
            "With NCCL_DEBUG=INFO it says what it tries; NCCL_SOCKET_IFNAME names the network interface.",
        ) from error
    seconds = max(float((folder / str(rank)).read_text()) for rank in range(world))
    speed = f", {all_reduce_rate(seconds, world, machine.device) / 1e9:.2f} GB/s" if world > 1 else ""
    return f"{backend_with_version(machine.device)}, {in_words(world)}{speed}"


def in_words(number: int) -> str:
    """Return a number of ranks, such as "2 ranks"."""
    return f"{number} rank{'s' * (number > 1)}"


def backend_with_version(device: str) -> str:
    """Return the name of the backend of ranks on this device, and its version if it has one."""
    import torch

    version = " {}.{}.{}".format(*torch.cuda.nccl.version()) if device == "cuda" else ""  # type: ignore[no-untyped-call]
    return BACKENDS[device] + version


def all_reduce_rate(seconds: float, world: int, device: str) -> float:
    """Return the bytes per second that each rank sends: 2 (world - 1) / world of all bytes, as nccl-tests counts."""
    return NUM_BYTES[device] * 2 * (world - 1) / world / seconds


def _all_reduce(rank: int, world: int, device: str, folder: Path) -> None:
    """Measure one rank's all-reduce and write its duration to a file."""
    with process_group(rank, rank, world, device, (folder / "rendezvous").as_uri(), SECONDS):
        (folder / str(rank)).write_text(repr(all_reduce_seconds(world, device)))


@contextmanager
def process_group(
    rank: int, local_rank: int, world: int, device: str, init_method: str, seconds: float
) -> Iterator[None]:
    """Be a rank of a process group, on the GPU of its number on this machine if there are GPUs."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(local_rank)
    distributed.init_process_group(
        BACKENDS[device], init_method=init_method, rank=rank, world_size=world, timeout=timedelta(seconds=seconds)
    )
    yield
    distributed.destroy_process_group()


def all_reduce_seconds(world: int, device: str) -> float:
    """Return the median duration of an all-reduce, whose sums must be right, in a process group that exists."""
    import torch
    from torch import distributed

    durations = []
    for _ in range(REPEATS):
        values = torch.full((NUM_BYTES[device] // 4,), float(distributed.get_rank() + 1), device=device)
        wait_for_device(device)
        started = time.perf_counter()
        distributed.all_reduce(values)
        wait_for_device(device)
        durations.append(time.perf_counter() - started)
        if not bool((values == world * (world + 1) / 2).all()):
            raise ValueError("a sum over all ranks is wrong")
    return median(durations)


def wait_for_device(device: str) -> None:
    """Wait until a GPU has done all its work."""
    import torch

    if device == "cuda":
        torch.cuda.synchronize()
