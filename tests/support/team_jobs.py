"""An operator and a team on a cluster, installed with their charts, and the jobs of tests."""

import copy
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import charts
from support.charts import helm, options, try_helm
from support.jobs import job
from support.kubernetes import Namespace, wait_for
from support.team_release import RELEASE, STORE, pod, team_release
from turnmill.jobs.yaml_file import parse_yaml

ROOT = Path(__file__).parents[2]
CRD_NAME = "agenttrainingjobs.turnmill.dev"
CRD = ROOT / "manifests" / "crds" / f"{CRD_NAME}.yaml"
"""The definition of jobs, and the policy with rules across their sections."""

RELEASE_OF_OPERATOR = "turnmill"
OPERATOR_PODS = "app.kubernetes.io/component=operator"
READER = "reader"


def install_definition(namespace: Namespace) -> None:
    """Install the definition of jobs of the repository, and wait until the API server judges by it."""
    namespace.kubectl("apply", "--server-side", "--force-conflicts", f"--filename={CRD}")
    namespace.kubectl("wait", "--for=condition=Established", f"crd/{CRD_NAME}")
    wait_for(
        "the policy", lambda: "denied request" in try_create(namespace, job(queue="a", cluster="shared")), seconds=60
    )


def try_create(namespace: Namespace, *jobs: Mapping[str, Any]) -> str:
    """Return the errors for jobs that are created in a dry run."""
    done = namespace.try_kubectl(
        *("create", "--dry-run=server", "--validate=false", "--filename=-"),
        stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(jobs)}),
    )
    return done.stderr


