"""Jobs of a cluster as text: tables, descriptions and lines of progress."""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import yaml

from turnmill.cli.cluster.options import KIND_NAME
from turnmill.cli.cluster.resource import Resource
from turnmill.cli.progress import duration
from turnmill.jobs.team import run_dir


def condition(job: Resource, kind: str) -> Resource:
    """Return a condition by its type; empty if there is none."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    return next((found for found in conditions if found["type"] == kind), {})


def is_true(job: Resource, kind: str) -> bool:
    """Return whether a condition is true."""
    return condition(job, kind).get("status") == "True"


def is_suspended(job: Resource) -> bool:
    """Return whether the job's spec suspends it."""
    return bool(job["spec"].get("suspend"))


def run_folder(job: Resource) -> str:
    """Return the job's run folder in the pods of its team."""
    metadata = job["metadata"]
    return run_dir(metadata["namespace"], metadata["name"], metadata["uid"])


def cause(job: Resource) -> str:
    """Return the sentence of the condition that says why a job is in its state; empty if there is none."""
    for kind, status in (
        ("Admitted", "False"),
        ("Failed", "True"),
        ("Complete", "True"),
        ("Suspended", "True"),
        ("ClusterReady", "False"),
        ("Running", "False"),
        ("Running", "True"),
    ):
        found = condition(job, kind)
        if found.get("status") == status and found.get("message"):
            return str(found["message"])
    return ""


def progress_line(job: Resource) -> str:
    """Return the job's state in one line: `Running, attempt 1, step 3/100, reward 0.41`, or with the cause."""
    status = job.get("status") or {}
    progress = status.get("progress") or {}
    parts = [status.get("state") or "Submitted"]
    if status.get("attempt"):
        parts.append(f"attempt {status['attempt']}")
    if progress.get("steps"):
        parts.append(f"step {progress.get('step', 0)}/{progress['steps']}")
    for name, title in (("rewardMean", "reward"), ("success", "success")):
        if progress.get(name) is not None:
            parts.append(f"{title} {progress[name]:.2f}")
    line = ", ".join(parts)
    return line if is_true(job, "Running") or not cause(job) else f"{line}: {cause(job)}"


def table_lines(table: Resource, *, wide: bool, namespaces: bool) -> Iterator[str]:
    """Yield a table of the API server as kubectl prints it."""
    shown = [index for index, column in enumerate(table["columnDefinitions"]) if wide or not column["priority"]]
    heads = [table["columnDefinitions"][index]["name"].upper() for index in shown]
    rows = [[_cell(row["cells"][index]) for index in shown] for row in table["rows"]]
    if namespaces:
        heads = ["NAMESPACE", *heads]
        found = [row["object"]["metadata"]["namespace"] for row in table["rows"]]
        rows = [[namespace, *row] for namespace, row in zip(found, rows, strict=True)]
    return aligned([heads, *rows])


def _cell(value: object) -> str:
    return "" if value is None else str(value)


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows with aligned columns, three spaces between them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def dump(resources: Sequence[Resource], output: str, *, single: bool) -> str:
    """Return resources as JSON or YAML, or their names: one resource as itself, several as a List."""
    if output == "name":
        return "\n".join(f"{KIND_NAME}/{found['metadata']['name']}" for found in resources)
    shown = [_without_managed_fields(found) for found in resources]
    value = shown[0] if single else {"apiVersion": "v1", "kind": "List", "items": shown}
    if output == "json":
        return json.dumps(value, indent=4, ensure_ascii=False)
    return str(yaml.safe_dump(json.loads(json.dumps(value)), sort_keys=False, allow_unicode=True, width=100)).rstrip()


def _without_managed_fields(resource: Resource) -> Resource:
    """Return a resource without what only server-side apply reads, as kubectl does."""
    metadata = {name: value for name, value in resource["metadata"].items() if name != "managedFields"}
    return {**resource, "metadata": metadata}


def description(job: Resource, pods: Sequence[Resource], events: Sequence[Resource], now: datetime) -> Iterator[str]:
    """Yield what is known of a job: its state, its conditions, its pods and its events."""
    metadata, status = job["metadata"], job.get("status") or {}
    yield from aligned(
        [
            ["Name:", metadata["name"]],
            ["Namespace:", metadata["namespace"]],
            ["Created:", f"{metadata['creationTimestamp']} ({_age(metadata['creationTimestamp'], now)} ago)"],
            ["State:", progress_line(job)],
            ["Attempts:", _attempts(status)],
            ["Ray cluster:", status.get("cluster") or "none"],
            ["Run folder:", run_folder(job)],
        ]
    )
    yield from ("", "Conditions:")
    rows = [["Type", "Status", "Since", "Reason", "Message"]]
    for found in status.get("conditions") or ():
        since = _age(found["lastTransitionTime"], now)
        rows.append([found["type"], found["status"], since, found["reason"], found.get("message") or ""])
    yield from _indented(rows)
    yield from ("", "Pods:")
    rows = [["Name", "Phase", "Ready", "Restarts", "Node"]]
    rows += [_pod_row(pod) for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))]
    yield from _indented(rows)
    yield from ("", "Events:")
    rows = [["Last seen", "Type", "Reason", "Object", "Message"]]
    rows += [_event_row(event, now) for event in sorted(events, key=_event_time)]
    yield from _indented(rows)


def _indented(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if len(rows) == 1:
        yield "  none"
        return
    yield from (f"  {line}" for line in aligned(rows))


def _attempts(status: Resource) -> str:
    failed, disrupted = status.get("failedAttempts", 0), status.get("disruptedAttempts", 0)
    return f"{status.get('attempt', 0)} started, {failed} failed, {disrupted} disrupted"


def _pod_row(pod: Resource) -> list[str]:
    status = pod.get("status") or {}
    containers = status.get("containerStatuses") or []
    ready = sum(1 for found in containers if found.get("ready"))
    restarts = sum(found.get("restartCount", 0) for found in containers)
    phase = "Terminating" if "deletionTimestamp" in pod["metadata"] else status.get("phase") or "Unknown"
    total = len(pod["spec"]["containers"])
    return [pod["metadata"]["name"], phase, f"{ready}/{total}", str(restarts), pod["spec"].get("nodeName") or ""]


def _event_row(event: Resource, now: datetime) -> list[str]:
    about = event.get("involvedObject") or {}
    count = event.get("count") or 1
    seen = f"{_age(_event_time(event), now)} ago" + (f" (x{count})" if count > 1 else "")
    name = f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"
    message = " ".join(str(event.get("message", "")).split())
    return [seen, event.get("type") or "", event.get("reason") or "", name, message]


def _event_time(event: Resource) -> str:
    created = event["metadata"]["creationTimestamp"]
    return str(event.get("lastTimestamp") or event.get("eventTime") or created)


def _age(time: str, now: datetime) -> str:
    return duration((now - datetime.fromisoformat(time).astimezone(UTC)).total_seconds())
