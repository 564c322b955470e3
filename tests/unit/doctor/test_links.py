"""Links between machines, of which each is a process of this one."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from turnmill.core.ports import free_port
from turnmill.doctor.links import links, rates_of_links
from turnmill.doctor.results import CheckFailedError, Machine, Peers


def machine(folder: Path, number: int, rank: int, port: int, **changes: float) -> Machine:
    (own := folder / str(rank)).mkdir()
    return Machine("cpu", own, scratch=own, peers=Peers(number, rank, f"127.0.0.1:{port}", **changes))


def test_machines_find_the_same_rates(tmp_path: Path):
    port = free_port()
    machines = [machine(tmp_path, 2, rank, port) for rank in range(2)]

    with ThreadPoolExecutor(2) as pool:
        found = set(pool.map(links, machines))

    (sentence,) = found
    assert sentence.startswith("gloo, 2 machines of 1 rank: sums ")
    assert "GB/s (median), slowest " in sentence


def test_a_machine_that_does_not_come_ends_the_check(tmp_path: Path):
    with pytest.raises(CheckFailedError, match="2 machines of 1 rank: ") as error:
        links(machine(tmp_path, 2, 0, free_port(), seconds=2.0))

    assert "NCCL_SOCKET_IFNAME" in error.value.way_out


def test_a_link_has_the_bytes_of_all_ranks_and_the_duration_of_the_last():
    durations = [(0, 1, 0.5), (0, 1, 1.0), (1, 0, 0.25), (1, 0, 0.25)]

    assert rates_of_links(durations, 2, 100) == {(0, 1): 200.0, (1, 0): 800.0}
