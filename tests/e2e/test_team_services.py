"""A team's gateway before a real vLLM server, and the page of its runs: agents elsewhere, a replica that goes."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2Config, Qwen2ForCausalLM

from support.gateway import bpe_tokenizer
from support.kubernetes import Namespace, temporary_namespace, wait_for
from support.programs import why_no_program
from support.prometheus import prometheus_of_cluster
from support.team_release import RELEASE, STORE, TeamRelease, can_connect, host_paths, pod, scrape, start_script
from support.view_process import new_run

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
TRAINER = "turnmill/trainer:0.1.0"
GATEWAY = f"{RELEASE}-gateway"
VIEW = f"{RELEASE}-view"
GATEWAY_PODS = "app.kubernetes.io/component=gateway"
ENGINE_LABELS = {"app": "engine"}
CONVERSATION = Path(__file__).with_name("gateway_conversation.py")

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(why_no_program("helm") is not None, reason=why_no_program("helm") or ""),
]


@pytest.fixture(scope="module")
def agents(prefix: str) -> Iterator[Namespace]:
    """A namespace with a pod that has the `openai` package."""
    with temporary_namespace(prefix, labels=RESTRICTED) as namespace:
        namespace.apply(pod("agent", {}, image=TRAINER))
        namespace.kubectl("wait", "--for=condition=Ready", "pod/agent", "--timeout=120s", timeout=130)
        yield namespace


@pytest.fixture(scope="module")
def release(prefix: str, agents: Namespace) -> Iterator[TeamRelease]:
    """A release with two replicas of the gateway, which admits the agents, and its engine."""
    with temporary_namespace(prefix, labels=RESTRICTED) as namespace:
        installed = TeamRelease(namespace)
        values: dict[str, Any] = {
            "toolServer.enabled": False,
            "storage.models": {"enabled": True, "size": "1Gi", "accessModes": ["ReadWriteOnce"], "keep": False},
            "view": {"enabled": True, "from": [in_namespace(agents)]},
            "gateway": {
                "enabled": True,
                "engine": {"url": f"http://engine.{namespace.name}.svc:8000"},
                "model": "/models/tiny",
                "maxContextTokens": 2048,
                "workers": 1,
                "priorityClassName": "",
                "drainSeconds": 20,
                "from": [in_namespace(agents)],
                "egress": [{"to": [{"podSelector": {"matchLabels": ENGINE_LABELS}}], "ports": [{"port": 8000}]}],
                "autoscaling": {"enabled": False},
                "replicas": 2,
                "resources": {
                    "requests": {"cpu": "100m", "memory": "512Mi", "ephemeral-storage": "64Mi"},
                    "limits": {"memory": "3Gi", "ephemeral-storage": "1Gi"},
                },
            },
        }
        try:
            installed.install(values)
            (runs,) = host_paths(namespace, f"{RELEASE}-runs")
            new_run(runs / namespace.name / "done-1", step=20, steps=20).mark("ended")
            (models,) = host_paths(namespace, f"{RELEASE}-models")
            write_model(models / "tiny")
            namespace.apply(*engine())
            for name, kind, seconds in (
                ("engine", "pod", 300),
                (GATEWAY, "deployment", 300),
                (VIEW, "deployment", 120),
            ):
                condition = "Ready" if kind == "pod" else "Available"
                limit = f"--timeout={seconds}s"
                namespace.kubectl("wait", f"--for=condition={condition}", f"{kind}/{name}", limit, timeout=seconds + 10)
            yield installed
        finally:
            # Helm waits for the claim with models, which the engine holds.
            namespace.delete("pod", "engine")
            installed.uninstall()


def in_namespace(namespace: Namespace) -> dict[str, Any]:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}}}


def write_model(folder: Path) -> None:
    """Write a tiny model with random weights."""
    tokenizer = bpe_tokenizer()
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        eos_token_id=tokenizer.eos_token_id,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)


def engine() -> list[dict[str, Any]]:
    """Return a vLLM server with its Service, and the policy that admits the gateway."""
    command = "vllm serve /models/tiny --port 8000 --max-model-len 2048 --dtype float32 --enforce-eager"
    manifest = pod("engine", ENGINE_LABELS, "sh", "-c", command, image=TRAINER)
    (container,) = manifest["spec"]["containers"]
    # The image has no compiler.
    variables = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}
    container["env"] = [{"name": name, "value": value} for name, value in variables.items()]
    # The chart's LimitRange gives a container without limits too little for a model server.
    container["resources"]["limits"] = {"memory": "6Gi"}
    container["readinessProbe"] = {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 2}
    container["volumeMounts"] = [
        {"name": "models", "mountPath": "/models", "readOnly": True},
        {"name": "shared-memory", "mountPath": "/dev/shm"},
    ]
    claim = {"claimName": f"{RELEASE}-models", "readOnly": True}
    manifest["spec"]["volumes"] = [
        {"name": "models", "persistentVolumeClaim": claim},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
    ]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "engine"},
        "spec": {"selector": ENGINE_LABELS, "ports": [{"port": 8000}]},
    }
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "engine"},
        "spec": {
            "podSelector": {"matchLabels": ENGINE_LABELS},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app.kubernetes.io/component": "gateway"}}}]}],
        },
    }
    return [manifest, service, policy]


def converse(agents: Namespace, release: TeamRelease, key: str, *, turns: int) -> subprocess.Popen[str]:
    """Begin a conversation from the agents' namespace."""
    url = f"http://{GATEWAY}.{release.namespace.name}.svc:8080/v1"
    return start_script(agents, "agent", CONVERSATION, url, key, str(turns))


