"""The commands for jobs in a cluster, against a real API server without nodes."""

import json
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.api_server import ApiServer, now
from support.kubernetes import wait_for
from support.programs import find_program
from turnmill.cli.main import main

JOB = """\
apiVersion: turnmill.dev/v1alpha1
kind: AgentTrainingJob
metadata: {name: small, labels: {owner: ada}}
spec:
  model: {path: /models/somewhere-in-the-cluster}
  agent: {prompt: compact}
  environment: {name: babyai, task: GoToObj}
  training: {steps: 20, turnsPerStep: 256}
"""
KIND = "agenttrainingjob"

Names = Callable[[str], str]


@pytest.fixture(autouse=True)
def _here(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
    monkeypatch.setattr("turnmill.cli.cluster.commands.POLL_SECONDS", 0.1)
    Path("job.yaml").write_text(JOB)


@pytest.fixture
def submitted(server: ApiServer, request: pytest.FixtureRequest):
    """Submits a job under a name, and deletes it at the end."""
    names: list[tuple[str, str]] = []

    def submit(name: str, *options: str, namespace: str = "team-a") -> str:
        names.append((name, namespace))
        assert main(["submit", "job.yaml", "--name", name, "-n", namespace, *options]) == 0
        return name

    yield submit
    for name, namespace in names:
        server.kubectl("delete", KIND, name, f"--namespace={namespace}", "--ignore-not-found")


def condition(kind: str, *, true: bool, reason: str, message: str) -> dict[str, Any]:
    return {
        "type": kind,
        "status": "True" if true else "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": now(),
    }


def test_a_submitted_job_has_the_fields_of_its_file_and_the_overrides(server, submitted, capsys):
    submitted("first", "--set", "training.steps=7")

    job = server.get(KIND, "first", "team-a")
    assert job["spec"]["training"]["steps"] == 7
    assert job["metadata"]["labels"] == {"owner": "ada"}
    assert capsys.readouterr().out == "agenttrainingjob.turnmill.dev/first created\n"


def test_a_job_of_a_name_that_is_taken_is_refused_and_left_as_it_is(server, submitted, capsys):
    submitted("taken")

    code = main(["submit", "job.yaml", "--name", "taken", "--set", "training.steps=3"])

    assert code == 2
    assert "Namespace team-a already has a job taken. Choose another name with --name" in capsys.readouterr().err
    assert server.get(KIND, "taken", "team-a")["spec"]["training"]["steps"] == 20


def test_a_dry_run_has_the_api_server_check_the_job_and_creates_none(server, capsys):
    assert main(["submit", "job.yaml", "--dry-run"]) == 0

    assert "created (dry run)" in capsys.readouterr().out
    assert server.get(KIND, "small", "team-a") is None


def test_a_job_with_a_mistake_is_not_sent(capsys):
    assert main(["submit", "job.yaml", "--set", "training.stepz=3"]) == 2

    assert "training.stepz" in capsys.readouterr().err


def test_the_namespace_is_that_of_the_option_then_of_the_file_then_of_the_context(server, submitted):
    Path("job.yaml").write_text(JOB.replace("name: small,", "name: small, namespace: team-b,"))
    assert main(["submit", "job.yaml", "--name", "by-file"]) == 0
    submitted("by-option", namespace="team-a")

    assert server.get(KIND, "by-file", "team-b") is not None
    assert server.get(KIND, "by-option", "team-a") is not None
    server.kubectl("delete", KIND, "by-file", "--namespace=team-b")


def test_jobs_lists_what_kubectl_lists_with_and_without_wide(server, submitted, capsys):
    submitted("listed")
    server.write_status(KIND, "listed", "team-a", {"state": "Running", "attempt": 2, "progress": {"step": 4}})
    capsys.readouterr()

    for options in ([], ["-o", "wide"]):
        main(["jobs", *options])
        ours = [line.split() for line in capsys.readouterr().out.splitlines()]
        theirs = server.kubectl("get", "atj", "--namespace=team-a", *options).splitlines()
        # kubectl prints what is missing as <none> or nothing; the age may differ by a second.
        assert ours[0] == theirs[0].split()
        assert ours[1][:3] == ["listed", "Running", "4"] == theirs[1].split()[:3]


def test_jobs_of_all_namespaces_start_with_their_namespace(submitted, capsys):
    submitted("in-a")
    submitted("in-b", namespace="team-b")
    capsys.readouterr()

    main(["jobs", "-A"])

    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert rows == [["NAMESPACE", "NAME"], ["team-a", "in-a"], ["team-b", "in-b"]]


@pytest.mark.parametrize(("output", "parse"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_jobs_are_printed_as_kubectl_reads_them(server, submitted, capsys, output, parse):
    submitted("printed")
    capsys.readouterr()

    main(["jobs", "-o", output])
    listed = parse(capsys.readouterr().out)
    main(["jobs", "printed", "-o", output])
    single = parse(capsys.readouterr().out)

    assert listed["kind"] == "List"
    assert [found["metadata"]["name"] for found in listed["items"]] == ["printed"]
    assert single == server.get(KIND, "printed", "team-a")
    assert {name: listed["items"][0][name] for name in ("apiVersion", "kind", "spec")} == {
        name: single[name] for name in ("apiVersion", "kind", "spec")
    }


def test_names_of_jobs_go_into_kubectl(server, submitted, capsys):
    submitted("named")
    capsys.readouterr()
    main(["jobs", "-o", "name"])
    name = capsys.readouterr().out.strip()

    assert name == server.kubectl("get", "atj", "--namespace=team-a", "--output=name").strip()


def test_an_empty_namespace_is_named(capsys):
    assert main(["jobs", "-n", "team-b"]) == 0

    assert capsys.readouterr().out == "No jobs found in namespace team-b.\n"


def test_describe_shows_conditions_pods_and_events_of_job_and_pods(server, submitted, capsys):
    submitted("described")
    job = server.get(KIND, "described", "team-a")
    waits = condition("ClusterReady", true=False, reason="PodsNotReady", message="no node has such a GPU")
    server.write_status(KIND, "described", "team-a", {"state": "Starting", "attempt": 1, "conditions": [waits]})
    server.apply(pod("described-1-head", labels={"turnmill.dev/job": "described"}))
    about = server.get("pod", "described-1-head", "team-a")
    server.apply(event("from-job", job, "Changed"), event("from-pod", about, "FailedScheduling"))
    capsys.readouterr()

    main(["describe", "described"])

    output = capsys.readouterr().out
    assert f"/runs/team-a/described-{job['metadata']['uid'][:8]}" in output
    assert "Starting, attempt 1: no node has such a GPU" in output
    assert "PodsNotReady" in output
    assert "described-1-head   Pending   0/1" in output
    assert "Changed" in output
    assert "pod/described-1-head" in output
    assert "FailedScheduling" in output
    server.kubectl("delete", "pod,event", "--all", "--namespace=team-a")


def test_stop_and_resume_set_suspend_and_say_if_nothing_changes(server, submitted, capsys):
    submitted("stopped")
    capsys.readouterr()

    assert main(["stop", "stopped"]) == 0
    assert server.get(KIND, "stopped", "team-a")["spec"]["suspend"] is True
    assert main(["stop", "stopped"]) == 0
    assert main(["resume", "stopped"]) == 0

    assert server.get(KIND, "stopped", "team-a")["spec"]["suspend"] is False
    done = [line.rpartition(" ")[2] for line in capsys.readouterr().out.splitlines()]
    assert done == ["suspended", "unchanged", "resumed"]


def test_a_job_that_has_ended_is_neither_stopped_nor_resumed(server, submitted, capsys):
    submitted("ended")
    failed = condition("Failed", true=True, reason="RunFailed", message="All 3 retries are used.")
    server.write_status(KIND, "ended", "team-a", {"state": "Failed", "attempt": 4, "conditions": [failed]})

    assert main(["resume", "ended"]) == 2

    assert "ended has ended: Failed, attempt 4: All 3 retries are used." in capsys.readouterr().err


def test_delete_waits_until_the_job_is_gone(server, submitted, capsys):
    submitted("deleted")
    server.kubectl("patch", KIND, "deleted", "--namespace=team-a", "--type=merge", f"--patch={finalizers('test/wait')}")
    done: list[int] = []
    deletion = threading.Thread(target=lambda: done.append(main(["delete", "deleted"])))
    deletion.start()
    wait_for("deletion", lambda: "deletionTimestamp" in server.get(KIND, "deleted", "team-a")["metadata"], seconds=20)

    assert not done
    server.kubectl("patch", KIND, "deleted", "--namespace=team-a", "--type=merge", f"--patch={finalizers()}")
    deletion.join(30)

    assert done == [0]
    assert server.get(KIND, "deleted", "team-a") is None


def test_a_missing_job_is_told_in_the_words_of_the_api_server(capsys):
    for command in ("describe", "logs", "stop", "resume", "delete", "fetch"):
        assert main([command, "absent"]) == 1
        assert 'agenttrainingjobs.turnmill.dev "absent" not found' in capsys.readouterr().err


def test_one_missing_job_of_several_keeps_the_others_from_being_deleted(server, submitted):
    submitted("kept")

    assert main(["delete", "kept", "absent"]) == 1

    assert "deletionTimestamp" not in server.get(KIND, "kept", "team-a")["metadata"]


def test_a_user_without_rights_reads_what_is_forbidden(capsys):
    assert main(["jobs", "--context", "nobody"]) == 1

    error = capsys.readouterr().err
    assert 'User "nobody" cannot list resource "agenttrainingjobs"' in error
    assert "Traceback" not in error


def test_an_unknown_context_is_refused_with_those_that_exist(capsys):
    assert main(["jobs", "--context", "elsewhere"]) == 2

    assert "It has: admin, nobody." in capsys.readouterr().err


def test_a_missing_kubeconfig_is_named(capsys, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", "/nowhere/config")

    assert main(["jobs"]) == 2

    assert "The kubeconfig /nowhere/config cannot be used" in capsys.readouterr().err


def test_an_api_server_that_is_away_is_told_in_one_sentence(capsys, monkeypatch, server, tmp_path):
    config = json.loads(server.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    (tmp_path / "away").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "away"))

    assert main(["jobs"]) == 1

    error = capsys.readouterr().err
    assert "The API server https://127.0.0.1:1 cannot be reached" in error
    assert "Traceback" not in error


def test_a_watched_job_shows_each_change_and_its_failure_is_the_exit_code(server, submitted, capsys):
    submitted("watched")
    done: list[int] = []
    watching = threading.Thread(target=lambda: done.append(main(["jobs", "watched", "--watch"])))
    watching.start()
    shown = ""

    def shows(text: str) -> bool:
        nonlocal shown
        shown += capsys.readouterr().err
        return text in shown

    wait_for("first line", lambda: shows("Submitted"), seconds=20)
    running = condition("Running", true=True, reason="Training", message="The run is training.")
    progress = {"step": 3, "steps": 20, "rewardMean": 0.41}
    server.write_status(
        KIND, "watched", "team-a", {"state": "Running", "attempt": 1, "progress": progress, "conditions": [running]}
    )
    wait_for("progress", lambda: shows("Running, attempt 1, step 3/20, reward 0.41"), seconds=20)
    failed = condition("Failed", true=True, reason="RunFailed", message="The disk is full.")
    server.write_status(KIND, "watched", "team-a", {"state": "Failed", "attempt": 1, "conditions": [failed]})
    watching.join(30)

    assert done == [1]
    assert shows("The disk is full.")


def test_the_logs_of_a_job_that_has_not_run_say_why(server, submitted, capsys):
    submitted("waiting")
    waits = condition("Admitted", true=False, reason="NoTeam", message="Install the chart turnmill-team there.")
    server.write_status(KIND, "waiting", "team-a", {"state": "NotAdmitted", "conditions": [waits]})

    assert main(["logs", "waiting"]) == 2

    assert "waiting has not run yet: NotAdmitted: Install the chart turnmill-team there." in capsys.readouterr().err


def test_a_run_folder_without_a_team_cannot_be_fetched(server, submitted, capsys):
    submitted("teamless")

    assert main(["fetch", "teamless"]) == 2

    assert "Namespace team-a has no ConfigMap turnmill-team" in capsys.readouterr().err


def test_the_reading_pod_of_the_charts_team_is_accepted_under_restricted_pod_security(server, submitted):
    from turnmill.cli.cluster.pods import build_reader
    from turnmill.jobs.team import parse_team

    submitted("read")
    job = server.get(KIND, "read", "team-a")
    namespace = {"name": "strict", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}
    server.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": namespace})
    rendered = subprocess.run(
        [str(find_program("helm")), "template", "team", str(Path(__file__).parents[3] / "charts/turnmill-team")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    team = next(
        found for found in yaml.safe_load_all(rendered) if found and found["metadata"]["name"] == "turnmill-team"
    )

    reader = build_reader(job, parse_team(team["data"]), ["sleep", "infinity"])
    reader["metadata"]["namespace"] = "strict"
    del reader["metadata"]["ownerReferences"]
    server.apply(reader)

    spec = reader["spec"]
    mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in spec["containers"][0]["volumeMounts"]}
    assert mounts == {"/runs": True, "/tmp": False}
    assert all("secretKeyRef" not in json.dumps(found) for found in spec["containers"])


def finalizers(*names: str) -> str:
    return json.dumps({"metadata": {"finalizers": list(names)}})


def pod(name: str, *, labels: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team-a", "labels": labels},
        "spec": {"containers": [{"name": "ray", "image": "turnmill/trainer:0.1.0"}]},
    }


def event(name: str, about: dict[str, Any], reason: str) -> dict[str, Any]:
    metadata = about["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "team-a"},
        "involvedObject": {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "name": metadata["name"],
            "namespace": "team-a",
            "uid": metadata["uid"],
        },
        "reason": reason,
        "message": f"why {reason}",
        "type": "Warning",
        "lastTimestamp": now(),
    }
