"""Attacks on the sandbox: programs, and checks from outside whether they succeeded.

Each runs twice in a container: bare, to show that it works without a sandbox, and in the sandbox.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnmill.sandboxes.base import MIB, Limits

ROOT, NOBODY, POD = "root", "nobody", "pod"
"""Root and a user without rights, who may both create namespaces; a restricted pod, which may not."""

EVERYWHERE = (ROOT, NOBODY, POD)
LIMITS = Limits(
    seconds=20.0, cpu_seconds=3, memory_bytes=256 * MIB, file_bytes=16 * MIB, processes=32, output_bytes=MIB // 16
)
BRIEF = Limits(seconds=0.5, processes=32)

PREAMBLE = """
import ctypes, os, signal, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(number, *arguments):
    return libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
"""


@dataclass(frozen=True, slots=True)
class Result:
    """What can be observed after a run, bare or in the sandbox."""

    stdout: bytes
    files: dict[str, bytes]
    seconds: float
    exit_code: int | None
    channel: bytes = b""
    """What the attack wrote into the pipe on which a runner receives the result of a task."""


@dataclass(frozen=True, slots=True)
class Attack:
    """A program; `succeeded` checks scene and result, and `variants` are those in which it succeeds bare."""

    name: str
    program: str
    succeeded: Callable[[Any, Result], bool]
    limits: Limits = LIMITS
    variants: tuple[str, ...] = EVERYWHERE
    has_shell: bool = False
    """Whether the bare program is the child of a shell."""


def prints(text: str) -> Callable[[Any, Result], bool]:
    return lambda scene, result: text.encode() in result.stdout


def learns_secret(scene: Any, result: Result) -> bool:
    return any(scene.secret.encode() in data for data in (result.stdout, *result.files.values()))


def _changes_file(scene: Any, result: Result) -> bool:
    return not scene.open_file.exists() or scene.open_file.read_text() != "unchanged"


def _creates_file(scene: Any, result: Result) -> bool:
    return (scene.folder / "planted").exists()


def _sends_data(scene: Any, result: Result) -> bool:
    return scene.has_received_data()


def _leaves_process(scene: Any, result: Result) -> bool:
    return scene.is_running(scene.mark)


ATTACKS = [
    # Files.
    Attack("reads a file of the server", "print(open(TARGETS['secret_file']).read())", learns_secret),
    Attack(
        "reads the workspace of another task",
        "print(os.listdir(TARGETS['neighbour'] + '/../..'), file=sys.stderr) if TARGETS['is_bare'] else None\n"
        "print(open(TARGETS['neighbour'] + '/note').read())",
        learns_secret,
    ),
    Attack(
        "writes into the workspace of another task",
        "open(TARGETS['neighbour'] + '/note', 'w').write('changed')",
        lambda scene, result: (scene.neighbour_home / "note").read_text() == "changed",
    ),
    Attack(
        "locks another task out of its workspace",
        "os.chmod(TARGETS['neighbour'], 0)",
        lambda scene, result: scene.neighbour_home.stat().st_mode & 0o777 == 0,
    ),
    Attack("overwrites a file outside", "open(TARGETS['open_file'], 'w').write('changed')", _changes_file),
    Attack("deletes a file outside", "os.unlink(TARGETS['open_file'])", _changes_file),
    Attack("truncates a file outside", "os.truncate(TARGETS['open_file'], 0)", _changes_file),
    Attack("creates a file outside", "open(TARGETS['folder'] + '/planted', 'w').write('x')", _creates_file),
    Attack(
        "moves a file out of the workspace",
        "open('x', 'w').close(); os.rename('x', TARGETS['folder'] + '/planted')",
        _creates_file,
    ),
    Attack(
        "changes the rights of a file outside",
        "os.chmod(TARGETS['secret_file'], 0o644)",
        lambda scene, result: scene.secret_file.stat().st_mode & 0o777 == 0o644,
    ),
    Attack(
        "changes the times of a file outside",
        "os.utime(TARGETS['secret_file'], (1, 1))",
        lambda scene, result: scene.secret_file.stat().st_mtime == 1,
    ),
    Attack(
        "sets an attribute of a file outside",
        "os.setxattr(TARGETS['open_file'], 'user.mark', b'x')",
        lambda scene, result: scene.has_attribute(),
    ),
    Attack("keeps a link to a file outside", "os.symlink(TARGETS['secret_file'], 'kept')", learns_secret),
    Attack("reads through a link", "os.symlink(TARGETS['secret_file'], 'l'); print(open('l').read())", learns_secret),
    Attack("keeps a link to a folder outside", "os.symlink(TARGETS['folder'], 'kept')", learns_secret),
    Attack(
        "writes through a hard link",
        "os.link(TARGETS['open_file'], 'h'); open('h', 'w').write('changed')",
        _changes_file,
    ),
    Attack(
        "watches a folder outside",
        "n = libc.inotify_init1(0)\n"
        "print('watch', libc.inotify_add_watch(n, os.fsencode(TARGETS['folder']), 0x100) > 0)",
        prints("watch True"),
    ),
    Attack(
        "changes Python's library",
        "open(os.__file__, 'a').write('#')",
        lambda scene, result: Path(scene.library).read_text().endswith("#"),
        variants=(ROOT,),
    ),
    Attack(
        "reads the disk as a device",
        "import stat; os.mknod('d', 0o600 | stat.S_IFCHR, os.makedev(1, 5)); print('read', open('d', 'rb').read(3))",
        prints("read b'"),
        variants=(ROOT,),
    ),
    # Other processes.
    Attack(
        "reads /proc of the server",
        "print(open(f\"/proc/{TARGETS['server']}/environ\").read())",
        learns_secret,
    ),
    Attack(
        "reads the environment of every process in /proc",
        "for p in os.listdir('/proc'):\n"
        "    if p.isdigit():\n"
        "        try: print(open(f'/proc/{p}/environ').read())\n"
        "        except OSError: pass",
        learns_secret,
    ),
    Attack("reads the environment", "print(os.environ)", learns_secret),
    Attack(
        "reads inherited descriptors",
        "for n in range(3, 256):\n"
        "    try: os.set_blocking(n, False); print(os.read(n, 1000))\n"
        "    except OSError: pass",
        learns_secret,
    ),
    Attack(
        "signals another process",
        "os.kill(TARGETS['victim'], signal.SIGUSR1)",
        lambda scene, result: scene.was_signalled(),
    ),
    Attack("signals every process", "os.kill(-1, signal.SIGWINCH)", lambda scene, result: scene.was_signalled()),
    Attack(
        "signals through a file's owner",
        "import fcntl; r, w = os.pipe(); fcntl.fcntl(r, 8, TARGETS['victim']); fcntl.fcntl(r, 10, signal.SIGUSR1)\n"
        "fcntl.fcntl(r, fcntl.F_SETFL, fcntl.fcntl(r, fcntl.F_GETFL) | os.O_ASYNC); os.write(w, b'x')",
        lambda scene, result: scene.was_signalled(),
    ),
    Attack(
        "kills its parent and runs on",
        "os.kill(os.getppid(), signal.SIGKILL); time.sleep(0.3); print('orphan', flush=True)",
        lambda scene, result: b"orphan" in result.stdout and result.exit_code != 0,
        has_shell=True,
    ),
    Attack(
        "traces another process",
        "print('attached', libc.ptrace(16, TARGETS['victim'], 0, 0))",
        prints("attached 0"),
    ),
    Attack(
        "reads memory of another process",
        "b = ctypes.create_string_buffer(64)\n"
        "V = ctypes.c_void_p * 2\n"
        "libc.process_vm_readv(TARGETS['victim'], V(ctypes.addressof(b), 64), 1, V(TARGETS['address'], 64), 1, 0)\n"
        "print(b.value)",
        learns_secret,
    ),
    Attack(
        "lowers the limits of another process",
        "import resource; resource.prlimit(TARGETS['victim'], resource.RLIMIT_NOFILE, (3, 3))",
        lambda scene, result: scene.victim_open_files() == 3,
    ),
    Attack(
        "slows another process down",
        "os.sched_setscheduler(TARGETS['victim'], os.SCHED_IDLE, os.sched_param(0))",
        lambda scene, result: scene.victim_is_idle(),
    ),
    # Limits.
    Attack(
        "starts too many processes",
        "n = 0\n"
        "for _ in range(200):\n"
        "    try: pid = os.fork()\n"
        "    except OSError: break\n"
        "    if pid == 0: time.sleep(1.2); os._exit(0)\n"
        "    n += 1\n"
        "time.sleep(0.5); print('started', n)",
        prints("started 200"),
    ),
    Attack(
        "allocates too much memory",
        "x = bytearray(b'x') * (400 << 20); print('allocated', len(x))",
        prints("allocated"),
    ),
    Attack(
        "allocates too much memory in many processes",
        "for _ in range(6):\n"
        "    if os.fork() == 0: x = bytearray(b'x') * (60 << 20); time.sleep(1); os._exit(0)\n"
        "try:\n"
        "    while True: os.wait()\n"
        "except ChildProcessError: print('allocated')",
        prints("allocated"),
    ),
    Attack(
        "writes too much",
        "for n in range(60): open(f'f{n}', 'wb').write(b'x' * (1 << 20))\ntime.sleep(1.5); print('written')",
        prints("written"),
    ),
    Attack(
        "writes too much into deleted files",
        "kept = []\n"
        "for n in range(60):\n"
        "    f = open('f', 'wb'); os.unlink('f'); f.write(b'x' * (1 << 20)); f.flush(); kept.append(f)\n"
        "time.sleep(1.5); print('written')",
        prints("written"),
    ),
    Attack(
        "hides deleted files in a socket pair",
        "a, b = socket.socketpair()\n"
        "for n in range(60):\n"
        "    with open('f', 'wb') as f:\n"
        "        os.unlink('f'); f.write(b'x' * (1 << 20)); f.flush(); socket.send_fds(a, [b'x'], [f.fileno()])\n"
        "time.sleep(1.5); print('hidden')",
        prints("hidden"),
    ),
    Attack(
        "writes one file that is too large",
        "with open('f', 'wb') as f:\n    for n in range(60): f.write(b'x' * (1 << 20))\nprint('written')",
        prints("written"),
    ),
    Attack(
        "creates too many files",
        "for n in range(25000): os.close(os.open(f'{n}', os.O_CREAT))\ntime.sleep(1.5); print('created')",
        prints("created"),
    ),
    Attack(
        "floods its output",
        "for _ in range(400): os.write(1, b'x' * 65536)",
        lambda scene, result: len(result.stdout) > LIMITS.output_bytes,
    ),
    Attack(
        "floods its output without end",
        "for _ in range(4000): os.write(1, b'x' * 65536)\nopen('end', 'w').close()",
        lambda scene, result: "end" in result.files,
    ),
    Attack(
        "ignores every signal and its deadline",
        "for n in range(1, 65):\n"
        "    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "time.sleep(3); print('late')",
        lambda scene, result: result.seconds > 1,
        BRIEF,
    ),
    Attack(
        "stops itself to outlast its deadline",
        "os.kill(os.getpid(), signal.SIGSTOP)",
        lambda scene, result: result.seconds > 1,
        BRIEF,
    ),
    Attack(
        "ignores the limit on CPU",
        "signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nend = time.process_time() + 2.3\n"
        "while time.process_time() < end: pass\nprint('burnt')",
        prints("burnt"),
        Limits(seconds=20, cpu_seconds=1),
    ),
    # Sockets, mounts, namespaces and other interfaces of the kernel.
    Attack("connects to a service", "socket.create_connection(('127.0.0.1', TARGETS['port'])).send(b'x')", _sends_data),
    Attack(
        "sends datagrams",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', TARGETS['port']))",
        _sends_data,
    ),
    Attack("connects to a socket file", "socket.socket(socket.AF_UNIX).connect(TARGETS['socket_file'])", _sends_data),
    Attack(
        "sends to a socket file from a pair",
        "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.sendto(b'x', TARGETS['datagram_file'])",
        _sends_data,
    ),
    Attack("connects to an abstract socket", "socket.socket(socket.AF_UNIX).connect(TARGETS['abstract'])", _sends_data),
    Attack(
        "opens a raw socket",
        "print('raw', socket.socket(socket.AF_PACKET, socket.SOCK_RAW).fileno())",
        prints("raw"),
        variants=(ROOT,),
    ),
    Attack(
        "listens for others",
        "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); print('listening')",
        prints("listening"),
    ),
    Attack(
        "mounts",
        "libc.unshare(0x10020000)\nos.mkdir('m')\nprint('mounted', libc.mount(b't', b'm', b'tmpfs', 0, 0))",
        prints("mounted 0"),
        variants=(ROOT, NOBODY),
    ),
    Attack(
        "becomes root of a namespace",
        "print('entered', libc.unshare(0x10000000))",
        prints("entered 0"),
        variants=(ROOT, NOBODY),
    ),
    Attack(
        "creates a namespace by clone",
        "pid = call(TARGETS['clone'], 0x10000000 | 17, 0, 0, 0, 0)\nif pid == 0: os._exit(0)\nprint('cloned', pid > 0)",
        prints("cloned True"),
        variants=(ROOT, NOBODY),
    ),
    Attack(
        "regains root by a setuid program",
        "import subprocess; print(subprocess.check_output([TARGETS['setuid_program'], '-u'], text=True))",
        lambda scene, result: result.stdout.split()[:1] == [b"0"],
        variants=(ROOT, NOBODY),
    ),
    Attack(
        "uses keyctl, io_uring and userfaultfd",
        "b = ctypes.create_string_buffer(256)\n"
        "print([call(TARGETS['keyctl'], 1, 0) >= 0, call(TARGETS['io_uring_setup'], 1, b) >= 0,\n"
        "       call(TARGETS['userfaultfd'], 1) >= 0])",
        prints("True"),
    ),
    # Leftovers and forged results.
    Attack(
        "leaves a process behind",
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0: os.closerange(0, 3); os.execvp('sleep', ['sleep', TARGETS['mark']])\n"
        "    os._exit(0)\n"
        "time.sleep(0.2)",
        _leaves_process,
    ),
    Attack(
        "leaves a process that keeps forking",
        "libc.prctl(15, TARGETS['mark'].encode(), 0, 0, 0)\n"
        "if os.fork() == 0:\n"
        "    os.closerange(0, 3)\n"
        "    end = time.time() + 3\n"
        "    while time.time() < end:\n"
        "        if os.fork(): os._exit(0)\n"
        "        os.setsid()\n"
        "    os._exit(0)\n"
        "time.sleep(0.2)",
        _leaves_process,
    ),
    Attack(
        "leaves shared memory behind",
        "open('/dev/shm/' + TARGETS['mark'], 'w').write('x')",
        lambda scene, result: Path("/dev/shm", scene.mark).exists(),
    ),
    Attack(
        "leaves a System V segment behind",
        "print('segment', libc.shmget(int(TARGETS['mark']), 4096, 0o1600) >= 0)",
        prints("segment True"),
    ),
    Attack(
        "leaves a folder too deep to delete",
        "for _ in range(3000): os.mkdir('d'); os.chdir('d')",
        lambda scene, result: scene.workspace_remains(),
    ),
    Attack(
        "leaves a folder that nobody may enter",
        "os.makedirs('a/b'); open('a/b/f', 'w').close(); d = os.open('a', 0); os.fchmod(d, 0)",
        lambda scene, result: scene.workspace_remains(),
        variants=(NOBODY, POD),
    ),
    Attack(
        "forges its result",
        "forged = b'\\0' * 12 + b'{\"exit_code\": 0, \"forged\": 1}'\n"
        "for n in range(3, 256):\n"
        "    try: os.write(n, forged)\n"
        "    except OSError: pass\n"
        "sys.exit(3)",
        lambda scene, result: b"forged" in result.channel or result.exit_code != 3,
    ),
]
