"""Attacks on the sandbox: programs, and how one tells from outside whether they got what they wanted.

Each runs twice in a container: bare, to show that it works where nothing holds it off, and in the sandbox.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnmill.sandboxes.base import MIB, Limits

ROOT, NOBODY, POD = "root", "nobody", "pod"
"""Root with namespaces to be had; a user without rights, with namespaces; a restricted pod, without."""

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
    """What one can see after a run, bare or not."""

    stdout: bytes
    files: dict[str, bytes]
    seconds: float
    exit_code: int | None
    channel: bytes = b""
    """What came over the way on which a runner hears how a task ended, its own words left out."""


@dataclass(frozen=True, slots=True)
class Attack:
    """`succeeded` looks at the scene and at the result. `variants` are those in which the bare program succeeds."""

    name: str
    program: str
    succeeded: Callable[[Any, Result], bool]
    limits: Limits = LIMITS
    variants: tuple[str, ...] = EVERYWHERE
    has_shell: bool = False
    """Bare, its parent is a shell."""


def _prints(text: str) -> Callable[[Any, Result], bool]:
    return lambda scene, result: text.encode() in result.stdout


def _learns_secret(scene: Any, result: Result) -> bool:
    return any(scene.secret.encode() in data for data in (result.stdout, *result.files.values()))


def _changes_file(scene: Any, result: Result) -> bool:
    return not scene.open_file.exists() or scene.open_file.read_text() != "unchanged"


def _plants(scene: Any, result: Result) -> bool:
    return (scene.folder / "planted").exists()


def _reaches(scene: Any, result: Result) -> bool:
    return scene.wait_for_visit()


def _leaves(scene: Any, result: Result) -> bool:
    return scene.is_running(scene.mark)


ATTACKS = [
    # Files.
    Attack("reads a file of the server", "print(open(PLACE['secret_file']).read())", _learns_secret),
    Attack(
        "reads the workspace of another task",
        "print(os.listdir(PLACE['neighbour'] + '/../..'), file=sys.stderr) if PLACE['is_bare'] else None\n"
        "print(open(PLACE['neighbour'] + '/note').read())",
        _learns_secret,
    ),
    Attack(
        "writes into the workspace of another task",
        "open(PLACE['neighbour'] + '/note', 'w').write('changed')",
        lambda scene, result: (Path(scene.neighbour) / "note").read_text() == "changed",
    ),
    Attack(
        "locks another task out of its workspace",
        "os.chmod(PLACE['neighbour'], 0)",
        lambda scene, result: Path(scene.neighbour).stat().st_mode & 0o777 == 0,
    ),
    Attack("overwrites a file outside", "open(PLACE['open_file'], 'w').write('changed')", _changes_file),
    Attack("deletes a file outside", "os.unlink(PLACE['open_file'])", _changes_file),
    Attack("truncates a file outside", "os.truncate(PLACE['open_file'], 0)", _changes_file),
    Attack("creates a file outside", "open(PLACE['folder'] + '/planted', 'w').write('x')", _plants),
    Attack(
        "moves a file out of the workspace",
        "open('x', 'w').close(); os.rename('x', PLACE['folder'] + '/planted')",
        _plants,
    ),
    Attack(
        "changes the rights of a file outside",
        "os.chmod(PLACE['secret_file'], 0o644)",
        lambda scene, result: scene.secret_file.stat().st_mode & 0o777 == 0o644,
    ),
    Attack(
        "changes the times of a file outside",
        "os.utime(PLACE['secret_file'], (1, 1))",
        lambda scene, result: scene.secret_file.stat().st_mtime == 1,
    ),
    Attack(
        "marks a file outside with an attribute",
        "os.setxattr(PLACE['open_file'], 'user.mark', b'x')",
        lambda scene, result: scene.has_attribute(),
    ),
    Attack("has a link to a file outside kept", "os.symlink(PLACE['secret_file'], 'kept')", _learns_secret),
    Attack("reads through a link", "os.symlink(PLACE['secret_file'], 'l'); print(open('l').read())", _learns_secret),
    Attack("has a folder of links outside kept", "os.symlink(PLACE['folder'], 'kept')", _learns_secret),
    Attack(
        "writes through a hard link",
        "os.link(PLACE['open_file'], 'h'); open('h', 'w').write('changed')",
        _changes_file,
    ),
    Attack(
        "watches a folder outside",
        "n = libc.inotify_init1(0); print('watch', libc.inotify_add_watch(n, os.fsencode(PLACE['folder']), 0x100) > 0)",
        _prints("watch True"),
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
        _prints("read b'"),
        variants=(ROOT,),
    ),
    # Other processes.
    Attack(
        "reads /proc of the server",
        "print(open(f\"/proc/{PLACE['server']}/environ\").read())",
        _learns_secret,
    ),
    Attack(
        "looks for processes in /proc",
        "for p in os.listdir('/proc'):\n"
        "    if p.isdigit():\n"
        "        try: print(open(f'/proc/{p}/environ').read())\n"
        "        except OSError: pass",
        _learns_secret,
    ),
    Attack("reads the environment", "print(os.environ)", _learns_secret),
    Attack(
        "reads inherited descriptors",
        "for n in range(3, 256):\n"
        "    try: os.set_blocking(n, False); print(os.read(n, 1000))\n"
        "    except OSError: pass",
        _learns_secret,
    ),
    Attack(
        "signals another process",
        "os.kill(PLACE['victim'], signal.SIGUSR1)",
        lambda scene, result: scene.was_signalled(),
    ),
    Attack("signals every process", "os.kill(-1, signal.SIGWINCH)", lambda scene, result: scene.was_signalled()),
    Attack(
        "signals through a file's owner",
        "import fcntl; r, w = os.pipe(); fcntl.fcntl(r, 8, PLACE['victim']); fcntl.fcntl(r, 10, signal.SIGUSR1)\n"
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
        "print('attached', libc.ptrace(16, PLACE['victim'], 0, 0))",
        _prints("attached 0"),
    ),
    Attack(
        "reads memory of another process",
        "b = ctypes.create_string_buffer(64)\n"
        "V = ctypes.c_void_p * 2\n"
        "libc.process_vm_readv(PLACE['victim'], V(ctypes.addressof(b), 64), 1, V(PLACE['address'], 64), 1, 0)\n"
        "print(b.value)",
        _learns_secret,
    ),
    Attack(
        "takes another process's limits",
        "import resource; resource.prlimit(PLACE['victim'], resource.RLIMIT_NOFILE, (3, 3))",
        lambda scene, result: scene.victim_open_files() == 3,
    ),
    Attack(
        "slows another process down",
        "os.sched_setscheduler(PLACE['victim'], os.SCHED_IDLE, os.sched_param(0))",
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
        _prints("started 200"),
    ),
    Attack(
        "takes too much memory",
        "x = bytearray(b'x') * (400 << 20); print('allocated', len(x))",
        _prints("allocated"),
    ),
    Attack(
        "takes too much memory in many processes",
        "for _ in range(6):\n"
        "    if os.fork() == 0: x = bytearray(b'x') * (60 << 20); time.sleep(1); os._exit(0)\n"
        "try:\n"
        "    while True: os.wait()\n"
        "except ChildProcessError: print('allocated')",
        _prints("allocated"),
    ),
    Attack(
        "writes too much",
        "for n in range(60): open(f'f{n}', 'wb').write(b'x' * (1 << 20))\ntime.sleep(1.5); print('written')",
        _prints("written"),
    ),
    Attack(
        "writes too much into files without a name",
        "kept = []\n"
        "for n in range(60):\n"
        "    f = open('f', 'wb'); os.unlink('f'); f.write(b'x' * (1 << 20)); f.flush(); kept.append(f)\n"
        "time.sleep(1.5); print('written')",
        _prints("written"),
    ),
    Attack(
        "writes one file that is too large",
        "with open('f', 'wb') as f:\n    for n in range(60): f.write(b'x' * (1 << 20))\nprint('written')",
        _prints("written"),
    ),
    Attack(
        "takes too many inodes",
        "for n in range(25000): os.close(os.open(f'{n}', os.O_CREAT))\ntime.sleep(1.5); print('created')",
        _prints("created"),
    ),
    Attack(
        "floods its output",
        "for _ in range(400): os.write(1, b'x' * 65536)",
        lambda scene, result: len(result.stdout) > LIMITS.output_bytes,
    ),
    Attack(
        "floods without end",
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
        _prints("burnt"),
        Limits(seconds=20, cpu_seconds=1),
    ),
    # Sockets, mounts, namespaces and other entrances.
    Attack("connects to a service", "socket.create_connection(('127.0.0.1', PLACE['port'])).send(b'x')", _reaches),
    Attack(
        "sends datagrams",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PLACE['port']))",
        _reaches,
    ),
    Attack("connects to a socket file", "socket.socket(socket.AF_UNIX).connect(PLACE['socket_file'])", _reaches),
    Attack(
        "sends to a socket file from a pair",
        "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.sendto(b'x', PLACE['datagram_file'])",
        _reaches,
    ),
    Attack("connects to an abstract socket", "socket.socket(socket.AF_UNIX).connect(PLACE['abstract'])", _reaches),
    Attack(
        "opens a raw socket",
        "print('raw', socket.socket(socket.AF_PACKET, socket.SOCK_RAW).fileno())",
        _prints("raw"),
        variants=(ROOT,),
    ),
    Attack(
        "listens for others",
        "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); print('listening')",
        _prints("listening"),
    ),
    Attack(
        "mounts",
        "libc.unshare(0x10020000)\nos.mkdir('m')\nprint('mounted', libc.mount(b't', b'm', b'tmpfs', 0, 0))",
        _prints("mounted 0"),
        variants=(ROOT, NOBODY),
    ),
    Attack(
        "becomes root of a namespace",
        "print('entered', libc.unshare(0x10000000))",
        _prints("entered 0"),
        variants=(ROOT, NOBODY),
    ),
    Attack(
        "makes a namespace by clone",
        "pid = call(PLACE['clone'], 0x10000000 | 17, 0, 0, 0, 0)\nif pid == 0: os._exit(0)\nprint('cloned', pid > 0)",
        _prints("cloned True"),
        variants=(ROOT, NOBODY),
    ),
    Attack(
        "regains root by a setuid program",
        "import subprocess; print(subprocess.check_output([PLACE['setuid_program'], '-u'], text=True))",
        lambda scene, result: result.stdout.split()[:1] == [b"0"],
        variants=(ROOT, NOBODY),
    ),
    Attack(
        "opens wide entrances to the kernel",
        "b = ctypes.create_string_buffer(256)\n"
        "print([call(PLACE['keyctl'], 1, 0) >= 0, call(PLACE['io_uring_setup'], 1, b) >= 0,\n"
        "       call(PLACE['userfaultfd'], 1) >= 0])",
        _prints("True"),
    ),
    # What stays, and who speaks.
    Attack(
        "leaves a process behind",
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0: os.closerange(0, 3); os.execvp('sleep', ['sleep', PLACE['mark']])\n"
        "    os._exit(0)\n"
        "time.sleep(0.2)",
        _leaves,
    ),
    Attack(
        "leaves a process that flees from process to process",
        "libc.prctl(15, PLACE['mark'].encode(), 0, 0, 0)\n"
        "if os.fork() == 0:\n"
        "    os.closerange(0, 3)\n"
        "    end = time.time() + 3\n"
        "    while time.time() < end:\n"
        "        if os.fork(): os._exit(0)\n"
        "        os.setsid()\n"
        "    os._exit(0)\n"
        "time.sleep(0.2)",
        _leaves,
    ),
    Attack(
        "leaves memory behind",
        "open('/dev/shm/' + PLACE['mark'], 'w').write('x')",
        lambda scene, result: Path("/dev/shm", scene.mark).exists(),
    ),
    Attack(
        "leaves a System V segment behind",
        "print('segment', libc.shmget(int(PLACE['mark']), 4096, 0o1600) >= 0)",
        _prints("segment True"),
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
