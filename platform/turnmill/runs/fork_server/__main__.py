"""`python -m turnmill.runs.fork_server` starts the fork server of a pod."""

import os

from turnmill.runs.fork_server import pod
from turnmill.runs.preparation import process_environment

# As Ray gives it to its workers, so that Ray itself comes first: its start has 30 s.
NICENESS = 15

os.environ.update(process_environment("cpu"))
os.nice(NICENESS)
pod.start()
