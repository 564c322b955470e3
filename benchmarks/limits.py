"""How long a task is beyond a limit before it has ended, in the sandbox with and without namespaces.

OMP_NUM_THREADS=1 .venv/bin/python benchmarks/limits.py [--tries 10]

Each program notes the time when it begins to hold a tenth more than its limit allows, and then keeps it for 20 s. The
time ends when the result is there: it includes the end of all processes.
"""

import argparse
import asyncio
import statistics
import time

from runs import table

from turnmill.sandboxes.base import MIB, Limits, Python, SandboxTask
from turnmill.sandboxes.fork import ForkSandbox

LIMITS = Limits(
    seconds=20, cpu_seconds=2, memory_bytes=256 * MIB, file_bytes=16 * MIB, processes=32, output_bytes=MIB // 16
)
PREAMBLE = """
import ctypes, mmap, os, signal, socket, sys, threading, time
M = 1 << 20
libc = ctypes.CDLL(None)
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long]
ready, tell = os.pipe()
def in_children(number, work):
    for _ in range(number):
        if os.fork() == 0:
            try: kept = work(); os.write(tell, b"x"); time.sleep(20)
            finally: os.write(tell, b"r"); os._exit(1)
    if any([os.read(ready, 1) == b"r" for _ in range(number)]): os._exit(1)
def relay(seconds):
    r, w = os.pipe(); os.write(w, b"xxx")
    for number in range(int(seconds / 0.02)):
        os.read(r, 1)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]: pass
        except ChildProcessError: pass
        if os.fork() == 0:
            end = time.process_time() + 0.02
            while time.process_time() < end: pass
            os.write(w, b"x"); os._exit(0)
"""
PROGRAMS = {
    ("memory", "private memory of 3 processes"): "in_children(3, lambda: bytearray(b'x') * (95 * M))",
    ("memory", "memory behind threads that have ended"): """
def work():
    global kept
    kept = bytearray(b"x") * (95 * M); os.write(tell, b"x"); time.sleep(20)
for _ in range(3):
    if os.fork() == 0:
        threading.Thread(target=work).start(); libc.syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
for _ in range(3): os.read(ready, 1)
""",
    ("memory", "shared memory"): "in_children(3, lambda: mmap.mmap(-1, 95 * M).write(b'x' * (95 * M)))",
    ("memory", "buffers of pipes"): """
x = bytearray(b"x") * (240 * M)
def work():
    kept = [os.pipe() for _ in range(110)]
    for _, writing in kept: os.write(writing, bytes(65536))
    return kept
in_children(8, work)
""",
    ("files", "files"): "for n in range(18): open(f'{n}', 'wb').write(b'x' * M)",
    ("files", "deleted files that are open"): """
kept = []
for _ in range(18):
    f = open("f", "wb"); os.unlink("f"); f.write(b"x" * M); f.flush(); kept.append(f)
""",
    ("files", "deleted files of which a page is mapped"): """
for _ in range(18):
    f = os.open("f", os.O_RDWR | os.O_CREAT); os.write(f, b"x" * M); libc.mmap(None, 4096, 1, 2, f, 0)
    os.unlink("f"); os.close(f)
""",
    ("processes", "threads"): """
threading.stack_size(65536)
for _ in range(36): threading.Thread(target=time.sleep, args=(20,)).start()
""",
    ("cpu", "children that are waited for"): "relay(2.2); print(time.monotonic(), flush=True); relay(20)",
    ("cpu", "children that nobody waits for"): """
signal.signal(signal.SIGCHLD, signal.SIG_IGN); relay(2.2); print(time.monotonic(), flush=True); relay(20)
""",
}


async def measure(sandbox: ForkSandbox, program: str, tries: int) -> str:
    """Return the median and the longest time beyond the limit in milliseconds, or that the program was refused."""
    source = f"{PREAMBLE}\n{program}\nprint(time.monotonic(), flush=True)\ntime.sleep(20)"
    times = []
    for _ in range(tries):
        result = await sandbox.run(SandboxTask(Python(source), limits=LIMITS))
        ended = time.monotonic()
        if result.stdout and result.limit in (None, "time"):
            return "not ended"
        if result.stdout:
            times.append((ended - float(result.stdout.split()[0])) * 1e3)
        elif result.limit in (None, "time"):
            return "refused"
    return f"{statistics.median(times):.0f} ({max(times):.0f})" if times else "ended before"


async def measure_all(tries: int) -> None:
    """Print a table."""
    sandboxes = [ForkSandbox(), ForkSandbox(namespaces=False)]
    try:
        rows = [
            (limit, what, *[await measure(sandbox, program, tries) for sandbox in sandboxes])
            for (limit, what), program in PROGRAMS.items()
        ]
    finally:
        for sandbox in sandboxes:
            await sandbox.close()
    print(table(("limit", "held", "ms beyond it: median (longest)", "without namespaces"), rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=10)
    asyncio.run(measure_all(parser.parse_args().tries))


if __name__ == "__main__":
    main()
