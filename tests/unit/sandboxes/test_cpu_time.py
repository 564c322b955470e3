import dataclasses

import pytest

from turnmill.sandboxes.cpu_time import TaskCpuTime, loses_children
from turnmill.sandboxes.measurements import Process

SUPERVISOR = 1


def process(pid: int, parent: int, faults: int = 100, children_faults: int = 0) -> Process:
    return Process(pid, parent, pid, 1, 0.0, faults, children_faults)


def by_pid(*processes: Process) -> dict[int, Process]:
    return {each.pid: each for each in processes}


SHELL, CHILD, GRANDCHILD = process(10, SUPERVISOR), process(11, 10), process(12, 11)


def shell(children_faults: int) -> Process:
    return dataclasses.replace(SHELL, children_faults=children_faults)


@pytest.mark.parametrize(
    ("before", "now", "waited_faults", "lost"),
    [
        pytest.param(by_pid(SHELL, CHILD), by_pid(SHELL, CHILD), 0, False, id="nothing has ended"),
        pytest.param(by_pid(SHELL, CHILD), by_pid(shell(100)), 0, False, id="the parent has waited"),
        pytest.param(by_pid(SHELL, CHILD), by_pid(shell(99)), 0, True, id="the parent has not waited"),
        pytest.param(by_pid(shell(100), CHILD), by_pid(shell(100)), 0, True, id="the parent has waited for others"),
        pytest.param(by_pid(SHELL, CHILD), {}, 200, False, id="all have been waited for here"),
        pytest.param(by_pid(SHELL, CHILD, GRANDCHILD), by_pid(shell(200)), 0, False, id="both parents have waited"),
        pytest.param(by_pid(SHELL, CHILD, GRANDCHILD), by_pid(shell(100)), 0, True, id="only one parent has waited"),
        pytest.param(by_pid(SHELL, CHILD, GRANDCHILD), by_pid(shell(100)), 100, False, id="an orphan ended here"),
    ],
)
def test_a_child_is_lost_if_nobody_learns_what_it_has_used(before, now, waited_faults, lost):
    assert loses_children(before, now, listed=list(now), waited_faults=waited_faults) is lost


def test_a_parent_that_ends_during_the_measurement_proves_nothing():
    assert not loses_children(by_pid(SHELL, CHILD), {}, listed=[SHELL.pid], waited_faults=0)


def test_a_group_has_the_cpu_time_of_processes_that_nobody_has_waited_for(tmp_path):
    usage = tmp_path / "cpuacct.usage"
    usage.write_text("3000000000\n")
    cpu_time = TaskCpuTime(0.0, now=0.0, group=str(tmp_path))
    usage.write_text("7500000000\n")

    assert cpu_time.add({}, [], now=1.0) == 4.5
