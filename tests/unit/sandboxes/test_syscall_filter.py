import errno
import fcntl
import itertools
import socket
import stat
import struct
from dataclasses import fields

import pytest

from turnmill.sandboxes import syscall_filter
from turnmill.sandboxes.syscall_filter import Permissions, build_filter
from turnmill.sandboxes.syscall_numbers import NUMBERS, number_of

ALLOWED, KILLED = "allowed", "killed"
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
OWN_PID = 4711
DANGEROUS = (
    *("ptrace", "process_vm_readv", "pidfd_getfd", "mount", "unshare", "setns", "kexec_load", "bpf", "keyctl"),
    *("perf_event_open", "io_uring_setup", "userfaultfd", "memfd_create", "shmget", "seccomp", "open_by_handle_at"),
)
MACHINES = pytest.mark.parametrize("machine", list(ARCHITECTURES))


def verdict(program: bytes, number: int, arguments: tuple[int, ...] = (), *, architecture: int) -> str | int:
    """Interpret the filter as the kernel does; return allowed, killed, or the error number."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("<iIQ6Q", number, architecture, 0, *(value & (2**64 - 1) for value in padded))
    instructions = list(struct.iter_unpack("HBBI", program))
    accumulator, position = 0, 0
    while True:
        code, if_true, if_false, value = instructions[position]
        position += 1
        match code:
            case 0x20:
                accumulator = struct.unpack_from("<I", data, value)[0]
            case 0x54:
                accumulator &= value
            case 0x15:
                position += if_true if accumulator == value else if_false
            case 0x25:
                position += if_true if accumulator > value else if_false
            case 0x45:
                position += if_true if accumulator & value else if_false
            case 0x06:
                return {0x7FFF0000: ALLOWED, 0x80000000: KILLED}.get(value, value & 0xFFFF)
            case _:
                raise AssertionError(f"unknown instruction {code:#x}")


def judge(name: str, *arguments: int, machine: str = "x86_64", **permissions: bool) -> str | int:
    program = build_filter(Permissions(**permissions), OWN_PID, machine)
    number = number_of(name, machine)
    assert number is not None
    return verdict(program, number, arguments, architecture=ARCHITECTURES[machine])


@MACHINES
@pytest.mark.parametrize("name", DANGEROUS)
def test_dangerous_calls_are_refused(machine, name):
    assert judge(name, machine=machine) == errno.EPERM


@MACHINES
def test_common_calls_pass(machine):
    program = build_filter(Permissions(), OWN_PID, machine)
    refused = {number_of(name, machine) for name in NUMBERS}
    ordinary = [number for number in range(240) if number not in refused]

    verdicts = {verdict(program, number, architecture=ARCHITECTURES[machine]) for number in ordinary}

    assert verdicts == {ALLOWED}


@MACHINES
@pytest.mark.parametrize("values", list(itertools.product((False, True), repeat=len(fields(Permissions)))))
def test_every_call_reaches_its_own_block(machine: str, values: tuple[bool, ...]):
    """The search gives the verdict of the block that a list of all calls would give."""
    permissions = Permissions(*values)
    program = build_filter(permissions, OWN_PID, machine)
    blocks = {number_of(name, machine): block for name, block in syscall_filter._blocks(permissions, OWN_PID).items()}
    allow = [(0x06, 0, 0, 0x7FFF0000)]

    for number in range(463):
        block = b"".join(struct.pack("HBBI", *instruction) for instruction in blocks.get(number, allow))
        expected = verdict(block, number, architecture=ARCHITECTURES[machine])
        assert verdict(program, number, architecture=ARCHITECTURES[machine]) == expected


@MACHINES
def test_calls_of_another_architecture_kill_the_process(machine):
    program = build_filter(Permissions(), OWN_PID, machine)

    assert verdict(program, 1, architecture=0x40000003) == KILLED


@MACHINES
@pytest.mark.parametrize("number", [463, 1000, 0x40000000 + 1])
def test_newer_calls_fail_with_enosys(machine, number):
    program = build_filter(Permissions(), OWN_PID, machine)

    assert verdict(program, number, architecture=ARCHITECTURES[machine]) == errno.ENOSYS


@MACHINES
@pytest.mark.parametrize("flag", [0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000])
def test_clone_cannot_create_namespaces(machine, flag):
    assert judge("clone", flag | 17, machine=machine) == errno.EPERM
    assert judge("clone", 17, machine=machine) == ALLOWED
    assert judge("clone3", machine=machine) == errno.ENOSYS


@pytest.mark.parametrize(
    ("family", "kind", "with_network"),
    [
        (socket.AF_INET, socket.SOCK_STREAM, ALLOWED),
        (socket.AF_INET6, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, ALLOWED),
        (socket.AF_INET, socket.SOCK_RAW, errno.EPERM),
        (socket.AF_UNIX, socket.SOCK_STREAM, errno.EPERM),
        (socket.AF_NETLINK, socket.SOCK_RAW, errno.EPERM),
        (socket.AF_PACKET, socket.SOCK_RAW, errno.EPERM),
    ],
)
def test_sockets_are_granted_by_family_and_type(family, kind, with_network):
    assert judge("socket", family, kind) == errno.EPERM
    assert judge("socket", family, kind, network=True) == with_network


def test_socket_pairs_are_unix_streams_only():
    assert judge("socketpair", socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) == ALLOWED
    assert judge("socketpair", socket.AF_UNIX, socket.SOCK_DGRAM) == errno.EPERM


@pytest.mark.parametrize("name", ["connect", "bind", "listen", "accept4"])
def test_sockets_listen_and_connect_only_with_network(name):
    assert judge(name) == errno.EPERM
    assert judge(name, network=True) == ALLOWED


@pytest.mark.parametrize("name", ["prlimit64", "sched_setscheduler", "sched_setaffinity"])
def test_a_process_sets_only_its_own_limits(name):
    assert judge(name, 0) == ALLOWED
    assert judge(name, OWN_PID + 1) == errno.EPERM


def test_signals_pass_only_if_another_barrier_keeps_them_inside():
    assert judge("kill", 1) == ALLOWED
    assert judge("kill", 1, signals=False) == errno.EPERM
    assert judge("kill", OWN_PID, signals=False) == ALLOWED
    assert judge("tgkill", OWN_PID, signals=False) == ALLOWED
    assert judge("kill", -1, signals=False) == errno.EPERM
    assert judge("pidfd_send_signal", 3, signals=False) == errno.EPERM


def test_attributes_by_path_are_refused_without_a_user_of_the_tasks_own():
    assert judge("chmod") == ALLOWED
    assert judge("chmod", attributes=False) == errno.EPERM
    assert judge("utimensat", 3, 0, attributes=False) == ALLOWED
    assert judge("utimensat", 3, 1 << 40, attributes=False) == errno.EPERM
    assert judge("utimensat", 3, 8, attributes=False) == errno.EPERM


def test_truncation_by_path_is_refused_if_landlock_does_not_cover_it():
    assert judge("truncate") == ALLOWED
    assert judge("truncate", truncate=False) == errno.EPERM


def test_input_cannot_be_injected_into_terminals():
    assert judge("ioctl", 0, 0x5412) == errno.EPERM
    assert judge("ioctl", 0, 0x5401) == ALLOWED


def test_an_unknown_machine_is_refused():
    with pytest.raises(NotImplementedError, match="riscv64"):
        build_filter(Permissions(), OWN_PID, "riscv64")


def test_no_two_calls_share_a_number():
    for column in range(2):
        numbers = [pair[column] for pair in NUMBERS.values() if pair[column] is not None]
        assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("name", ["kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open"])
def test_the_filter_protects_the_first_process_of_a_namespace_if_the_kernel_does_not(name):
    assert judge(name, 1, first_process=False) == errno.EPERM
    assert judge(name, 7, first_process=False) == ALLOWED
    assert judge(name, 1) == ALLOWED


def test_signals_to_all_processes_are_refused_if_the_kernel_does_not_protect_the_first():
    assert judge("kill", -1, first_process=False) == errno.EPERM


@MACHINES
def test_blocks_beyond_the_end_of_a_file_are_refused(machine):
    keep_size = 1

    assert judge("fallocate", 3, keep_size, machine=machine) == errno.EOPNOTSUPP
    assert judge("fallocate", 3, 0, machine=machine) == ALLOWED


@MACHINES
@pytest.mark.parametrize("name", ["sendmsg", "sendmmsg"])
def test_messages_that_carry_descriptors_need_the_network(machine, name):
    assert judge(name, machine=machine) == errno.EPERM
    assert judge(name, machine=machine, network=True) == ALLOWED


@MACHINES
def test_shared_memory_has_a_file(machine):
    private, shared, validated, anonymous, huge = 2, 1, 3, 0x20, 0x40000

    assert judge("mmap", 0, 4096, 3, shared | anonymous, machine=machine) == errno.EPERM
    assert judge("mmap", 0, 4096, 3, validated | anonymous, machine=machine) == errno.EPERM
    assert judge("mmap", 0, 4096, 3, private | anonymous | huge, machine=machine) == errno.ENOMEM
    assert judge("mmap", 0, 4096, 3, private | anonymous, machine=machine) == ALLOWED
    assert judge("mmap", 0, 4096, 3, shared, 3, machine=machine) == ALLOWED


@MACHINES
def test_all_threads_of_a_process_have_the_same_descriptors(machine):
    of_glibc, files = 0x3D0F00, 0x400

    assert judge("clone", of_glibc, machine=machine) == ALLOWED
    assert judge("clone", of_glibc & ~files, machine=machine) == errno.EPERM
    # Nor do processes share them: a lock would outlive the process that took it.
    assert judge("clone", files | 17, machine=machine) == errno.EPERM
    assert judge("close_range", 3, 2**32 - 1, 2, machine=machine) == errno.EPERM
    assert judge("close_range", 3, 2**32 - 1, 4, machine=machine) == ALLOWED


@MACHINES
def test_locks_belong_to_processes(machine):
    lock, lock_of_open_file, and_wait = 6, 37, 38

    assert judge("fcntl", 3, lock, machine=machine) == ALLOWED
    assert judge("fcntl", 3, lock_of_open_file, machine=machine) == errno.EPERM
    assert judge("fcntl", 3, and_wait, machine=machine) == errno.EPERM


@MACHINES
@pytest.mark.parametrize("name", ["splice", "tee", "vmsplice", "sendfile"])
def test_no_page_goes_into_a_pipe(machine, name):
    assert judge(name, machine=machine, network=True) == errno.EINVAL


@MACHINES
@pytest.mark.parametrize("name", ["setxattr", "lsetxattr", "fsetxattr"])
def test_files_seem_to_have_no_attributes(machine, name):
    assert judge(name, machine=machine) == errno.EOPNOTSUPP


def test_buffers_of_pipes_and_sockets_have_their_default_sizes():
    assert judge("fcntl", 3, 1031, 1 << 20) == errno.EPERM
    assert judge("fcntl", 3, 1032) == ALLOWED
    assert judge("setsockopt", 3, socket.SOL_SOCKET, socket.SO_SNDBUF) == errno.EPERM


@pytest.mark.parametrize("command", [0x40305828, 0x4030582A, 0x40305839])
def test_no_call_reserves_blocks_beyond_the_end_of_a_file(command):
    assert judge("ioctl", 3, command) == errno.EPERM


@MACHINES
def test_a_change_of_the_limit_on_core_dumps_has_no_effect(machine):
    core, files, pointer = 4, 7, 1 << 40

    assert judge("setrlimit", core, pointer, machine=machine) == 0
    assert judge("setrlimit", files, pointer, machine=machine) == ALLOWED
    assert judge("prlimit64", 0, core, pointer, 0, machine=machine) == 0
    assert judge("prlimit64", 0, core, 0, pointer, machine=machine) == ALLOWED
    assert judge("prlimit64", 0, files, pointer, 0, machine=machine) == ALLOWED


def test_a_process_cannot_hide_from_its_monitor():
    assert judge("prctl", 4, 0) == errno.EPERM
    assert judge("prctl", 15, 0) == ALLOWED


@MACHINES
def test_files_may_be_pipes_but_no_devices(machine):
    path = 1 << 40

    for kind, expected in ((stat.S_IFCHR, errno.EPERM), (stat.S_IFBLK, errno.EPERM), (stat.S_IFIFO, ALLOWED)):
        assert judge("mknodat", -100, path, kind | 0o600, machine=machine) == expected
        if number_of("mknod", machine) is not None:
            assert judge("mknod", path, kind | 0o600, machine=machine) == expected


@MACHINES
def test_timers_need_a_kernel_that_limits_them(machine):
    assert judge("timer_create", 1, machine=machine) == ALLOWED
    assert judge("timer_create", 1, machine=machine, timers=False) == errno.ENOSYS


@MACHINES
def test_locks_on_ranges_need_a_kernel_that_lists_them(machine):
    for operation in (fcntl.F_SETLK, fcntl.F_SETLKW):
        assert judge("fcntl", 5, operation, machine=machine) == ALLOWED
        assert judge("fcntl", 5, operation, machine=machine, locks=False) == 0

    assert judge("fcntl", 5, fcntl.F_GETFL, machine=machine, locks=False) == ALLOWED
    assert judge("fcntl", 5, syscall_filter._F_OFD_SETLK, machine=machine, locks=False) == errno.EPERM
