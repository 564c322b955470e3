"""Landlock rules: the files that supervisors and tasks may access, and the rights to them."""

import os
import stat
from collections.abc import Mapping
from contextlib import suppress

from turnmill.sandboxes import kernel
from turnmill.sandboxes.barriers import Barriers
from turnmill.sandboxes.visible_paths import DEVICES, ZERO, list_only_paths, readable_paths

_READ = kernel.EXECUTE | kernel.READ_FILE | kernel.READ_DIR
_DEVICE = kernel.READ_FILE | kernel.WRITE_FILE | kernel.IOCTL_DEV

Rules = list[tuple[int, int]]
"""Pairs of an open descriptor and the rights to files below it."""


def open_rules(packages: list[str], tasks: str, *, own_root: bool) -> tuple[Rules, Rules]:
    """Return exact rules for the supervisors, and a few wider rules for the tasks, which they inherit.

    In a root of their own, /dev/zero is another device; elsewhere it is refused, as its mappings are shared memory.
    """
    rights = dict.fromkeys(list_only_paths(packages), kernel.READ_DIR)
    rights |= dict.fromkeys(readable_paths(packages), _READ)
    devices = [path for path in DEVICES if own_root or path != ZERO]
    rights |= dict.fromkeys(devices, _DEVICE)
    supervisors = {**rights, tasks: kernel.ALL_FILE_RIGHTS, "/proc": _READ}
    return _open(supervisors), _open(widen(rights, os.path.realpath(tasks)))


def widen(rights: Mapping[str, int], tasks: str) -> dict[str, int]:
    """Merge rights into those of top-level folders, except for folders that contain the tasks."""
    wide: dict[str, int] = {}
    for path, access in rights.items():
        top = "/" + path.split("/", 2)[1]
        target = path if tasks.startswith(f"{top}/") else top
        wide[target] = wide.get(target, 0) | access
    return wide


def _open(rights: Mapping[str, int]) -> Rules:
    """Open each path; paths that do not exist are left out."""
    rules = []
    for path, access in rights.items():
        with suppress(OSError):
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
            rules.append((descriptor, access if is_folder else access & kernel.FILE_RIGHTS))
    return rules


def build_ruleset(barriers: Barriers, rules: Rules, workspace: str | None = None) -> int:
    """Return the descriptor of a Landlock ruleset that allows the rules, and everything in the workspace."""
    scopes = kernel.SCOPE_SIGNALS | kernel.SCOPE_ABSTRACT_SOCKETS
    workspace_rules = [] if workspace is None else _open({workspace: kernel.ALL_FILE_RIGHTS})
    all_rules = [*rules, *workspace_rules]
    try:
        return kernel.landlock_ruleset(barriers.landlock_abi, all_rules, tcp=not barriers.network, scopes=scopes)
    finally:
        for descriptor, _ in workspace_rules:
            os.close(descriptor)
