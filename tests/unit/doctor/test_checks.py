import json
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray.util

from turnmill.doctor import machine as machine_checks
from turnmill.doctor import storage as storage_checks
from turnmill.doctor import training as training_checks
from turnmill.doctor.attention import attention
from turnmill.doctor.machine import GIB, gpus, inference_engine, memory, network, open_files, packages
from turnmill.doctor.ranks import ranks
from turnmill.doctor.results import CheckFailedError, CheckSkippedError, Machine
from turnmill.doctor.storage import storage
from turnmill.observability import atomic_files
from turnmill.observability.run_folder import RunFolder


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine("cpu", tmp_path, scratch=tmp_path)


def test_the_packages_of_this_environment_are_those_that_are_required(machine):
    assert f"verl {metadata.version('verl')}" in packages(machine)


def test_packages_of_other_versions_and_missing_ones_are_named(machine, monkeypatch):
    versions = {"ray": "2.9.0", "redis": None}
    real = metadata.version

    def version(name: str) -> str:
        found = versions.get(name, real(name) if name not in versions else None)
        if found is None:
            raise metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(metadata, "version", version)

    with pytest.raises(CheckFailedError) as error:
        packages(machine)

    assert error.value.found == "ray is 2.9.0, required is ==2.60.0; redis is not installed"
    assert error.value.way_out == "Install them anew: make install DEVICE=cpu."


def test_a_gpu_that_torch_cannot_use_is_reported(machine, monkeypatch):
    with pytest.raises(CheckSkippedError, match="no GPU"):
        gpus(machine)

    monkeypatch.setattr(machine_checks, "shows_gpu", lambda: True)
    with pytest.raises(CheckFailedError, match=r"the driver shows a GPU, but torch .* has no CUDA"):
        gpus(machine)


@pytest.fixture
def cuda(monkeypatch) -> SimpleNamespace:
    """A machine with two H100s, as torch describes it."""
    h100 = SimpleNamespace(name="NVIDIA H100", major=9, minor=0, free=79 * GIB, total=80 * GIB)
    devices = [SimpleNamespace(**vars(h100)), SimpleNamespace(**vars(h100))]
    torch_cuda = {
        "is_available": lambda: True,
        "device_count": lambda: len(devices),
        "get_device_properties": lambda number: devices[number],
        "mem_get_info": lambda number: (devices[number].free, devices[number].total),
    }
    for name, function in torch_cuda.items():
        monkeypatch.setattr(f"torch.cuda.{name}", function)
    monkeypatch.setattr(machine_checks, "driver_version", lambda: "13.1")
    monkeypatch.setattr(machine_checks, "resolve_device", lambda device: device)
    return SimpleNamespace(devices=devices)


def on_gpus(tmp_path: Path, gpus_per_node: int = 1) -> Machine:
    train = SimpleNamespace(gpus_per_node=gpus_per_node)
    job = SimpleNamespace(spec=SimpleNamespace(resources=SimpleNamespace(train=train)))
    return Machine("cuda", tmp_path, job)


def test_gpus_are_listed(cuda, tmp_path):
    assert gpus(on_gpus(tmp_path)).endswith("driver for CUDA 13.1: NVIDIA H100 (80 GiB), NVIDIA H100 (80 GiB)")


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_driver_is_asked_for_its_version(tmp_path):
    source, library = tmp_path / "driver.c", tmp_path / "libcuda.so.1"
    source.write_text("int cuDriverGetVersion(int *version) { *version = 13010; return 0; }")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    command = [sys.executable, "-c", "from turnmill.doctor.machine import driver_version; print(driver_version())"]

    asked = subprocess.run(
        command, env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )

    assert asked.stdout == "13.1\n"


def test_a_gpu_that_is_in_use_or_too_old_is_named(cuda, tmp_path):
    cuda.devices[1].free = 40 * GIB
    with pytest.raises(CheckFailedError, match=r"GPU 1, NVIDIA H100: 40.0 of 80.0 GiB are free"):
        gpus(on_gpus(tmp_path))

    cuda.devices[1].free, cuda.devices[0].major = 79 * GIB, 7
    with pytest.raises(CheckFailedError, match=r"GPU 0, NVIDIA H100, has compute capability 7.0"):
        gpus(on_gpus(tmp_path))


