"""Attacks on the limits of a whole task: memory, disk, CPU time and processes that are easily not counted.

A program prints `held` if all of its processes have held too much at once for HOLD seconds. The sandbox notices within
a second (`benchmarks/limits.py`); on a machine with many waiting processes it takes longer.
"""

from attack_programs import Attack, prints

HELPERS = """
import fcntl, mmap, resource, threading
M = 1 << 20
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = libc.madvise.argtypes = libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
def mapped(size, flags, fd=-1, rights=3):
    address = libc.mmap(None, size, rights, flags, fd, 0)
    if address == ctypes.c_void_p(-1).value: raise OSError(ctypes.get_errno(), 'mmap')
    return address
def touch(address, size):
    for page in range(address, address + size, 4096): ctypes.c_char.from_address(page).value = 1
def hold(number, work):
    (said, say), (wait, go), pids = os.pipe(), os.pipe(), []
    for _ in range(number):
        pid = os.fork()
        if pid == 0:
            os.close(go)
            try: kept = work(); os.write(say, b'h'); os.read(wait, 1); time.sleep(HOLD); os._exit(0)
            except BaseException: os.write(say, b'r'); os._exit(1)
        pids.append(pid)
    os.close(say)
    # On a busy machine, the first would have ended before the last begins.
    heard = 0
    while heard < number and (more := os.read(said, number)): heard += len(more)
    os.close(go)
    print('held' if all(os.waitpid(pid, 0)[1] == 0 for pid in pids) else 'refused')
def files(size, use):
    kept = []
    for _ in range(size // M):
        f = os.open('f', os.O_RDWR | os.O_CREAT | os.O_EXCL); os.unlink('f'); os.write(f, b'x' * M)
        kept.append(use(f))
    return kept
"""

RELAY = """
r, w = os.pipe()
os.write(w, b'xxx')
for _ in range(220):
    os.read(r, 1)
    if os.fork() == 0:
        end = time.process_time() + 0.03
        while time.process_time() < end: pass
        os.write(w, b'x'); os._exit(0)
print('held')
"""
"""Three processes at a time, 220 in all, each of which uses 30 ms of CPU time."""


def _holds(name: str, program: str) -> Attack:
    return Attack(name, HELPERS + program, prints("held"))


