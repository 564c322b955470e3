"""Settings of GPUs' memory that a job leaves out, chosen when its run starts."""

import logging
from collections.abc import Iterable
from pathlib import Path

from turnmill.jobs import AgentTrainingJob
from turnmill.sizing.defaults import complete, gpu_sizes
from turnmill.sizing.memory import Limits
from turnmill.sizing.model import Model
from turnmill.training.accelerators import RayNode, only_kind
from turnmill.training.verl.megatron_config import uses_megatron

log = logging.getLogger(__name__)


def with_memory_settings(job: AgentTrainingJob, model: Path, nodes: Iterable[RayNode]) -> AgentTrainingJob:
    """Return a job for GPUs with settings that fit the memory of the Ray cluster's GPUs, as far as it is known.

    The job stays as it is if its model cannot be estimated, or if Megatron trains it.
    """
    present = only_kind(nodes)
    if uses_megatron(job) or not any(gpu_sizes(job, present=present).values()):
        return job
    try:
        completed = complete(job, Model(model), model, present=present)
    except Exception:
        # A model whose code does not run on fake tensors may train well: an estimate must not end its run.
        log.warning(
            "The memory of GPUs could not be estimated; settings that are left out stay as usual", exc_info=True
        )
        return job
    if completed.choices:
        chosen = {choice.field: choice.value for choice in completed.choices}
        log.info("Settings chosen for the memory of GPUs", extra=chosen)
    if (missing := Limits().lack(completed.estimate, completed.sizes)) is not None:
        log.warning("By the estimate of `turnmill check --explain`, the job does not fit", extra={"lack": missing})
    return completed.job
