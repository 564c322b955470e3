"""Ask the operator's replicas, by their service, until the one that leads has answered."""

import os
import time
import urllib.error
import urllib.request

URL = os.environ["OPERATOR_URL"] + "/metrics"
DEADLINE = time.monotonic() + 120

answer = "no answer"
while time.monotonic() < DEADLINE:
    try:
        with urllib.request.urlopen(URL, timeout=10) as response:
            lines = response.read().decode().splitlines()
    except (urllib.error.URLError, OSError) as error:
        answer = str(error)
    else:
        answer = f"{len(lines)} lines, none of a leader"
        if "turnmill_operator_leader 1.0" in lines:
            print(f"{URL}: {len(lines)} lines, from the replica that leads")
            break
    time.sleep(0.5)
else:
    raise SystemExit(f"{URL}: {answer}")
