"""`python -m turnmill.runs.fork_server` starts the fork server of a pod."""

import os

from turnmill.runs.fork_server import pod
from turnmill.runs.preparation import process_environment

# The priority of Ray's workers, so that Ray itself, which must start within 30 s, runs first.
NICENESS = 15

os.environ.update(process_environment("cpu"))
os.nice(NICENESS)
pod.start()
