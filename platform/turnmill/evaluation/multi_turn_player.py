"""The player of verl's agent loops, which run in verl's worker without its queue."""

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

from omegaconf import DictConfig, OmegaConf
from transformers import Qwen2Config

from turnmill.core.trajectory import EpisodeFailure, EpisodeSummary
from turnmill.evaluation.player import Player
from turnmill.evaluation.setting import NO_LIMIT, Policy, Setting
from turnmill.jobs import AgentTrainingJob
from turnmill.rollout.journal import NoJournal
from turnmill.rollout.multi_turn.worker_mixin import MultiTurnWorkerMixin
from turnmill.rollout.verl_classes import AgentLoopWorker
from turnmill.rollout.verl_types import BatchRow
from turnmill.training.verl.config import build_verl_config
from turnmill.training.verl.megatron_config import uses_megatron


class MultiTurnWorker(MultiTurnWorkerMixin, AgentLoopWorker):
    """Plays episodes of verl's agent loops."""

    @classmethod
    def create(cls, setting: Setting) -> "MultiTurnWorker":
        """Return a worker for the job and the policy of an evaluation. Raises SettingsError for settings of verl."""
        policy = setting.policy
        # verl prints the name of the class of its data set.
        with TemporaryDirectory(prefix="turnmill-evaluate-") as folder, redirect_stdout(StringIO()):
            model = policy.folder
            if model is None or not (model / "config.json").is_file():
                model = _stand_in(policy, Path(folder))
            config = _verl_config(setting.job, model, setting.run_dir)
            worker = cls(config, policy.client, None, None, journal=NoJournal())
        worker.hf_model_type = policy.model_type
        return worker


class MultiTurnPlayer(Player):
    """Plays tasks in verl's agent loops."""

    why_tokens: ClassVar[str | None] = "call functions in the model's own format, which a chat endpoint parses itself"

    def __init__(self, setting: Setting) -> None:
        self._worker = MultiTurnWorker.create(setting)
        self._sampling = setting.sampling

    async def play(self, episode: int, sample: int) -> EpisodeSummary | EpisodeFailure:
        """Play one trajectory of a task."""
        row: BatchRow = {"uid": f"{episode}-{sample}", "index": episode, "session_id": sample, "global_steps": 0}
        played = await self._worker.play(self._sampling, validate=True, **row)
        return played if isinstance(played, EpisodeFailure) else played[-1].episode_summary

    async def close(self) -> None:
        """Close connections."""
        await self._worker.close()


def _verl_config(job: AgentTrainingJob, model: Path, run_dir: Path) -> DictConfig:
    # Nothing is computed on the device, but verl's settings for Megatron are for GPUs alone.
    config = build_verl_config(job, model=model, run_dir=run_dir, device="cuda" if uses_megatron(job) else "cpu")
    OmegaConf.set_struct(config, False)
    OmegaConf.resolve(config)
    return config


def _stand_in(policy: Policy, folder: Path) -> Path:
    """Return a folder with the tokenizer and a configuration, which verl reads and loops do not."""
    policy.tokenizer.save_pretrained(folder)
    Qwen2Config(architectures=["Qwen2ForCausalLM"], max_position_embeddings=NO_LIMIT).save_pretrained(folder)
    return folder
