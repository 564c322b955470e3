"""`turnmill logs`, `fetch` and `view` on a cluster, with a run folder that no run wrote and a pod like a Ray head."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.kubernetes import Namespace, is_ready, temporary_namespace, wait_for
from support.team_jobs import READER, ROOT, install_definition
from support.team_release import RELEASE, pod, team_release
from turnmill.cli.main import main
from turnmill.jobs.yaml_file import parse_yaml
from turnmill.observability.run_folder import RunFolder

pytestmark = pytest.mark.timeout(900)

NAME, RAY_CLUSTER = "babyai", "babyai-1"
DRIVER_LOG = "/tmp/ray/session_latest/logs/job-driver-raysubmit_1.log"
CHECKPOINT = "checkpoints/step-1/weights.bin"


@pytest.fixture(scope="module")
def team(prefix: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespace]:
    """A team with one suspended job, whose run folder has a log and a checkpoint."""
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    with temporary_namespace(prefix, labels=restricted) as namespace:
        install_definition(namespace)
        values = {"toolServer.enabled": False}
        with team_release(namespace, values):
            manifest = parse_yaml((ROOT / "manifests/examples/babyai-goto-cpu.yaml").read_text()).value
            manifest["metadata"]["name"] = NAME
            manifest["spec"]["suspend"] = True
            namespace.apply(manifest)
            volume = {"name": "runs", "persistentVolumeClaim": {"claimName": f"{RELEASE}-runs"}}
            writer = pod(READER, {}, volumes=[volume])
            writer["spec"]["containers"][0]["volumeMounts"] = [{"name": "runs", "mountPath": "/runs"}]
            namespace.apply(writer)
            namespace.kubectl("wait", "--for=condition=Ready", f"pod/{READER}", "--timeout=60s", timeout=70)
            _fill(namespace, tmp_path_factory.mktemp("run"))
            try:
                yield namespace
            finally:
                namespace.delete("pod", READER)


def _fill(namespace: Namespace, local: Path) -> None:
    """Write a run folder, and copy it to the team's storage."""
    folder = RunFolder(local)
    folder.create()
    folder.write_job((ROOT / "manifests/examples/babyai-goto-cpu.yaml").read_text())
    (folder.logs / "launch.log").write_text("the run has begun\n")
    (local / CHECKPOINT).parent.mkdir(parents=True)
    (local / CHECKPOINT).write_bytes(os.urandom(1 << 20))
    (local / "big.bin").write_bytes(os.urandom(5 << 20))
    target = run_dir(namespace)
    archive = subprocess.run(["tar", "-C", str(local), "-cf", "-", "."], check=True, capture_output=True).stdout
    namespace.run_in(READER, "mkdir", "-p", target)
    command = ["kubectl", "--namespace", namespace.name, "exec", "-i", READER, "--", "tar", "-C", target, "-xf", "-"]
    subprocess.run(command, input=archive, check=True, timeout=120)


def run_dir(namespace: Namespace) -> str:
    job = namespace.get("agenttrainingjob", NAME)
    assert job is not None
    return f"/runs/{namespace.name}/{NAME}-{job['metadata']['uid'][:8]}"


def readers(namespace: Namespace) -> list[dict[str, Any]]:
    return namespace.list("pods", "app.kubernetes.io/component=reader")


def set_status(namespace: Namespace, **status: Any) -> None:
    patch = f"--patch={json.dumps({'status': status})}"
    namespace.kubectl("patch", "agenttrainingjob", NAME, "--subresource=status", "--type=merge", patch)


def test_a_run_folder_is_fetched_without_its_checkpoints_and_the_reading_pod_goes(team, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    assert main(["fetch", NAME, "-n", team.name]) == 0

    [folder] = (tmp_path / "runs").iterdir()
    assert folder.name == Path(run_dir(team)).name
    assert (folder / "logs" / "launch.log").read_text() == "the run has begun\n"
    assert (folder / "big.bin").stat().st_size == 5 << 20
    assert not (folder / "checkpoints").exists()
    assert f"turnmill report runs/{folder.name}" in capsys.readouterr().out
    wait_for("end of the reading pod", lambda: not readers(team), seconds=60)


def test_checkpoints_are_fetched_on_request_byte_by_byte(team, tmp_path, monkeypatch):
    assert main(["fetch", NAME, str(tmp_path / "whole"), "--checkpoints", "-n", team.name]) == 0

    there = team.run_in(READER, "sha256sum", f"{run_dir(team)}/{CHECKPOINT}").split()[0]
    assert hashlib.sha256((tmp_path / "whole" / CHECKPOINT).read_bytes()).hexdigest() == there


def test_logs_of_a_job_without_pods_come_from_its_run_folder(team, capfdbinary):
    set_status(team, attempt=1, state="Suspended")

    assert main(["logs", NAME, "-n", team.name]) == 0

    assert capfdbinary.readouterr().out == b"==> launch.log <==\nthe run has begun\n"


@contextmanager
def head(namespace: Namespace) -> Iterator[str]:
    """A pod with the labels of a Ray head, whose driver writes a line every time it is asked to."""
    script = f"mkdir -p $(dirname {DRIVER_LOG}); echo begun > {DRIVER_LOG}; sleep infinity"
    labels = {"ray.io/cluster": RAY_CLUSTER, "ray.io/node-type": "head", "turnmill.dev/job": NAME}
    namespace.apply(pod(f"{RAY_CLUSTER}-head", labels, "sh", "-c", script))
    name = f"{RAY_CLUSTER}-head"
    wait_for("head", lambda: is_ready(namespace.get("pod", name) or {}), seconds=60)
    set_status(namespace, attempt=1, state="Running", cluster=RAY_CLUSTER)
    try:
        yield name
    finally:
        namespace.delete("pod", name)
        set_status(namespace, cluster=None)


def test_followed_logs_show_what_the_driver_writes_until_its_pod_ends(team, tmp_path):
    with head(team) as name:
        with (tmp_path / "log").open("wb") as output:
            command = [sys.executable, "-m", "turnmill.cli.main", "logs", NAME, "-f", "-n", team.name]
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE)
        try:
            wait_for("first line", lambda: b"begun\n" in (tmp_path / "log").read_bytes(), seconds=30)
            team.run_in(name, "sh", "-c", f"echo step 1 >> {DRIVER_LOG}")
            wait_for("second line", lambda: b"step 1\n" in (tmp_path / "log").read_bytes(), seconds=30)
            team.delete("pod", name)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()

    assert (tmp_path / "log").read_bytes() == b"begun\nstep 1\n"
    assert b"Running, attempt 1" in errors
    assert process.returncode == 0


def test_the_trajectory_page_of_a_run_answers_at_a_local_port_and_its_pod_goes_with_ctrl_c(team):
    command = [sys.executable, "-m", "turnmill.cli.main", "view", NAME, "--port", "0", "-n", team.name]
    # A shell starts what it runs in the background with SIGINT ignored.
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
            assert found, line
            pages = [urllib.request.urlopen(found[0], timeout=30).read().decode() for _ in range(3)]
            assert len(readers(team)) == 1
            process.send_signal(signal.SIGINT)
            process.wait(60)
        finally:
            process.kill()

    assert all("turnmill" in page for page in pages)
    assert process.returncode == 0
    wait_for("end of the reading pod", lambda: not readers(team), seconds=60)
