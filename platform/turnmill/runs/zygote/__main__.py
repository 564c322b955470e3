"""`python -m turnmill.runs.zygote` starts the zygote of a pod."""

import os

from turnmill.runs.preparation import process_environment
from turnmill.runs.zygote import pod

# As Ray gives it to its workers, so that Ray itself comes first: its start has 30 s.
NICENESS = 15

os.environ.update(process_environment("cpu"))
os.nice(NICENESS)
pod.start()
