"""One tool call, its record in the trajectory store, and the metrics of a replica that counted it."""

import asyncio
import json
import os
import time
import urllib.error
import urllib.request
import uuid

from turnmill.trajectories.address import with_password
from turnmill.trajectories.client import StoreClient, deadline_in

URL = os.environ["TURNMILL_TOOL_SERVER_URL"]
HEADERS = {"Content-Type": "application/json"}
if token := os.environ.get("TURNMILL_TOOL_SERVER_TOKEN"):
    HEADERS["Authorization"] = f"Bearer {token}"
TRAJECTORY = f"helm-test-{uuid.uuid4().hex}"
# The first that a tool takes will do; the last, an end without an action, is always taken.
ACTIONS = ("<python>print(6 * 7)</python>", "```bash\necho $((6 * 7))\n```", "<answer>42</answer>", "")
DEADLINE = time.monotonic() + 120


def ask(url: str, body: object = None) -> str:
    """Network policies need a moment to know this pod, and a call may be repeated: it has an id."""
    data = None if body is None else json.dumps(body).encode()
    while True:
        try:
            request = urllib.request.Request(url, data, HEADERS if url.startswith(URL) else {})
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.read().decode()
        except (urllib.error.URLError, OSError) as error:
            if time.monotonic() > DEADLINE:
                raise SystemExit(f"{url} does not answer: {error}") from error
            time.sleep(1)


def call() -> None:
    for number, action in enumerate(ACTIONS):
        extra = {"call_id": f"call-{number}", "finish": not action}
        body = {"trajectory_ids": [TRAJECTORY], "actions": [action], "extra_fields": [extra]}
        answer = json.loads(ask(f"{URL}/get_observation", body))
        if answer["valids"] == [True]:
            print(f"call: {action!r} was answered with {answer['observations'][0]!r}")
            return
    raise SystemExit("The tool server took no call: see its log.")


async def entries(key: str) -> int:
    store = StoreClient(with_password(os.environ["TURNMILL_STORE_URL"]), max_connections=1)
    try:
        return len(await store.command("HGETALL", key, deadline=deadline_in(30)))
    finally:
        await store.close()


def record() -> None:
    key = f"turnmill:{os.environ['RUN_NAME']}:trajectory:{{{TRAJECTORY}}}:calls"
    recorded = asyncio.run(entries(key))
    if not recorded:
        raise SystemExit(f"The store has no {key}: the tool servers write elsewhere.")
    print(f"store: {key} has {recorded} entries")
    ask(f"{URL}/get_observation", {"trajectory_ids": [TRAJECTORY], "actions": [""], "finish": [True]})


def scrape() -> None:
    """The service leads to any replica; one of them has counted the call."""
    while time.monotonic() < DEADLINE:
        lines = ask(f"{os.environ['METRICS_URL']}/metrics").splitlines()
        done = [line for line in lines if line.startswith("turnmill_tool_calls_total{") and 'outcome="done"' in line]
        if any(float(line.rsplit(" ", 1)[1]) > 0 for line in done):
            print(f"metrics: {len(lines)} lines, the call is counted")
            return
        time.sleep(0.2)
    raise SystemExit("No replica counted the call.")


call()
record()
scrape()
