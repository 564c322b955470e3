"""Check of the links between machines: sums among all of their ranks, and the rate from each machine to each other."""

import json
import os
import time
from pathlib import Path
from statistics import median

from turnmill.doctor.ranks import (
    NUM_BYTES,
    REPEATS,
    all_reduce_rate,
    all_reduce_seconds,
    backend_with_version,
    in_words,
    process_group,
    wait_for_device,
)
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
    number, who = machine.peers.number, f"{machine.peers.number} machines of {in_words(local)}"
    folder = machine.scratch / "links"
    folder.mkdir()
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        spawn(_measure, args=(machine.peers, local, machine.device, folder), nprocs=local)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise CheckFailedError(f"{who}: {str(error).strip().splitlines()[-1]}", WAY_OUT) from error
    # Every rank has gathered what all have measured.
    seconds, durations = json.loads((folder / "0").read_text())
    sums = all_reduce_rate(seconds, number * local, machine.device)
    rates = rates_of_links(durations, local, NUM_BYTES[machine.device])
    (first, second), slowest = min(rates.items(), key=lambda item: item[1])
    return (
        f"{backend_with_version(machine.device)}, {who}: sums {sums / 1e9:.2f} GB/s; "
        f"links {median(rates.values()) / 1e9:.2f} GB/s (median), "
        f"slowest {slowest / 1e9:.2f} GB/s, from machine {first} to {second}"
    )


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
    from torch import distributed

    rank, world = peers.rank * local + local_rank, peers.number * local
    with process_group(rank, local_rank, world, device, f"tcp://{peers.master}", peers.seconds):
        seconds = all_reduce_seconds(world, device)
        sent = [
            (peers.rank, (peers.rank + distance) % peers.number, _send(peers, distance, local, local_rank, device))
            for distance in range(1, peers.number)
        ]
        of_all: list[tuple[float, list[tuple[int, int, float]]]] = [(seconds, sent)] * world
        distributed.all_gather_object(of_all, (seconds, sent))
    slowest, durations = max(each for each, _ in of_all), [link for _, found in of_all for link in found]
    (folder / str(local_rank)).write_text(json.dumps([slowest, durations]))


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