LIMIT_ATTACKS = [
    # Memory.
    _holds(
        "holds shared memory in many processes",
        "def work(): m = mmap.mmap(-1, 100 * M); m.write(b'x' * len(m)); return m\nhold(4, work)",
    ),
    _holds(
        "holds mappings of /dev/zero",
        "def work():\n"
        "    fd = os.open('/dev/zero', os.O_RDWR); a = mapped(100 * M, 1, fd); touch(a, 100 * M)\n"
        "hold(4, work)",
    ),
    _holds(
        "unmaps all but a page of shared memory",
        "for _ in range(4):\n"
        "    a = mapped(100 * M, 0x21); touch(a, 100 * M); libc.munmap(a + 4096, 100 * M - 4096, 0)\n"
        "hold(1, lambda: None)",
    ),
    _holds(
        "unmaps all but a page of /dev/zero that it may only read",
        "for _ in range(4):\n"
        "    a = mapped(100 * M, 1, os.open('/dev/zero', os.O_RDONLY), 1)\n"
        "    sum(ctypes.c_char.from_address(p).value == b'x' for p in range(a, a + 100 * M, 4096))\n"
        "    libc.munmap(a + 4096, 100 * M - 4096, 0)\n"
        "hold(1, lambda: None)",
    ),
    _holds(
        "holds files in memory",
        "def work(): f = os.memfd_create('x'); os.write(f, b'x' * 100 * M); return f\nhold(4, work)",
    ),
    _holds(
        "holds System V segments",
        "libc.shmat.restype = ctypes.c_void_p\n"
        "def work():\n"
        "    s = libc.shmget(0, 100 * M, 0o1600); a = libc.shmat(s, None, 0)\n"
        "    libc.shmctl(s, 0, None)\n"
        "    if s < 0: raise OSError\n"
        "    touch(a, 100 * M)\n"
        "hold(4, work)",
    ),
    _holds(
        "holds memory in enlarged pipes",
        "def work():\n"
        "    x = bytearray(b'x') * (120 * M); kept = []\n"
        "    for _ in range(30):\n"
        "        r, w = os.pipe(); fcntl.fcntl(w, 1031, M); os.write(w, b'x' * M); kept.append((r, w))\n"
        "    return x, kept\n"
        "hold(2, work)",
    ),
    # The kernel gives a user 16,384 pages in pipes of this size, all programs of the machine together.
    _holds(
        "holds memory in many pipes",
        "x = bytearray(b'x') * (240 * M)\n"
        "def work():\n"
        "    kept = []\n"
        "    for _ in range(80): r, w = os.pipe(); os.write(w, b'x' * 4096 * 16); kept.append((r, w))\n"
        "    return kept\n"
        "hold(8, work)",
    ),
    _holds(
        "holds huge pages in pipes",
        "pipes = []\n"
        "for _ in range(24):\n"
        "    a = mapped(34 * M, 0x22); b = -(-a // (2 * M)) * 2 * M; libc.madvise(b, 32 * M, 14)\n"
        "    r, w = os.pipe(); pipes.append((r, w))\n"
        "    for page in range(b, b + 32 * M, 2 * M):\n"
        "        touch(page, 1); v = (ctypes.c_size_t * 2)(page, 1)\n"
        "        if libc.vmsplice(w, v, 1, 0) != 1: raise OSError(ctypes.get_errno(), 'vmsplice')\n"
        "    libc.munmap(a, 34 * M, 0)\n"
        "hold(1, lambda: None)",
    ),
    _holds(
        "holds pages of deleted files in pipes",
        "def pin(f):\n"
        "    r, w = os.pipe(); os.splice(f, w, 65536, 0); os.ftruncate(f, 0); os.close(f); return r, w\n"
        "kept = files(60 * M, pin); hold(1, lambda: None)",
    ),
    _holds(
        "holds memory in sockets",
        "def work():\n"
        "    kept = []\n"
        "    for _ in range(110):\n"
        "        for s in (pair := socket.socketpair()):\n"
        "            s.setblocking(False)\n"
        "            try:\n"
        "                while s.send(b'x' * 32768): pass\n"
        "            except BlockingIOError: pass\n"
        "        kept.append(pair)\n"
        "    return kept\n"
        "hold(10, work)",
    ),
    _holds(
        "enlarges the buffers of sockets",
        "a, b = socket.socketpair(); a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, M); hold(1, lambda: None)",
    ),
    _holds(
        "holds kernel memory for mappings",
        "def work():\n"
        "    a = mapped(200 * M, 0x22, rights=0)\n"
        "    for page in range(a, a + 200 * M, 8192): libc.mprotect(page, 4096, 1)\n"
        "hold(24, work)",
    ),
    _holds(
        "hides memory behind a thread that has ended",
        "def work():\n"
        "    def other(): x = bytearray(b'x') * (100 * M); time.sleep(HOLD + 0.2); os._exit(0)\n"
        "    threading.Thread(target=other).start(); call(TARGETS['exit'], 0)\n"
        "hold(4, work)",
    ),
    _holds(
        "hides from its monitor",
        "libc.prctl(4, 0, 0, 0, 0); kept = files(60 * M, lambda f: f); hold(1, lambda: None)",
    ),
    _holds(
        "executes a file that it may not read",
        "import shutil\n"
        "shutil.copyfile('/bin/sleep', 's'); f = os.open('s', 0); os.fchmod(f, 0o111); os.close(f)\n"
        "def work():\n"
        "    for n in files(60 * M, lambda f: f): os.set_inheritable(n, True)\n"
        "    os.execv('s', ['s', '1'])\n"
        "hold(1, work)",
    ),
    _holds(
        "locks ranges of files without end",
        "for n in range(10):\n"
        "    f = os.open(f'f{n}', os.O_RDWR | os.O_CREAT)\n"
        "    for k in range(1000): fcntl.lockf(f, fcntl.LOCK_EX, 1, 2 * k)\n"
        "def work():\n"
        "    try: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "    except OSError: return\n"
        "    raise ValueError('nothing is locked')\n"
        "hold(1, work)",
    ),
    _holds(
        "locks ranges of open files",
        "import struct\n"
        "for n in range(10):\n"
        "    f = os.open(f'f{n}', os.O_RDWR | os.O_CREAT)\n"
        "    for k in range(1000): fcntl.fcntl(f, 37, struct.pack('hhxxxxqqixxxx', 1, 0, 2 * k, 1, 0))\n"
        "hold(1, lambda: None)",
    ),
    _holds(
        "has locks taken by a process that ends",
        "f = os.open('f', os.O_RDWR | os.O_CREAT)\n"
        "pid = call(TARGETS['clone'], 0x400 | signal.SIGCHLD, 0, 0, 0, 0)\n"
        "if pid == 0:\n"
        "    for k in range(5000): fcntl.lockf(f, fcntl.LOCK_EX, 1, 2 * k)\n"
        "    os._exit(0)\n"
        "if pid > 0 and os.waitpid(pid, 0)[1] == 0: hold(1, lambda: None)",
    ),
    # Disk.
    _holds(
        "maps deleted files",
        "def keep(f): a = mapped(M, 2, f, 1); os.close(f); return a\nkept = files(60 * M, keep); hold(1, lambda: None)",
    ),
    _holds(
        "maps a page of each deleted file",
        "def keep(f): a = mapped(4096, 2, f, 1); os.close(f); return a\n"
        "kept = files(60 * M, keep); hold(1, lambda: None)",
    ),
    _holds(
        "executes deleted files",
        "import shutil, subprocess\n"
        "kept = []\n"
        "for _ in range(20):\n"
        "    shutil.copyfile('/bin/sleep', 's'); os.chmod(f := os.open('s', 0), 0o755); os.close(f)\n"
        "    open('s', 'ab').write(b'x' * 3 * M)\n"
        "    kept.append(subprocess.Popen(['./s', '1.2'])); os.unlink('s')\n"
        "print('held' if not any([p.wait() for p in kept]) else 'refused')",
    ),
    _holds(
        "hides deleted files in the descriptors of a thread",
        "libc.clone.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]\n"
        "stacks = [ctypes.create_string_buffer(M) for _ in range(6)]\n"
        "for stack in stacks:\n"
        "    kept = files(10 * M, lambda f: f); top = ctypes.addressof(stack) + M - 64\n"
        "    if libc.clone(ctypes.cast(libc.sleep, ctypes.c_void_p), top, 0x10b00, 5) < 0: raise OSError\n"
        "    for f in kept: os.close(f)\n"
        "hold(1, lambda: None)",
    ),
    _holds(
        "gives a thread descriptors of its own",
        "def other():\n"
        "    if call(TARGETS['close_range'], 1000, 1001, 2) == 0: kept.extend(files(60 * M, lambda f: f))\n"
        "    time.sleep(HOLD)\n"
        "kept = []; t = threading.Thread(target=other); t.start(); t.join(); print('held' if kept else 'refused')",
    ),
    _holds(
        "reserves blocks beyond the end by another call",
        "import struct\n"
        "for n in range(60):\n"
        "    f = os.open(f'f{n}', os.O_RDWR | os.O_CREAT)\n"
        "    fcntl.ioctl(f, 0x4030582A, struct.pack('hhxxxxqqiI16x', 0, 0, 0, M, 0, 0))\n"
        "hold(1, lambda: None)",
    ),
    _holds(
        "fills folders with links",
        "for n in range(6000): os.symlink('x' * 4000, f'{n}')\nhold(1, lambda: None)",
    ),
    _holds(
        "fills attributes of files",
        "f = os.open('f', os.O_RDWR | os.O_CREAT)\n"
        "for n in range(400): os.setxattr(f, f'user.{n}', b'x' * 60000)\n"
        "hold(1, lambda: None)",
    ),
    # CPU time.
    _holds(
        "uses CPU time in children that it ignores",
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n" + RELAY,
    ),
    _holds(
        "uses CPU time in children that nobody need wait for",
        "libc.sigaction(signal.SIGCHLD, (ctypes.c_long * 20)(0, *[0] * 16, 2), None)\n" + RELAY,
    ),
    _holds(
        "uses CPU time in orphans",
        RELAY.replace(
            "if os.fork() == 0:",
            "if (pid := os.fork()): os.waitpid(pid, 0)\n    elif os.fork(): os._exit(0)\n    else:",
        ),
    ),
    # Numbers.
    _holds(
        "starts too many threads",
        "for _ in range(200): threading.Thread(target=time.sleep, args=(HOLD + 0.2,)).start()\n"
        "time.sleep(HOLD); print('held', flush=True); os._exit(0)",
    ),
    _holds(
        "opens too many files",
        "files = resource.RLIMIT_NOFILE; resource.setrlimit(files, (resource.getrlimit(files)[1],) * 2)\n"
        "for _ in range(600): os.open('/dev/null', 0)\nhold(1, lambda: None)",
    ),
    _holds(
        "queues signals without end",
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(34, 64))\n"
        "libc.sigqueue.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p]\n"
        "if all(libc.sigqueue(os.getpid(), 40, 0) == 0 for _ in range(3000)): hold(1, lambda: None)",
    ),
    _holds(
        "creates timers without end",
        "timer = ctypes.c_void_p()\n"
        "if all(libc.timer_create(1, None, ctypes.byref(timer)) == 0 for _ in range(3000)): hold(1, lambda: None)",
    ),
    _holds(
        "takes the queues of asynchronous I/O",
        "context = ctypes.c_ulong(0)\n"
        "if call(TARGETS['io_setup'], 1000, ctypes.byref(context)) == 0: hold(1, lambda: None)",
    ),
    _holds(
        "lowers the limit below which core dumps go to a program",
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "if resource.getrlimit(resource.RLIMIT_CORE) == (0, 0): hold(1, lambda: None)",
    ),
    _holds(
        "holds kernel memory for epoll",
        "import select\n"
        "x = bytearray(b'x') * (225 * M)\n"
        "def work():\n"
        "    watched = [os.eventfd(0) for _ in range(110)]; kept = [select.epoll() for _ in range(110)]\n"
        "    for e in kept:\n"
        "        for f in watched: e.register(f)\n"
        "    return kept\n"
        "hold(28, work)",
    ),
]
