"""What becomes of the pods of runs: those that Kubernetes takes away, and those that die, whose nodes are avoided."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from turnmill.jobs.status import MAX_FAILED_NODES
from turnmill_operator.views import Disruption, RawObject

HOST_NAME = "kubernetes.io/hostname"
WEIGHT = 100


def disruption_of(pod: RawObject) -> Disruption | None:
    """Return the disruption of a pod, which Kubernetes marks with the condition `DisruptionTarget`."""
    for found in (pod.get("status") or {}).get("conditions") or ():
        if found["type"] == "DisruptionTarget" and found["status"] == "True":
            why = ": ".join(part.rstrip(".") for part in (found.get("reason"), found.get("message")) if part)
            when = found.get("lastTransitionTime")
            at = datetime.fromisoformat(when) if when else datetime.now(UTC)
            return Disruption(at, f"pod {pod['metadata']['name']} ({why})")
    return None


def failed_node(pod: RawObject) -> str | None:
    """Return the node of a pod that died there by itself; None for any other pod.

    Pods that are deleted end because somebody wanted it, and those that Kubernetes disrupts are no fault of the node or
    of one that takes no more pods.
    """
    has_failed = (pod.get("status") or {}).get("phase") == "Failed"
    if not has_failed or "deletionTimestamp" in pod["metadata"] or disruption_of(pod) is not None:
        return None
    name: str | None = pod["spec"].get("nodeName")
    return name


def with_failed_nodes(before: Sequence[str], found: Sequence[str]) -> tuple[str, ...]:
    """Return the nodes of a job's status, the newest last; the oldest are given another chance."""
    kept = [node for node in before if node not in found]
    return tuple([*kept, *found][-MAX_FAILED_NODES:])


def avoid(pod: dict[str, Any], nodes: Sequence[str]) -> None:
    """Have a pod prefer other nodes, beside what it prefers already."""
    if not nodes:
        return
    term: Mapping[str, object] = {
        "weight": WEIGHT,
        "preference": {"matchExpressions": [{"key": HOST_NAME, "operator": "NotIn", "values": list(nodes)}]},
    }
    affinity = pod["spec"].setdefault("affinity", {}).setdefault("nodeAffinity", {})
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    affinity[preferred] = [*affinity.get(preferred, ()), term]
