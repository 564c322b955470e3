"""`python -m turnmill.training.zygote` starts the zygote of a pod."""

import os

from turnmill.training.preparation import process_environment
from turnmill.training.zygote import pod

os.environ.update(process_environment("cpu"))
pod.start()
