"""Garbage collection in processes of many objects."""

import subprocess
import sys

COUNT = """
import gc
from turnmill.core.garbage import collect_rarely
{call}
collections = []
gc.callbacks.append(lambda phase, info: collections.append(info["generation"]))
class Node:
    pass
held = []
for _ in range(150_000):
    node = Node()
    node.itself = node
    held.append(node)
held.clear()
gc.callbacks.clear()
print(len(collections), gc.get_freeze_count() > 0, gc.collect() > 0)
"""


def collections(call: str) -> tuple[int, bool, bool]:
    """Return how often a process collected, whether its first objects are left out, and whether cycles still end."""
    done = subprocess.run([sys.executable, "-c", COUNT.format(call=call)], capture_output=True, text=True, check=True)
    number, frozen, found = done.stdout.split()
    return int(number), frozen == "True", found == "True"


def test_garbage_is_collected_a_hundred_times_less_often_and_still_collected():
    usual, rarely = collections(""), collections("collect_rarely()")

    assert rarely[1:] == (True, True)
    assert not usual[1]
    assert 0 < rarely[0] < usual[0] / 50
