"""Attacks on a persistent worker and on the task after it, in a throw-away container: `persistent_worker_runner.py`.

Each is a block of shell lines. A second block follows in the same worker, unless a limit has ended it, and reports
what the first one left. Prints JSON.
"""

import asyncio
import json
import os
import secrets
import sys
from dataclasses import replace
from pathlib import Path

from support import container
from turnmill.sandboxes.base import MIB, Function, Limits, SandboxTask
from turnmill.sandboxes.confinement import FIRST_USER, NUM_USERS
from turnmill.sandboxes.fork import ForkSandbox
from turnmill.tools.sandboxed.packing import pack, unpack

LIMITS = Limits(seconds=4, cpu_seconds=2, memory_bytes=256 * MIB, file_bytes=8 * MIB, processes=24, output_bytes=MIB)
MARK = str(10**8 + secrets.randbelow(10**8))
ATTACH = """python3 -c "
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def reaches(*call): return libc.syscall(*map(ctypes.c_long, call)) != -1
print('REACHED' if any((
    reaches(101, 16, 1, 0, 0),               # ptrace: attach
    reaches(101, 0x4206, 1, 0, 0),           # ptrace: seize
    reaches(310, 1, 0, 0, 0, 0, 0),          # process_vm_readv
    reaches(438, libc.syscall(434, 1, 0), 1, 0),  # pidfd_getfd
    reaches(302, 1, 7, 0, 0),                # prlimit64
    reaches(312, 1, 1, 0, 0, 0),             # kcmp
    reaches(203, 1, 8, 0),                   # sched_setaffinity
)) else 'refused')
"
for file in mem environ maps fd cmdline; do cat /proc/1/$file && echo REACHED; done 2>/dev/null"""
ATTACKS = {
    "all signals to the worker": "for n in $(seq 64); do kill -$n 1; kill -$n $PPID; done 2>/dev/null",
    "SIGKILL to all processes": "kill -KILL -1",
    "memory and descriptors of the worker": ATTACH,
    "inherited descriptors": """python3 -c "
import os
for n in [*range(3, 199), *range(200, 256)]:
    try: os.fstat(n); print('REACHED', n)
    except OSError: pass
" """,
    "modules that shadow the standard library": """for name in subprocess json shlex os select; do
for place in . /tmp $TMPDIR; do echo 'print("REACHED")' > $place/$name.py; done 2>/dev/null
done""",
    "background processes": f"""setsid sleep {MARK} &
(setsid bash -c 'trap "" TERM HUP; sleep {MARK} & disown; sleep {MARK}' &)
for i in 1 2 3; do (sleep 0 &); done; nohup sleep {MARK} >/dev/null 2>&1 &""",
    "files outside the home": """echo x > $HOME/../left; mkdir $HOME/../more; mv $HOME $HOME/../other
echo x > $TMPDIR/left
chmod 777 $HOME/.. && echo REACHED; rmdir $HOME/../tmp && mkdir $HOME/../tmp && echo REACHED""",
    "folders without permissions": "mkdir -p d/e; echo x > d/e/f; chmod 000 d/e d $TMPDIR .",
    "a deep tree": "for i in $(seq 200); do mkdir d && cd d || break; done; echo x > f",
    "changed settings of the shell": "export LEFT=x; umask 777; ulimit -n 8; set -o noclobber",
    "a fork bomb": "f() { f | f & }; f; sleep 3",
    "too much memory": "for i in 1 2 3 4; do "
    "python3 -c 'x = bytearray(99 << 20); import time; time.sleep(30)' & done; wait",
    "too much CPU time": "for i in 1 2 3; do (while :; do :; done) & done; wait",
    "too many bytes of files": "for i in 1 2 3 4; do head -c 4M /dev/zero > $i & done; wait; sleep 1",
    "an endless loop": "trap '' TERM INT; while :; do sleep 1; done",
}
SECONDS = {"too much memory": 30}
"""Time of attacks that need several processes at once, which start late on a busy machine."""

FINDINGS = """pwd; ls -A . .. $TMPDIR; echo "[$LEFT] $(umask) $(ulimit -n) $-"
python3 -c 'import subprocess, json, shlex, os, select'
for p in $(seq 2 400); do kill -0 $p 2>/dev/null && [ $p != $$ ] && echo "process $p"; done"""


def block(*lines: str, state: dict[str, bytes], join: bool = False, seconds: int = 3) -> SandboxTask:
    """Return a task as the tool bash_terminal makes it."""
    settings = {
        "seconds": seconds,
        "cpu_seconds": 2,
        "characters": 100_000,
        "home_bytes": MIB,
        "home_files": 100,
        "join": join,
    }
    parts = {"lines": json.dumps(lines).encode(), "state": pack(state), "limits": json.dumps(settings).encode()}
    return SandboxTask(
        Function("turnmill.tools.sandboxed.shell:run", pack(parts), persistent=True),
        limits=replace(LIMITS, seconds=seconds + 1),
    )


def processes() -> set[int]:
    """Return the processes of the users of tasks, and those with the mark."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if FIRST_USER <= entry.stat().st_uid < FIRST_USER + NUM_USERS or marked(entry):
                found.add(int(entry.name))
        except OSError:
            continue
    return found


def marked(entry: Path) -> bool:
    """Return whether a process has the mark."""
    return MARK.encode() in (entry / "cmdline").read_bytes()


async def run_all() -> dict[str, dict[str, object]]:
    """Return the findings on each attack."""
    findings: dict[str, dict[str, object]] = {}
    sandbox = ForkSandbox(preload=["turnmill.tools.sandboxed.shell"], spares=1)
    try:
        barriers = await sandbox.start()
        await sandbox.run(block("true", state={}))
        clean = (await sandbox.run(block(FINDINGS, state={}))).stdout.decode()
        for name, attack in ATTACKS.items():
            before = processes()
            result = await sandbox.run(block(attack, "true", state={}, seconds=SECONDS.get(name, 3)))
            between = processes()
            kept = unpack(unpack(result.value)["written"]) if result.value else {}
            joined = await sandbox.run(block("echo 'a", "b'", state=kept, join=True))
            after = await sandbox.run(block(FINDINGS, state={}))
            findings[name] = {
                "output": result.stdout.decode(errors="replace")[-2000:] + result.stderr.decode(errors="replace"),
                "limit": result.limit,
                "answered": result.value is not None,
                "survived": before == between,
                "left": sorted(between - before),
                "joins": joined.stdout.decode().endswith("a\nb\n"),
                "after": after.stdout.decode().replace(home(after), home(clean)) if after.value else repr(after),
            }
        findings["clean"] = {"text": clean, "holds": barriers.allows_persistent_workers}
    finally:
        await sandbox.close()
    return findings


def home(seen: object) -> str:
    """Return the line after the first prompt."""
    text = seen if isinstance(seen, str) else seen.stdout.decode()
    return text.splitlines()[1] if len(text.splitlines()) > 1 else "?"


def main() -> None:
    container.enter()
    child = os.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, __file__, "--inside"])
    while os.wait()[0] != child:
        pass  # The first process of a container inherits orphans.


if __name__ == "__main__":
    if sys.argv[1:] == ["--inside"]:
        print(json.dumps(asyncio.run(run_all())))
    else:
        main()
