"""Tool servers and their sandbox under the RuntimeClass gvisor."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.kubernetes import Namespace, temporary_namespace
from support.programs import why_no_program
from support.team_release import TeamRelease, pod, team_release

TESTS = Path(__file__).parents[1]
ATTACKS = TESTS / "integration" / "sandboxes"
MISSING = why_no_program("helm")

pytestmark = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")


@pytest.fixture(scope="module")
def namespace(prefix: str) -> Iterator[Namespace]:
    with temporary_namespace(prefix, labels={"pod-security.kubernetes.io/enforce": "restricted"}) as fresh:
        if fresh.get("runtimeclass", "gvisor") is None:
            pytest.skip("needs the RuntimeClass gvisor")
        yield fresh


@pytest.fixture(scope="module")
def release(namespace: Namespace) -> Iterator[TeamRelease]:
    values = {
        "toolServer.runtimeClassName": "gvisor",
        "toolServer.autoscaling.enabled": False,
        "toolServer.replicas": 1,
    }
    with team_release(namespace, values) as installed:
        yield installed


def test_a_tool_server_under_gvisor_serves_and_its_self_test_passes(release: TeamRelease):
    (replica,) = release.tool_server_pods()

    assert replica["spec"]["runtimeClassName"] == "gvisor"
    assert "the call is counted" in release.test()
    log = release.namespace.logs(replica["metadata"]["name"])
    assert "Sandbox ready" in log
    assert "own_mounts=True" in log
    assert "own_cgroup=True" in log


@pytest.mark.nightly
def test_attacks_fail_under_gvisor(namespace: Namespace):
    writable = {"volumes": [{"name": "tmp", "emptyDir": {}}], "runtimeClassName": "gvisor"}
    attacked = pod("attacked", {}, **writable)
    attacked["spec"]["containers"][0]["volumeMounts"] = [{"name": "tmp", "mountPath": "/tmp"}]
    namespace.apply(attacked)
    namespace.kubectl("wait", "--for=condition=Ready", "pod/attacked", "--timeout=120s", timeout=130)
    namespace.run_in("attacked", "mkdir", "/tmp/support")
    for folder, name in (
        (ATTACKS, "attack_programs.py"),
        (ATTACKS, "attack_runner.py"),
        (ATTACKS, "kernel_attacks.py"),
        (ATTACKS, "limit_attacks.py"),
        (TESTS, "support/container.py"),
    ):
        code = f"import sys; open('/tmp/{name}', 'w').write(sys.stdin.read())"
        namespace.kubectl("exec", "--stdin", "attacked", "--", "python", "-c", code, stdin=(folder / name).read_text())

    output = namespace.run_in(
        "attacked", "env", "SECRET=secret", "python", "/tmp/attack_runner.py", "--sandboxed", timeout=590
    )

    findings = json.loads(output.splitlines()[-1])
    assert findings.pop("afterwards")["works"]
    assert not {name for name, finding in findings.items() if finding["succeeded"]}
