from turnmill.sandboxes.barriers import Barriers
from turnmill.sandboxes.base import MIB, Limits

LIMITS = Limits(memory_bytes=256 * MIB, file_bytes=100 * MIB)


def test_a_task_whose_files_are_in_memory_takes_memory_for_them():
    assert Barriers(landlock_abi=7).memory_bytes(LIMITS) == 256 * MIB
    assert Barriers(own_mounts=True).memory_bytes(LIMITS) == 366 * MIB


def test_a_workspace_in_memory_is_full_only_beyond_the_limit_at_which_the_monitor_ends_a_task():
    assert Barriers(own_mounts=True).workspace_bytes(100 * MIB) == 110 * MIB
