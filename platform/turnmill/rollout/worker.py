"""What agent loop workers of ours add to verl's, whatever their loops play."""

import os
from pathlib import Path
from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ

from turnmill.jobs import AgentTrainingJob
from turnmill.observability import logs
from turnmill.observability.run_folder import RunFolder

_VerlWorker = AgentLoopWorkerTQ.__ray_metadata__.modified_class


class LoopWorker(_VerlWorker):  # type: ignore[misc, valid-type]
    """One thread, and events in the run folder; rewards come from what is played."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        torch.set_num_threads(1)
        logs.configure(RunFolder(config.turnmill.run_dir), process=f"agent-loop-{os.getpid()}")
        self.job = AgentTrainingJob.model_validate_json(config.turnmill.job)

    def loop_arguments(self, config: Any) -> dict[str, Any]:
        """What every agent loop of a run is made with."""
        return {
            "trainer_config": DictConfigWrap(config),
            "server_manager": self.llm_client,
            "tokenizer": self.tokenizer,
            "processor": self.processor,
            "hf_model_type": self.hf_model_type,
            "dataset_cls": self.dataset_cls,
            "data_config": DictConfigWrap(config.data),
            "job": self.job,
            "run_dir": Path(config.turnmill.run_dir),
        }

    async def _compute_score(self, outputs: list[Any], kwargs: dict[str, Any]) -> None:
        """Nothing to do: environments and tasks give the rewards."""
