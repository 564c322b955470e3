"""The player of verl's agent loops, which run in verl's worker without its queue."""

from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from omegaconf import DictConfig, OmegaConf
from transformers import Qwen2Config

from turnmill.core.errors import SettingsError
from turnmill.core.trajectory import EpisodeFailure, EpisodeSummary
from turnmill.evaluation.message_loops import TRUNCATED, for_messages, in_bytes
from turnmill.evaluation.player import NEEDS_TOKENS, Player
from turnmill.evaluation.setting import NO_LIMIT, Policy, Setting
from turnmill.jobs import AgentTrainingJob
from turnmill.rollout.journal import NoJournal
from turnmill.rollout.multi_turn.episode import MultiTurnEpisode
from turnmill.rollout.multi_turn.worker_mixin import MultiTurnWorkerMixin
from turnmill.rollout.token_output import TokenOutput
from turnmill.rollout.verl_classes import AgentLoopWorker
from turnmill.rollout.verl_types import BatchRow, LLMClient, SamplingParams
from turnmill.training.verl.config import build_verl_config
from turnmill.training.verl.megatron_config import uses_megatron


class MultiTurnPlayer(Player):
    """Plays tasks in verl's agent loops."""

    def __init__(self, setting: Setting) -> None:
        if setting.policy.folder is None:
            setting = _with_messages(setting)
        self._worker = _create_worker(setting)
        self._sampling = setting.sampling

    async def play(self, episode: int, sample: int) -> EpisodeSummary | EpisodeFailure:
        """Play one trajectory of a task."""
        row: BatchRow = {"uid": f"{episode}-{sample}", "index": episode, "session_id": sample, "global_steps": 0}
        played = await self._worker.play(self._sampling, validate=True, **row)
        return played if isinstance(played, EpisodeFailure) else played[-1].episode_summary

    async def close(self) -> None:
        """Close connections."""
        await self._worker.close()

    @classmethod
    def require_playable(cls, job: AgentTrainingJob, *, takes_tokens: bool) -> None:
        """Raise SettingsError for a choice of tasks by the tokens of an endpoint that takes messages."""
        if job.spec.multi_turn_agent.filter_overlong_prompts and not takes_tokens:
            raise SettingsError(
                "spec.agent.filterOverlongPrompts chooses tasks by their tokens, which a chat endpoint does not tell. "
                f"Set it to false, or {NEEDS_TOKENS}"
            )


def _with_messages(setting: Setting) -> Setting:
    agent = setting.job.spec.multi_turn_agent
    changes: dict[str, object] = {
        # In which `ChatClient` writes the calls that the endpoint has parsed.
        "format": "hermes",
        # The endpoint renders every prompt with its own chat template.
        "use_inference_chat_template": False,
        "tokenization_sanity_check_mode": "disable",
    }
    return for_messages(setting, agent.model_copy(update=changes | in_bytes(agent, "max_response_length")))


class _LimitingClient:
    """A client that limits responses as verl's engines do, where a loop sets no limit."""

    def __init__(self, client: LLMClient, *, max_prompt_tokens: int, max_response_tokens: int) -> None:
        self._client = client
        self._max_response_tokens = max_response_tokens
        self._max_tokens = max_prompt_tokens + max_response_tokens

    async def generate(
        self, request_id: str, *, prompt_ids: Sequence[int], sampling_params: SamplingParams, **media: object
    ) -> TokenOutput:
        """Return a response. Raises InferenceError, or SettingsError for a request that is refused."""
        room = min(self._max_response_tokens, self._max_tokens - len(prompt_ids))
        params = {"max_tokens": max(1, room), **sampling_params}
        return await self._client.generate(request_id, prompt_ids=prompt_ids, sampling_params=params, **media)


class _PolicyWorker(AgentLoopWorker):
    """verl's worker with the tokenizer of a policy, if it has loaded none."""

    def __init__(self, config: DictConfig, policy: Policy) -> None:
        super().__init__(config, policy.client, None, None)
        if self.tokenizer is None:
            self.tokenizer, self.hf_model_type = policy.tokenizer, policy.model_type


class _Worker(MultiTurnWorkerMixin, _PolicyWorker):
    """Plays episodes of verl's agent loops."""

    async def _run_loop(self, episode: MultiTurnEpisode, sampling_params: SamplingParams, row: BatchRow) -> None:
        await super()._run_loop(episode, sampling_params, row)
        # The endpoint tells; tokens that are bytes do not.
        if episode.stop_reason == "completed" and episode.generations[-1].output.stop_reason == "length":
            episode.stop_reason, episode.stop_detail = TRUNCATED.stop_reason, TRUNCATED.detail


def _create_worker(setting: Setting) -> _Worker:
    """Return a worker for the job and the policy of an evaluation. Raises SettingsError for settings of verl."""
    policy, agent = setting.policy, setting.job.spec.multi_turn_agent
    max_prompt_tokens = NO_LIMIT if policy.folder is None else agent.max_prompt_length
    client = _LimitingClient(
        policy.client, max_prompt_tokens=max_prompt_tokens, max_response_tokens=agent.max_response_length
    )
    # verl prints the name of the class of its data set.
    with TemporaryDirectory(prefix="turnmill-evaluate-") as folder, redirect_stdout(StringIO()):
        if policy.folder is not None and (policy.folder / "config.json").is_file():
            config = _verl_config(setting, policy.folder)
        else:
            # Without the model's own, which loops do not read.
            Qwen2Config(architectures=["Qwen2ForCausalLM"], max_position_embeddings=NO_LIMIT).save_pretrained(folder)
            config = _verl_config(setting, Path(folder))
            config.actor_rollout_ref.model.load_tokenizer = False
            config.actor_rollout_ref.model.custom_chat_template = None
        if policy.folder is None:
            config.actor_rollout_ref.rollout.prompt_length = NO_LIMIT
        return _Worker(config, replace(policy, client=client), journal=NoJournal())


def _verl_config(setting: Setting, model: Path) -> DictConfig:
    job = setting.job
    # Nothing is computed on the device, but verl's settings for Megatron are for GPUs alone.
    device = "cuda" if uses_megatron(job) else "cpu"
    config = build_verl_config(job, model=model, run_dir=setting.run_dir, device=device)
    OmegaConf.set_struct(config, False)
    OmegaConf.resolve(config)
    return config