def test_fewer_gpus_than_the_job_needs_are_reported(cuda, tmp_path):
    with pytest.raises(CheckFailedError, match=r"2 of the 4 GPUs of spec.resources.train.gpusPerNode"):
        gpus(on_gpus(tmp_path, gpus_per_node=4))


def test_the_inference_engine_must_be_of_the_device(machine):
    assert inference_engine(machine) == "vLLM on cpu"
    with pytest.raises(CheckFailedError, match="vLLM would run on cpu, not on cuda"):
        inference_engine(Machine("cuda", machine.storage))


def test_attention_that_computes_something_else_is_noticed(machine, monkeypatch):
    assert "sdpa in float32 within" in attention(machine)

    def not_causal(query, key, value, *, is_causal):
        return torch_attention(query, key, value)

    import torch

    torch_attention = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", not_causal)
    with pytest.raises(CheckFailedError, match="differs from the formula by"):
        attention(machine)


def test_too_little_memory_of_each_kind_is_reported(machine, monkeypatch):
    assert "GiB of shared memory" in memory(machine)

    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=64, f_frsize=2**20))
    with pytest.raises(CheckFailedError, match="64 MiB of shared memory"):
        memory(machine)

    monkeypatch.setattr(machine_checks, "available_bytes", lambda: 2 * GIB)
    with pytest.raises(CheckFailedError, match=r"2.0 GiB of memory"):
        memory(machine)


def test_too_few_open_files_are_reported(machine, monkeypatch):
    assert "per process" in open_files(machine)

    monkeypatch.setattr("resource.getrlimit", lambda kind: (256, 1024))
    with pytest.raises(CheckFailedError, match="1024 files"):
        open_files(machine)


def test_storage_of_this_machine_is_fine(machine):
    assert "MiB/s, fsync" in storage(machine)


def test_a_full_disk_is_reported(machine, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=GIB))
    with pytest.raises(CheckFailedError, match=r"1.0 GiB free"):
        storage(machine)


@pytest.fixture
def complaints(tmp_path: Path):
    """What one of the two writers complains about."""
    (tmp_path / "state").write_text("{}")

    def of(number: int) -> str:
        storage_checks._append_and_replace(tmp_path, number)
        return (tmp_path / f"complaint-{number}").read_text()

    return of


def test_a_lock_that_two_processes_get_is_noticed(complaints):
    # Nobody holds it here.
    assert complaints(0) == "a lock (flock) was given to two processes"


def test_a_file_that_is_cut_off_while_it_is_replaced_is_noticed(complaints, monkeypatch):
    monkeypatch.setattr(atomic_files, "write_text", lambda path, text: path.write_text(text[:100]))
    assert "a reader found a file missing or cut off while it was replaced" in complaints(1)


def test_this_machine_reaches_its_own_address(machine, monkeypatch):
    assert " at " in network(machine)

    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr("socket.create_connection", _refuse)
    with pytest.raises(CheckFailedError, match=r"127\.0\.0\.1, this machine's own address, fails"):
        network(machine)


def _refuse(*args, **kwargs):
    raise ConnectionRefusedError("Connection refused")


def test_ranks_that_cannot_reach_each_other_are_reported(machine, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "absent0")

    with pytest.raises(CheckFailedError, match=r"gloo between 2 ranks: .*absent0"):
        ranks(machine)


@pytest.fixture
def run(machine) -> training_checks._Run:
    return training_checks._Run(machine, "small", mode="sync", gpus=1)


def test_a_run_that_is_refused_tells_why(run, machine, monkeypatch):
    monkeypatch.setattr(training_checks, "_JOB", {**training_checks._JOB, "model": {"path": "/nowhere"}})

    with pytest.raises(CheckFailedError, match="/nowhere"):
        training_checks.training(machine)


def test_engines_without_the_newest_weights_are_noticed(run):
    assert run.require_synced([{"training/rollout_probs_diff_mean": 1e-8}]) == "engine and trainer agree within 1e-08"
    for error in (0.2, float("nan")):
        with pytest.raises(CheckFailedError, match="weights did not arrive"):
            run.require_synced([{"training/rollout_probs_diff_mean": error}])


def test_steps_that_are_missing_or_repeated_are_noticed(run):
    folder = RunFolder(run.folder.path)
    folder.create()
    folder.metrics.write_text("".join(json.dumps({"step": step}) + "\n" for step in (0, 1, 3)))

    with pytest.raises(CheckFailedError, match=r"steps \[1, 3\] instead of 1 to 3"):
        run.steps(1, 3)
