"""Checks of packages, GPUs, memory and network."""

import ctypes
import importlib
import os
import resource
import socket
from importlib import metadata

from packaging.requirements import Requirement

from turnmill.doctor.results import CheckFailedError, CheckSkippedError, Machine
from turnmill.runs.preparation import resolve_device, shows_gpu
from turnmill.sandboxes.admission import available_bytes

MIB, GIB = 2**20, 2**30
MIN_MEMORY = 4 * GIB
# Weights cross in shared memory, and Ray keeps its objects there.
MIN_SHARED_MEMORY = {"cpu": GIB // 2, "cuda": 4 * GIB}
# Ray's processes have hundreds of files and sockets open each.
MIN_OPEN_FILES = 4096
# bfloat16, and the kernels of vLLM.
MIN_CAPABILITY = (8, 0)
MIN_FREE_GPU_MEMORY = 0.9


def packages(machine: Machine) -> str:
    """Versions of the packages, as turnmill requires them; each can be imported."""
    wrong = []
    for text in metadata.requires("turnmill") or ():
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": "training"}):
            continue
        try:
            found = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{requirement.name} is not installed")
            continue
        if not requirement.specifier.contains(found, prereleases=True):
            wrong.append(f"{requirement.name} is {found}, required is {requirement.specifier}")
    if wrong:
        raise CheckFailedError("; ".join(wrong), f"Install them anew: make install DEVICE={machine.device}.")
    names = ("torch", "vllm", "ray", "verl", "transformers")
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            raise CheckFailedError(
                f"{name} cannot be imported: {first_line(error)}",
                f"Install the packages anew: make install DEVICE={machine.device}.",
            ) from error
    return ", ".join(f"{name} {metadata.version(name)}" for name in names)


def gpus(machine: Machine) -> str:
    """Driver and GPUs, their free memory, and the build of torch."""
    import torch

    if machine.device == "cpu":
        if shows_gpu() and torch.version.cuda is None:
            raise CheckFailedError(
                f"the driver shows a GPU, but torch {torch.__version__} has no CUDA",
                "Install the packages for GPUs: make install DEVICE=cuda.",
            )
        raise CheckSkippedError("no GPU")
    resolve_device("cuda")
    if not torch.cuda.is_available():
        raise CheckFailedError(
            f"torch {torch.__version__} (CUDA {torch.version.cuda}) finds no GPU",
            "Compare the driver's version in `nvidia-smi` with the CUDA version; in a pod, ask for `nvidia.com/gpu`.",
        )
    found = []
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        free, total = torch.cuda.mem_get_info(number)
        if (properties.major, properties.minor) < MIN_CAPABILITY:
            raise CheckFailedError(
                f"GPU {number}, {properties.name}, has compute capability {properties.major}.{properties.minor}",
                f"bfloat16 needs {MIN_CAPABILITY[0]}.{MIN_CAPABILITY[1]}: an A40, A100, H100 or newer.",
            )
        if free < MIN_FREE_GPU_MEMORY * total:
            raise CheckFailedError(
                f"GPU {number}, {properties.name}: {free / GIB:.1f} of {total / GIB:.1f} GiB are free",
                "End what uses it: `nvidia-smi` lists the processes.",
            )
        found.append(f"{properties.name} ({total / GIB:.0f} GiB)")
    if machine.job is not None and (missing := machine.job.spec.resources.train.gpus_per_node - len(found)) > 0:
        raise CheckFailedError(
            f"{len(found)} of the {len(found) + missing} GPUs of spec.resources.train.gpusPerNode",
            "Lower gpusPerNode, or run it on a machine that has them.",
        )
    return f"CUDA {torch.version.cuda}, driver for CUDA {driver_version()}: {', '.join(found)}"


def driver_version() -> str:
    """Return the newest CUDA that this machine's driver can do, as the driver says. Raises OSError if there is none."""
    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def inference_engine(machine: Machine) -> str:
    """vLLM's platform, which must be that of the device."""
    from vllm.platforms import current_platform

    if current_platform.device_type != machine.device:
        raise CheckFailedError(
            f"vLLM would run on {current_platform.device_type or 'no device'}, not on {machine.device}",
            f"Install the packages for it: make install DEVICE={machine.device}.",
        )
    return f"vLLM on {current_platform.device_name or machine.device}"


def memory(machine: Machine) -> str:
    """Memory that this machine or pod may use, and free shared memory."""
    available = available_bytes()
    if available < MIN_MEMORY:
        raise CheckFailedError(f"{available / GIB:.1f} GiB of memory", f"A run needs {MIN_MEMORY // GIB} GiB at least.")
    shared = os.statvfs("/dev/shm")
    free, least = shared.f_bavail * shared.f_frsize, MIN_SHARED_MEMORY[machine.device]
    if free < least:
        raise CheckFailedError(
            f"{free / MIB:.0f} MiB of shared memory (/dev/shm) are free, needed are {least / MIB:.0f} MiB",
            "Give the pod a larger /dev/shm (`sharedMemory` of a worker group), or delete what lies there.",
        )
    return f"{available / GIB:.1f} GiB, {free / GIB:.1f} GiB of shared memory, {os.cpu_count()} CPUs"


def open_files(machine: Machine) -> str:
    """Limit of open files of a process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < MIN_OPEN_FILES:
        raise CheckFailedError(
            f"a process may have {hard} files open", f"Ray needs {MIN_OPEN_FILES}: raise the limit with `ulimit -Hn`."
        )
    return f"{soft} per process, at most {hard}"


def network(machine: Machine) -> str:
    """The address by which Ray's processes reach each other on this machine, and a port at it."""
    from ray.util import get_node_ip_address

    address = get_node_ip_address()
    try:
        with socket.create_server(("", 0)) as server:
            port = server.getsockname()[1]
            with socket.create_connection((address, port), timeout=10) as client:
                connection, _ = server.accept()
                with connection:
                    client.sendall(b"ping")
                    answer = connection.recv(4)
    except OSError as error:
        raise CheckFailedError(
            f"a connection to {address}, this machine's own address, fails: {first_line(error)}",
            "Let the firewall or network policy allow connections among a run's machines.",
        ) from error
    if answer != b"ping":
        raise CheckFailedError(f"a connection to {address} delivers {answer!r}", "Look for a proxy in between.")
    return f"{socket.gethostname()} at {address}"


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
