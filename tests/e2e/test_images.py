"""The images under the restrictions of their charts: no root user, no capabilities, a read-only root."""

from typing import Any

from support.kubernetes import Namespace, wait_for

RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


def restricted_pod(name: str, image: str, **container: Any) -> dict[str, Any]:
    main = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "securityContext": RESTRICTED,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        **container,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "automountServiceAccountToken": False,
            "restartPolicy": "Never",
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [main],
            "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}],
        },
    }


def output_of(namespace: Namespace, pod: dict[str, Any]) -> str:
    """Run a pod to its end and return its output."""
    name = pod["metadata"]["name"]
    namespace.apply(pod)

    def phase() -> str | None:
        found = namespace.get("pod", name)
        reached: str = found["status"]["phase"] if found else ""
        return reached if reached in ("Succeeded", "Failed") else None

    ended = wait_for(f"end of pod {name}", phase, seconds=120)
    output = namespace.logs(name)
    assert ended == "Succeeded", output
    return output


def test_the_tool_server_image_passes_the_sandbox_self_test(namespace: Namespace):
    tools = "python_code,ipython_code,bash_terminal,python_oj,sql,search_retrieval"
    ready = {"httpGet": {"path": "/health", "port": 5000}, "periodSeconds": 1}
    namespace.apply(
        restricted_pod(
            "tools",
            "turnmill/tool-server:0.1.0",
            args=["--host", "0.0.0.0", "--tool-type", tools],
            readinessProbe=ready,
        )
    )

    namespace.kubectl("wait", "--for=condition=Ready", "pod/tools", "--timeout=120s", timeout=150)

    # The workers answer before the parent process logs its tools.
    log = wait_for("list of tools", lambda: text if "tools=" in (text := namespace.logs("tools")) else None, seconds=30)
    assert "Sandbox ready confined=True" in log
    assert f"tools={tools}" in log


def test_the_tool_server_image_has_the_sandbox_packages_and_no_trainer(namespace: Namespace):
    code = (
        "import importlib.util as util\n"
        "print([name for name in ('numpy', 'mpmath', 'sympy', 'torch', 'ray', 'verl') if util.find_spec(name)])"
    )

    output = output_of(
        namespace, restricted_pod("packages", "turnmill/tool-server:0.1.0", command=["python", "-c", code])
    )

    assert output.strip() == "['numpy', 'mpmath', 'sympy']"
