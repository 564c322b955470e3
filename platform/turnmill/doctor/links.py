"""Check of the links between machines: sums among all of their ranks, and the rate from each machine to each other."""

import json
import os
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from statistics import median

from turnmill.doctor.ranks import NUM_BYTES, REPEATS, all_reduce_rate, all_reduce_seconds, backend_name, wait_for_device
from turnmill.doctor.results import CheckFailedError, Machine, Peers

WAY_OUT = (
    "All machines need the same number of GPUs and must reach one another on every port. With NCCL_DEBUG=INFO it says "
    "what it tries; NCCL_SOCKET_IFNAME and NCCL_IB_HCA name the network interfaces."
)


def links(machine: Machine) -> str:
    """All-reduce among the ranks of all machines, and messages from each machine to each other, over all GPUs."""
    import torch
    from torch.multiprocessing.spawn import spawn

    assert machine.peers is not None
    local = torch.cuda.device_count() if machine.device == "cuda" else 1
    folder = machine.scratch / "links"
    folder.mkdir()
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        spawn(_measure, args=(machine.peers, local, machine.device, folder), nprocs=local)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise CheckFailedError(
            f"{machine.peers.number} machines of {_ranks(local)}: {str(error).strip().splitlines()[-1]}", WAY_OUT
        ) from error
    found = json.loads((folder / "0").read_text())
    return _sentence(found, machine.peers.number, local, machine.device)


def _sentence(found: Mapping[str, object], machines: int, local: int, device: str) -> str:
    """Return what was found among all machines; every one of them says the same."""
    rates = rates_of_links(found["links"], local, NUM_BYTES[device])  # type: ignore[arg-type]
    (first, second), slowest = min(rates.items(), key=lambda item: item[1])
    sums = all_reduce_rate(max(found["sums"]), machines * local, device)  # type: ignore[call-overload]
    return (
        f"{backend_name(device)}, {machines} machines of {_ranks(local)}: sums {sums / 1e9:.2f} GB/s; "
        f"links {median(rates.values()) / 1e9:.2f} GB/s (median), "
        f"slowest {slowest / 1e9:.2f} GB/s, from machine {first} to {second}"
    )


def _ranks(number: int) -> str:
    return f"{number} rank{'s' * (number > 1)}"


def rates_of_links(durations: list[tuple[int, int, float]], local: int, num_bytes: int) -> dict[tuple[int, int], float]:
    """Return bytes per second from each machine to each other, of (from, to, seconds) of all ranks.

    The ranks of a machine send at the same time: a link has the bytes of all, and the duration of the last.
    """
    slowest: dict[tuple[int, int], float] = {}
    for first, second, seconds in durations:
        slowest[first, second] = max(seconds, slowest.get((first, second), 0.0))
    return {link: local * num_bytes / seconds for link, seconds in slowest.items()}


def _measure(local_rank: int, peers: Peers, local: int, device: str, folder: Path) -> None:
    """Measure what one rank sees, gather that of all, and write it to a file."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(local_rank)
    world = peers.number * local
    distributed.init_process_group(
        backend_name(device).split()[0],
        init_method=f"tcp://{peers.master}",
        rank=peers.rank * local + local_rank,
        world_size=world,
        timeout=timedelta(seconds=peers.seconds),
    )
    own = {
        "sums": all_reduce_seconds(world, device),
        "links": [
            ((peers.rank + distance) % peers.number, _send(peers, distance, local, local_rank, device))
            for distance in range(1, peers.number)
        ],
    }
    of_all: list[dict[str, object]] = [{} for _ in range(world)]
    distributed.all_gather_object(of_all, own)
    distributed.destroy_process_group()
    found = {
        "sums": [each["sums"] for each in of_all],
        "links": [(rank // local, *link) for rank, each in enumerate(of_all) for link in each["links"]],  # type: ignore[attr-defined]
    }
    (folder / str(local_rank)).write_text(json.dumps(found))


def _send(peers: Peers, distance: int, local: int, local_rank: int, device: str) -> float:
    """Send to the machine at a distance and receive from the one opposite, rank to rank; return the median seconds."""
    import torch
    from torch import distributed

    to, back = (peers.rank + distance) % peers.number, (peers.rank - distance) % peers.number
    sent = torch.full((NUM_BYTES[device] // 4,), float(peers.rank), device=device)
    received = torch.empty_like(sent)
    durations = []
    for _ in range(REPEATS):
        distributed.barrier()
        wait_for_device(device)
        started = time.perf_counter()
        both = [
            distributed.P2POp(distributed.isend, sent, to * local + local_rank),
            distributed.P2POp(distributed.irecv, received, back * local + local_rank),
        ]
        for request in distributed.batch_isend_irecv(both):
            request.wait()
        wait_for_device(device)
        durations.append(time.perf_counter() - started)
        if not bool((received == back).all()):
            raise ValueError(f"a message from machine {back} arrived changed")
    return median(durations)
