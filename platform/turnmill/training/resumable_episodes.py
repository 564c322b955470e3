"""Episodes that the trajectory store keeps for an attempt that resumes the run."""

import asyncio
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from turnmill.core.errors import StoreError
from turnmill.jobs import AgentTrainingJob
from turnmill.rollout.journal import forget_newer_policies, forget_trained
from turnmill.rollout.verl_types import RunConfig
from turnmill.training import checkpoints

log = logging.getLogger(__name__)


class ResumableEpisodes:
    """Deletes what no attempt could resume, as the trainer gets on."""

    def __init__(self, config: RunConfig, job: AgentTrainingJob, run_dir: Path, executor: ThreadPoolExecutor) -> None:
        self._config = config
        self._has_store = config.turnmill.get("store_url") is not None
        self._checkpoints = run_dir / "checkpoints"
        self._executor = executor
        training = job.spec.training
        self._ahead = 0 if training.mode == "sync" else training.max_staleness
        self._forgetting: Future[None] | None = None

    def begin(self, version: int) -> None:
        """Delete episodes of policies after the version with which this attempt begins. Raises RunFailedError."""
        asyncio.run(forget_newer_policies(self._config, version))

    def after_step(self, step: int) -> None:
        """Delete, in the background, episodes of this step and of earlier ones."""
        # A store that is slow or away is asked once at a time; the next step deletes what this one leaves.
        if self._has_store and (self._forgetting is None or self._forgetting.done()):
            self._forgetting = self._executor.submit(self._forget, step)

    def _forget(self, step: int) -> None:
        newest = checkpoints.latest(self._checkpoints)
        checkpoint = 0 if newest is None else newest.state.step
        try:
            asyncio.run(forget_trained(self._config, step=step, checkpoint=checkpoint, ahead=self._ahead))
        except StoreError as error:
            log.warning("Trained episodes are still in the store", extra={"error": str(error)})
