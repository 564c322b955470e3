"""The sockets through which a trainer hands weights to the engines of its machine, apart for every run."""

import os

from turnmill.core.process_mark import PROCESS_MARK


def name_by_run() -> None:
    """Put the mark of the run into their names, in this process.

    verl 0.9.1 names them by Ray's number of the job, and uses that for nothing else. In a cluster of one run it is
    always the first: two runs on one machine would get each other's weights, or wait for them for ever.
    """
    from ray.runtime_context import RuntimeContext

    original = RuntimeContext.get_job_id

    def get_job_id(self: RuntimeContext) -> str:
        mark = os.environ.get(PROCESS_MARK)
        return f"{original(self)}-{mark}" if mark else original(self)

    if not getattr(original, "is_patched", False):
        get_job_id.is_patched = True  # type: ignore[attr-defined]
        RuntimeContext.get_job_id = get_job_id
