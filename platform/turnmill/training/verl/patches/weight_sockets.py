"""Unique names of the sockets through which a trainer sends weights to engines on its machine."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from turnmill.core.process_mark import PROCESS_MARK
from turnmill.training.verl.patches import Patch, replace_once

if TYPE_CHECKING:
    from ray.runtime_context import RuntimeContext

PATCH = Patch(
    target="ray.runtime_context.RuntimeContext.get_job_id",
    change="the sockets for weights carry the mark of the run, on GPUs as well",
    reason="verl names them by Ray's number of the job, for which it uses nothing else, and that is 1 in every cluster "
    "of one run: two runs on a machine would get each other's weights, or wait for them for ever",
    distribution="verl",
    version="0.9.1",
    source="https://github.com/verl-project/verl/blob/v0.9.1/verl/workers/rollout/vllm_rollout/vllm_rollout.py#L140",
    quote="job_id = ray.get_runtime_context().get_job_id()",
)

GetJobId = Callable[["RuntimeContext"], str]


def apply() -> None:
    """Apply the patch in this process; further calls have no effect."""
    from ray.runtime_context import RuntimeContext

    def with_mark(original: GetJobId) -> GetJobId:
        def get_job_id(self: RuntimeContext) -> str:
            mark = os.environ.get(PROCESS_MARK)
            return f"{original(self)}-{mark}" if mark else original(self)

        return get_job_id

    replace_once(RuntimeContext, "get_job_id", with_mark)