@dataclass(frozen=True, slots=True)
class Team:
    """A namespace with an operator, tool servers, a store and shared storage."""

    namespace: Namespace

    def submit(self, example: str, name: str, **changes: Any) -> "SubmittedJob":
        """Apply an example job under this name; `changes` are fields of its spec, such as `training__steps`."""
        manifest = copy.deepcopy(parse_yaml((ROOT / "manifests" / "examples" / example).read_text()).value)
        manifest["metadata"]["name"] = name
        for path, value in changes.items():
            *folders, last = path.split("__")
            section = manifest["spec"]
            for folder in folders:
                section = section.setdefault(folder, {})
            section[last] = value
        self.namespace.apply(manifest)
        return SubmittedJob(self, name)

    def pods(self, selector: str) -> list[str]:
        """Return the names of pods that are not being deleted."""
        pods = self.namespace.list("pods", selector)
        return [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def kill(self, selector: str, *, at_most: int | None = None) -> list[str]:
        """Kill pods of a selector at once, as when a node fails; return their names."""
        names = self.pods(selector)[:at_most]
        assert names, f"no pod with {selector}"
        self.namespace.kubectl("delete", "pod", *names, "--grace-period=0", "--force", "--wait=false")
        return names

    def store_keys(self) -> list[str]:
        """Return every key of the trajectory store."""
        script = 'REDISCLI_AUTH="$(cat /etc/store-password/password)" redis-cli --scan'
        return self.namespace.run_in(f"{STORE}-0", "sh", "-c", script).split()

    def read(self, path: str) -> str:
        """Return the text of a file on the storage of runs."""
        return self.namespace.run_in(READER, "cat", path)


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """A job on the cluster."""

    team: Team
    name: str

    @property
    def labels(self) -> str:
        """The selector of all objects of the job."""
        return f"turnmill.dev/job={self.name}"

    @property
    def resource(self) -> dict[str, Any]:
        """The current resource."""
        found = self.team.namespace.get("agenttrainingjob", self.name)
        assert found is not None, f"there is no job {self.name}"
        return found

    @property
    def progress(self) -> Mapping[str, Any]:
        """The progress in the status."""
        return self.resource.get("status", {}).get("progress") or {}

    def condition(self, kind: str) -> Mapping[str, Any]:
        """Return a condition by type; empty if there is none."""
        conditions = self.resource.get("status", {}).get("conditions", ())
        return next((condition for condition in conditions if condition["type"] == kind), {})

    def wait_for_step(self, step: int, *, seconds: float) -> None:
        """Wait until a step is done; raises AssertionError if the job fails before."""
        wait_for(f"step {step} of {self.name}", lambda: self._has_reached(step), seconds=seconds)

    def _has_reached(self, step: int) -> bool:
        resource = self.resource
        self._require_no_failure(resource)
        return int(resource.get("status", {}).get("progress", {}).get("step", 0)) >= step

    def wait_until_learned(self, step: int, *, seconds: float) -> None:
        """Wait for a step in the run's metrics, because a status may be half a minute old."""

        def learned() -> bool:
            self._require_no_failure(self.resource)
            return max(self.learned_steps(), default=0) >= step

        wait_for(f"step {step} in the metrics of {self.name}", learned, seconds=seconds)

    def wait_until_complete(self, *, seconds: float) -> dict[int, float]:
        """Wait until the job is complete; return the rewards that the status showed, by step."""
        rewards: dict[int, float] = {}

        def ended() -> bool:
            resource = self.resource
            self._require_no_failure(resource)
            progress = resource.get("status", {}).get("progress") or {}
            if "rewardMean" in progress:
                rewards[progress["step"]] = progress["rewardMean"]
            return bool(_is_true(resource, "Complete"))

        wait_for(f"end of {self.name}", ended, seconds=seconds)
        return rewards

    def _require_no_failure(self, resource: Mapping[str, Any]) -> None:
        if failed := _is_true(resource, "Failed"):
            raise AssertionError(f"{self.name} failed: {failed['reason']}: {failed['message']}")

    @property
    def run_dir(self) -> str:
        """The run folder on the storage of runs."""
        metadata = self.resource["metadata"]
        return f"/runs/{self.team.namespace.name}/{self.name}-{metadata['uid'][:8]}"

    def metrics(self) -> list[dict[str, Any]]:
        """Return the run's metrics of every step so far."""
        file = f"{self.run_dir}/metrics.jsonl"
        lines = self.team.namespace.run_in(READER, "sh", "-c", f"cat {file} 2>/dev/null || true").splitlines(True)
        # The last line may be incomplete.
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def learned_steps(self) -> list[int]:
        """Return the steps in the run's metrics."""
        return [row["step"] for row in self._steps()]

    def rewards(self) -> dict[int, float]:
        """Return the mean reward of every step in the run's metrics."""
        return {row["step"]: row["turnmill/reward_mean"] for row in self._steps()}

    def _steps(self) -> list[dict[str, Any]]:
        return [row for row in self.metrics() if "timing_s/step" in row]

    def summary(self) -> dict[str, Any]:
        """Return the summary of the run."""
        found: dict[str, Any] = json.loads(self.team.read(f"{self.run_dir}/summary.json"))
        return found


def _is_true(resource: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    conditions = resource.get("status", {}).get("conditions", ())
    return next((found for found in conditions if (found["type"], found["status"]) == (kind, "True")), {})


@contextmanager
def operated_team(
    namespace: Namespace, values: dict[str, Any] | None = None, operator: dict[str, Any] | None = None
) -> Iterator[Team]:
    """Install both charts for this namespace only, and a pod that reads the storage of runs."""
    install_definition(namespace)
    own = {"operator": {"namespaces": [namespace.name], "replicas": 2, **(operator or {})}}
    where = [RELEASE_OF_OPERATOR, str(charts.OPERATOR), f"--namespace={namespace.name}"]
    helm("upgrade", "--install", *where, *options(own, [charts.OPERATOR / "ci" / "one-namespace-values.yaml"]))
    policies = {"networkPolicy": {"operatorNamespace": namespace.name}}
    with team_release(namespace, policies | (values or {})):
        volume = {"name": "runs", "persistentVolumeClaim": {"claimName": f"{RELEASE}-runs"}}
        reader = pod(READER, {}, volumes=[volume])
        reader["spec"]["containers"][0]["volumeMounts"] = [{"name": "runs", "mountPath": "/runs", "readOnly": True}]
        namespace.apply(reader)
        namespace.kubectl("wait", "--for=condition=Ready", f"pod/{READER}", "--timeout=60s", timeout=70)
        namespace.kubectl(
            "rollout", "status", f"deployment/{RELEASE_OF_OPERATOR}-operator", "--timeout=120s", timeout=130
        )
        try:
            yield Team(namespace)
        finally:
            # Jobs are deleted first, so that the operator stops their runs.
            namespace.try_kubectl("delete", "agenttrainingjobs", "--all", "--timeout=120s", timeout=150)
            # The reader's volume claim would block the uninstallation.
            namespace.delete("pod", READER)
            try_helm("uninstall", RELEASE_OF_OPERATOR, f"--namespace={namespace.name}", "--ignore-not-found", "--wait")