def answers(conversation: subprocess.Popen[str]) -> list[str]:
    output, errors = conversation.communicate(timeout=300)
    assert conversation.returncode == 0, errors
    found: list[str] = json.loads(output.splitlines()[-1])
    return found


def replicas(release: TeamRelease) -> list[str]:
    return [found["metadata"]["name"] for found in release.namespace.list("pods", GATEWAY_PODS)]


def test_a_conversation_goes_on_while_a_replica_is_deleted_and_no_turn_is_sampled_twice(
    agents: Namespace, release: TeamRelease
):
    conversation = converse(agents, release, "first", turns=12)
    wait_for("the first turns", lambda: sum_of(release, "turns_total") >= 2 or None, seconds=120)
    (gone, *_) = replicas(release)
    release.namespace.kubectl("delete", "pod", gone, "--wait=false")
    given = answers(conversation)

    assert len(given) == 12
    # Answers are sampled at temperature 1: what is sampled anew is another.
    assert answers(converse(agents, release, "first", turns=12)) == given
    assert answers(converse(agents, release, "second", turns=2)) != given[:2]


def sum_of(release: TeamRelease, name: str) -> float:
    """Return the sum of a counter over all replicas that answer."""
    total = 0.0
    for replica in replicas(release):
        lines = [line for line in scrape(release.namespace, replica) if line.startswith(f"turnmill_gateway_{name}")]
        total += sum(float(line.rsplit(" ", 1)[1]) for line in lines)
    return total


def test_others_than_the_agents_reach_neither_gateway_nor_page_nor_metrics(
    agents: Namespace, release: TeamRelease, prefix: str
):
    team = release.namespace.name
    assert can_connect(agents, "agent", f"{GATEWAY}.{team}.svc", 8080)
    assert not can_connect(agents, "agent", f"{GATEWAY}.{team}.svc", 9464)
    assert not can_connect(agents, "agent", f"{STORE}.{team}.svc", 6379)
    with temporary_namespace(prefix, labels=RESTRICTED) as other:
        other.apply(pod("stranger", {}))
        other.kubectl("wait", "--for=condition=Ready", "pod/stranger", "--timeout=60s", timeout=70)
        assert can_connect(other, "stranger", "kube-dns.kube-system.svc", 53)
        assert not can_connect(other, "stranger", f"{GATEWAY}.{team}.svc", 8080)
        assert not can_connect(other, "stranger", f"{VIEW}.{team}.svc", 8600)


def test_the_agents_see_the_runs_by_the_name_of_the_service_alone(agents: Namespace, release: TeamRelease):
    host = f"{VIEW}.{release.namespace.name}.svc"
    ask = "import httpx, sys; print(httpx.get(sys.argv[1], headers={'Host': sys.argv[2]}, timeout=30).text)"

    def page(path: str, name: str = f"{host}:8600") -> str:
        return agents.run_in("agent", "python", "-c", ask, f"http://{host}:8600{path}", name)

    assert '<a href="/run/done-1/">done-1</a>' in page("/")
    link = 'href="/run/done-1/trajectory/t0-0'
    wait_for("the trajectory", lambda: link in page("/run/done-1/") or None, seconds=60)
    assert "done-1" not in page("/", "runs.example.com")


def test_prometheus_has_the_metrics_of_every_replica(release: TeamRelease):
    with prometheus_of_cluster(since=time.time()) as prometheus:
        if prometheus is None:
            pytest.skip("needs Prometheus as the service prometheus in the namespace monitoring")
        query = f'turnmill_gateway_requests_in_flight{{namespace="{release.namespace.name}"}}'

        def scraped() -> bool:
            return {series["metric"]["pod"] for series in prometheus.history(query)} >= set(replicas(release))

        wait_for("metrics of every replica", scraped, seconds=90)
