"""Attacks by interfaces of the kernel: on other processes, on the machine, and on the barriers themselves."""

from collections.abc import Callable
from typing import Any

from attack_programs import NOBODY, POD, ROOT, Attack, Result, learns_secret, prints


def _signals(scene: Any, result: Result) -> bool:
    return scene.was_signalled()


def _works(name: str, program: str, *variants: str, succeeded: Callable[[Any, Result], bool] | None = None) -> Attack:
    """An attack whose program prints `done` if it works, unless `succeeded` tells."""
    return Attack(name, program, succeeded or prints("done"), variants=variants or (ROOT, NOBODY, POD))


def _returns(name: str, expression: str, *variants: str, before: str = "") -> Attack:
    """An attack that works if the expression is not negative."""
    return _works(name, f"{before}\nif ({expression}) >= 0: print('done')", *variants)


FILTER = (
    "class Program(ctypes.Structure): _fields_ = [('n', ctypes.c_ushort), ('p', ctypes.c_char_p)]\n"
    "program = Program(1, bytes([6, 0, 0, 0, 0, 0, 0xff, 0x7f])); libc.prctl(38, 1, 0, 0, 0)"
)

KERNEL_ATTACKS = [
    # Other processes.
    _works(
        "reads the memory of another process in /proc",
        "f = open(f\"/proc/{TARGETS['victim']}/mem\", 'rb', 0); f.seek(TARGETS['address']); print(f.read(64))",
        succeeded=learns_secret,
    ),
    _works(
        "opens the memory of its parent to write to it",
        "open(f'/proc/{os.getppid()}/mem', 'r+b', 0); print('done')",
    ),
    _works(
        "opens a descriptor of another process in /proc",
        "open(f\"/proc/{TARGETS['victim']}/fd/1\", 'wb', 0); print('done')",
    ),
    _works(
        "goes through the root folder of another process",
        "print(open(f\"/proc/{TARGETS['victim']}/root{TARGETS['secret_file']}\").read())",
        succeeded=learns_secret,
    ),
    _works(
        "has another process killed first when memory runs out",
        "open(f\"/proc/{TARGETS['victim']}/oom_score_adj\", 'w').write('777')",
        succeeded=lambda scene, result: scene.victim_oom_score() == 777,
    ),
    _works(
        "writes to the memory of another process",
        "b = ctypes.create_string_buffer(b'y'); V = ctypes.c_void_p * 2\n"
        "n = libc.process_vm_writev(TARGETS['victim'], V(ctypes.addressof(b), 1), 1, V(TARGETS['address'], 1), 1, 0)\n"
        "if n == 1: print('done')",
    ),
    _returns(
        "seizes another process as a tracer",
        "call(TARGETS['ptrace'], 0x4206, TARGETS['victim'], 0, 0)",
    ),
    _returns(
        "takes a descriptor of another process",
        "call(TARGETS['pidfd_getfd'], os.pidfd_open(TARGETS['victim']), 1, 0)",
    ),
    _returns(
        "compares its memory with another process",
        "call(TARGETS['kcmp'], os.getpid(), TARGETS['victim'], 1, 0, 0)",
    ),
    _returns(
        "pushes memory of another process out",
        "call(TARGETS['process_madvise'], os.pidfd_open(TARGETS['victim']), (ctypes.c_size_t * 2)(\n"
        "    TARGETS['address'] & ~4095, 4096), 1, 20, 0)",
        ROOT,
    ),
    _works(
        "signals another process by a descriptor",
        "signal.pidfd_send_signal(os.pidfd_open(TARGETS['victim']), signal.SIGUSR1)",
        succeeded=_signals,
    ),
    _works(
        "signals a group of processes",
        "os.killpg(TARGETS['victim_group'], signal.SIGWINCH)",
        succeeded=_signals,
    ),
    _works(
        "queues a signal to another process",
        "libc.sigqueue.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p]\n"
        "libc.sigqueue(TARGETS['victim'], signal.SIGUSR1, None)",
        succeeded=_signals,
    ),
    _works(
        "signals a thread of another process",
        "call(TARGETS['tkill'], TARGETS['victim'], int(signal.SIGUSR1))",
        succeeded=_signals,
    ),
    _works(
        "signals through a socket's owner",
        "import fcntl, struct\n"
        "a, b = socket.socketpair(); fcntl.ioctl(a, 0x8901, struct.pack('i', TARGETS['victim']))\n"
        "fcntl.fcntl(a, 10, signal.SIGUSR1)\n"
        "fcntl.fcntl(a, fcntl.F_SETFL, fcntl.fcntl(a, fcntl.F_GETFL) | os.O_ASYNC); b.send(b'x')",
        succeeded=_signals,
    ),
    _works(
        "makes another process less important",
        "os.setpriority(os.PRIO_PROCESS, TARGETS['victim'], 7); print('done')",
    ),
    _returns(
        "changes the I/O priority of another process",
        "call(TARGETS['ioprio_set'], 1, TARGETS['victim'], 0x6000)",
    ),
    _works(
        "moves another process to one processor",
        "os.sched_setaffinity(TARGETS['victim'], {min(os.sched_getaffinity(0))}); print('done')",
    ),
    _works(
        "reads shared memory of another process",
        "print(open(TARGETS['shared_memory']).read())",
        succeeded=learns_secret,
    ),
    _works(
        "swaps shared memory of another process for its own",
        "os.unlink(TARGETS['shared_memory']); open(TARGETS['shared_memory'], 'w').write('changed'); print('done')",
    ),
    # The machine.
    _returns("loads a BPF map", "call(TARGETS['bpf'], 0, (ctypes.c_uint * 32)(2, 4, 4, 1), 72)", ROOT),
    _returns(
        "counts events of the processor",
        "call(TARGETS['perf_event_open'], settings, 0, -1, -1, 0)",
        ROOT,
        NOBODY,
        before="settings = (ctypes.c_uint64 * 16)(1 | 112 << 32, 0, 0, 0, 0, 1 << 5 | 1 << 6)",
    ),
    _returns("switches the randomization of addresses off", "libc.personality(0x0040000)"),
    _returns("reads the adjustment of the clock", "libc.adjtimex(ctypes.create_string_buffer(512))"),
    _returns("reads the kernel's log", "libc.klogctl(10, None, 0)", ROOT),
    _returns("stores a key", "call(TARGETS['add_key'], b'user', b'turnmill', b'x', 1, -3)"),
    _works(
        "changes the name of the machine",
        "socket.sethostname('attacked'); print('done')",
        ROOT,
    ),
    _works(
        "changes a setting of the kernel in /proc",
        "open('/proc/sys/kernel/domainname', 'w').write('attacked'); print('done')",
        ROOT,
    ),
    _works("lists the devices of the machine", "os.listdir('/sys'); print('done')"),
    _works("lists the processes of the machine", "print('done' if os.listdir('/proc') else '')"),
    # Sockets, queues and files outside of folders.
    _works("opens a socket to the host of a virtual machine", "socket.socket(40, socket.SOCK_STREAM); print('done')"),
    _works("opens a socket to the kernel", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0); print('done')"),
    _works("opens a socket for ICMP", "socket.socket(2, socket.SOCK_RAW, 1); print('done')", ROOT),
    _works(
        "forges credentials in a socket",
        "import struct; a, b = socket.socketpair(); b.setsockopt(1, 16, 1)\n"
        "a.sendmsg([b'x'], [(1, 2, struct.pack('3i', os.getpid(), os.getuid(), os.getgid()))]); print('done')",
    ),
    _works(
        "attaches a filter program to a socket",
        "p = ctypes.create_string_buffer(bytes([6, 0, 0, 0, 0xff, 0xff, 0, 0]), 8); a, b = socket.socketpair()\n"
        "import struct; a.setsockopt(1, 26, struct.pack('HP', 1, ctypes.addressof(p))); print('done')",
    ),
    _works("makes a named socket in its workspace", "socket.socket(socket.AF_UNIX).bind('s'); print('done')"),
    _returns("leaves a message queue behind", "call(TARGETS['mq_open'], TARGETS['mark'].encode(), 0o102, 0o600, 0)"),
    _returns("leaves a System V queue behind", "libc.msgget(int(TARGETS['mark']), 0o1600)"),
    _returns("leaves System V semaphores behind", "libc.semget(int(TARGETS['mark']), 1, 0o1600)"),
    _returns(
        "takes the handle of a file outside",
        "call(TARGETS['name_to_handle_at'], -100, TARGETS['secret_file'].encode(), h, ctypes.byref(ctypes.c_int()), 0)",
        before="h = ctypes.create_string_buffer(136); ctypes.c_uint.from_buffer(h).value = 128",
    ),
    # The barriers themselves.
    _returns(
        "watches system calls by a filter of its own",
        "call(TARGETS['seccomp'], 1, 8, ctypes.byref(program))",
        before=FILTER,
    ),
    _returns(
        "adds a filter of its own",
        "libc.prctl(22, 2, ctypes.byref(program), 0, 0)",
        before=FILTER,
    ),
    _returns("opens a file system", "call(TARGETS['fsopen'], b'tmpfs', 0)", ROOT),
    _returns(
        "changes its root folder",
        "libc.chroot(TARGETS['folder'].encode())",
        ROOT,
        NOBODY,
        before="libc.unshare(0x10000000)",
    ),
    _works(
        "enters the namespace of another process",
        "f = os.open(f\"/proc/{TARGETS['victim']}/ns/net\", 0); print('done' if libc.setns(f, 0) == 0 else '')",
        ROOT,
    ),
    _works(
        "creates a namespace by clone3",
        "import struct\n"
        "pid = call(TARGETS['clone3'], struct.pack('8Q', 0x10000000, 0, 0, 0, 17, 0, 0, 0), 64)\n"
        "if pid == 0: os._exit(0)\n"
        "if pid > 0: print('done')",
        ROOT,
        NOBODY,
    ),
    _works(
        "moves a folder outside into its workspace",
        "os.rename(TARGETS['folder'] + '/folder', 'taken'); print('done')",
    ),
    _works(
        "exchanges a file outside for its own",
        "open('x', 'w').write('changed')\n"
        "if libc.renameat2(-100, b'x', -100, TARGETS['open_file'].encode(), 2) == 0: print('done')",
    ),
    _works(
        "reaches a file outside through a link that changes while it is opened",
        "os.mkdir('in'); open('in/secret', 'w').write('')\n"
        "if os.fork() == 0:\n"
        "    os.symlink(TARGETS['folder'], 'out'); end = time.time() + 0.5\n"
        "    while time.time() < end: libc.renameat2(-100, b'in', -100, b'out', 2)\n"
        "    os._exit(0)\n"
        "end = time.time() + 0.5\n"
        "while time.time() < end:\n"
        "    try: text = open('in/secret').read()\n"
        "    except OSError: continue\n"
        "    if text: print(text); break",
        succeeded=learns_secret,
    ),
    _works(
        "keeps a hard link to a file outside",
        "os.link(TARGETS['secret_file'], 'kept'); print('done')",
    ),
]
