"""Tool servers on a Kubernetes cluster: bursts, drains, an upgrade under calls, new replicas, and what gVisor costs.

KUBECONFIG names the cluster, which must be one for tests: namespaces are made and deleted. Prints a table in Markdown.
"""

import argparse
import json
import statistics
import time

from support.kubernetes import Namespace, temporary_namespace, wait_for
from support.team_release import TOOL_SERVER, Caller, TeamRelease, scrape, team_release

URL = f"http://{TOOL_SERVER}:5000"
REPLICAS, BALANCED_SECONDS, COUNTED_SECONDS = 4, 60.0, 60.0
LATENCY = """
import json, sys, time, urllib.request, uuid
seconds, name, begun = [], uuid.uuid4().hex, time.monotonic()
token = open("/run/secrets/turnmill/token").read()
action = sys.argv[1]
while time.monotonic() - begun < float(sys.argv[2]):
    body = json.dumps({"trajectory_ids": [name], "actions": [action]}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    request = urllib.request.Request("http://127.0.0.1:5000/get_observation", body, headers)
    started = time.monotonic()
    urllib.request.urlopen(request).read()
    seconds.append(time.monotonic() - started)
print(json.dumps(seconds[3:]))
"""
ACTIONS = {"python_code": "<python>print(6 * 7)</python>", "bash_terminal": "```bash\necho $((6 * 7)) >> file\n```"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prefix", default="benchmark", help="beginning of the namespaces' names")
    parser.add_argument("--seconds", type=float, default=20, help="of calls for each latency")
    parser.add_argument("--only", choices=("scaling", "balance", "gvisor"), help="one part of it")
    options = parser.parse_args()
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    print("| what | measured |\n| --- | --- |")
    if options.only in (None, "scaling"):
        with temporary_namespace(options.prefix, labels=labels) as namespace, team_release(namespace) as release:
            caller = Caller(namespace)
            caller.start()
            burst(release, caller)
            drain(release, caller)
            upgrade(release, caller)
    if options.only in (None, "balance"):
        values = {"toolServer.autoscaling.enabled": False, "toolServer.replicas": 1}
        with (
            temporary_namespace(options.prefix, labels=labels) as namespace,
            team_release(namespace, values) as release,
        ):
            balance(release)
    if options.only in (None, "gvisor"):
        for runtime in ("", "gvisor"):
            with temporary_namespace(options.prefix, labels=labels) as namespace:
                latency(namespace, runtime, options.seconds)


def row(what: str, measured: str) -> None:
    print(f"| {what} | {measured} |", flush=True)


def told(report: dict[str, object]) -> str:
    return f"{report['calls']} calls, {report['lost']} lost, {report['repeated']} repeated"


def burst(release: TeamRelease, caller: Caller) -> None:
    wait_for("the autoscaler's metric", lambda: autoscaler_sees_calls(release), seconds=180)
    calls = caller.begin(url=URL, trajectories=16, seconds=60, sleep=0.7)
    begun = time.monotonic()
    wait_for("more replicas", lambda: release.num_ready() > 1 or None, seconds=120)
    row("16 trajectories on one replica: more replicas serve after", f"{time.monotonic() - begun:.0f} s")
    row("calls in that burst", told(caller.finish(calls, seconds=180)))
    begun = time.monotonic()
    calls = caller.begin(url=URL, trajectories=2, seconds=150, sleep=0.2, pause=3)
    wait_for("one replica", lambda: len(release.tool_server_pods()) == 1 or None, seconds=300)
    row("after it: one replica again after", f"{time.monotonic() - begun:.0f} s")
    row("calls while replicas go", told(caller.finish(calls, seconds=240)))


def autoscaler_sees_calls(release: TeamRelease) -> bool | None:
    scaler = release.namespace.get("horizontalpodautoscaler", TOOL_SERVER) or {}
    metrics = scaler.get("status", {}).get("currentMetrics") or []
    return any(found.get("type") == "Pods" for found in metrics) or None


def drain(release: TeamRelease, caller: Caller) -> None:
    """A replica with a running call of fifteen seconds is told to go."""
    (replica,) = release.tool_server_pods()
    pod = replica["metadata"]["name"]
    url = f"http://{replica['status']['podIP']}:5000"
    caller.wait_until_reachable(replica["status"]["podIP"])
    running = caller.begin(url=url, trajectories=1, calls=1, sleep=15, patience=20)
    wait_for("running call", lambda: release.calls_in_flight().get(pod), seconds=60)
    release.namespace.kubectl("delete", "pod", pod, "--wait=false")
    wait_for("end of the replica", lambda: release.namespace.get("pod", pod) is None or None, seconds=120)
    gone = time.time()
    output, errors = running.communicate(timeout=120)
    assert output.startswith("answered 0 "), errors
    row("after its last running call, a replica that goes is gone in", f"{gone - float(output.split()[2]):.1f} s")
    release.wait_until_ready()


def upgrade(release: TeamRelease, caller: Caller) -> None:
    calls = caller.begin(url=URL, trajectories=6, seconds=60, sleep=0.5)
    wait_for("calls", lambda: sum(release.calls_in_flight().values()) or None, seconds=60)
    begun = time.monotonic()
    release.install({"toolServer.image.repository": "docker.io/turnmill/tool-server"})
    row("upgrade to another image under calls", f"{time.monotonic() - begun:.0f} s")
    row("calls meanwhile", told(caller.finish(calls, seconds=240)))


def balance(release: TeamRelease) -> None:
    """Scale from one replica to four under steady load; print each one's share of the calls a minute later."""
    caller = Caller(release.namespace)
    caller.start()
    calls = caller.begin(url=URL, trajectories=16, seconds=300, sleep=0.3)
    wait_for("calls", lambda: sum(release.calls_in_flight().values()) or None, seconds=60)
    release.namespace.kubectl("scale", f"deployment/{TOOL_SERVER}", f"--replicas={REPLICAS}")
    wait_for("replicas", lambda: release.num_ready() == REPLICAS or None, seconds=120)
    time.sleep(BALANCED_SECONDS)
    before = calls_of_replicas(release)
    time.sleep(COUNTED_SECONDS)
    after = calls_of_replicas(release)
    served = sorted(after[name] - before[name] for name in before)
    shares = ", ".join(f"{number / sum(served):.0%}" for number in served)
    row(f"{REPLICAS} replicas {BALANCED_SECONDS:g} s after a scale-out from one: shares of calls", shares)
    row("calls meanwhile", told(caller.finish(calls, seconds=420)))


def calls_of_replicas(release: TeamRelease) -> dict[str, float]:
    """Return the calls that each replica has answered."""
    return {
        name: sum(
            float(line.rsplit(" ", 1)[1])
            for line in scrape(release.namespace, name)
            if line.startswith("turnmill_tool_calls_total{")
        )
        for name in (replica["metadata"]["name"] for replica in release.tool_server_pods())
    }


def latency(namespace: Namespace, runtime: str, seconds: float) -> None:
    values = {
        "toolServer.runtimeClassName": runtime,
        "toolServer.autoscaling.enabled": False,
        "toolServer.replicas": 1,
    }
    with team_release(namespace, values) as release:
        (replica,) = release.tool_server_pods()
        for tool, action in ACTIONS.items():
            said = namespace.run_in(
                *(replica["metadata"]["name"], "python", "-c", LATENCY, action, str(seconds)), timeout=seconds + 120
            )
            found = sorted(json.loads(said.splitlines()[-1]))
            median, p90 = statistics.median(found), found[int(0.9 * len(found))]
            measured = f"{median * 1000:.0f} ms, p90 {p90 * 1000:.0f} ms, {len(found)} calls"
            row(f"`{tool}`, one client, {runtime or 'runc'}", measured)


if __name__ == "__main__":
    main()
