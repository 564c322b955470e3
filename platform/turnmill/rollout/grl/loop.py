"""The agent loop for groups of GRL's agents, in supervised environment processes."""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from turnmill.core.errors import EpisodeError
from turnmill.core.seeds import VALIDATION_SEEDS
from turnmill.core.trajectory import EpisodeFailure, TrajectoryOutcome
from turnmill.environments.grl.agent_adapter import NAME, options_of
from turnmill.environments.runtime.process import EnvironmentProcess
from turnmill.environments.runtime.worker import WorkerSettings
from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.grl_agent import AgentGroup, NamedAgent
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog, TurnPosition, TurnRecord
from turnmill.rollout.episode_id import EpisodeId
from turnmill.rollout.generation import SampledEpisode, generate, sampling_seed
from turnmill.rollout.grl.episode import GrlEpisode
from turnmill.rollout.grl.lockstep import Lockstep
from turnmill.rollout.journal import Journal, NoJournal
from turnmill.rollout.verl_classes import AgentLoopBase, TokenOutput
from turnmill.rollout.verl_types import SamplingParams
from turnmill.rollout.verlog.slot import MAX_SEED


class GrlLoop(AgentLoopBase):
    """Plays any number of episodes concurrently."""

    def __init__(
        self, *args: object, job: AgentTrainingJob, run_dir: Path, journal: Journal | None = None, **kwargs: object
    ) -> None:
        super().__init__(*args, **kwargs)
        self.job = job
        self.agent = job.spec.grl_agent
        self.folder = RunFolder(run_dir)
        self.run_name = self.folder.run_name()
        self.log = TrajectoryLog(self.folder, sample_share=job.spec.tracking.recorded_share)
        self.journal: Journal = journal or NoJournal()
        self.prompt_limit = _limit(self.agent.num_prompt_threads)
        self.environment_limit = _limit(self.agent.num_env_threads)
        self._groups = self.agent.training_groups
        self._validation_groups = self.agent.validation_groups

    async def run(
        self,
        sampling_params: SamplingParams,
        *,
        index: int,
        session_id: int,
        global_steps: int,
        validate: bool = False,
        lockstep: Lockstep | None = None,
        **_: object,
    ) -> GrlEpisode | EpisodeFailure:
        """Play one episode of a group; return it, or its failure."""
        name = EpisodeId(int(global_steps), int(index), int(session_id), validate)
        group, seed = self._group_and_seed(name)
        episode = GrlEpisode(name, group, seed, self, sampling_params)
        try:
            await episode.play(lockstep)
        except EpisodeError as error:
            failure = EpisodeFailure(
                episode.name, error.cause, str(error), episode.num_turns, episode.timing.elapsed_seconds()
            )
            await self.journal.finish(episode, TrajectoryOutcome("failed", cause=error.cause))
            self._record(episode, failure)
            return failure
        finally:
            await episode.close()
        self._record(episode)
        self.folder.beat()
        return episode

    def _group_and_seed(self, name: EpisodeId) -> tuple[AgentGroup, int]:
        groups = self._validation_groups if name.validate else self._groups
        group = groups[name.task % len(groups)]
        if name.validate:
            # Every validation has the same seeds.
            return group, self.agent.validation_seed + group.number
        return group, base_seed(self.job.spec.training.seed, name.step) + name.task

    def environment_of(self, agent: NamedAgent) -> EnvironmentProcess:
        """Return the process for an agent's environment, which starts with its first episode."""
        environment = self.job.spec.environment
        return EnvironmentProcess(
            WorkerSettings(
                name=NAME,
                max_turns=agent.agent_config.max_turns,
                options=options_of(agent),
                python=environment.python,
                memory_limit_bytes=environment.memory_mib * 2**20,
                invalid_penalty=0.0,
                binary_reward=False,
                marker_required=False,
            ),
            step_timeout_seconds=environment.step_timeout_seconds,
            reset_timeout_seconds=environment.reset_timeout_seconds,
        )

    def ids_of(self, text: str) -> list[int]:
        """Tokenize a text, without special tokens around it."""
        return list(self.tokenizer.encode(text, add_special_tokens=False)) if text else []

    async def tokenize_prompt(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Tokenize a prompt of any length; verl's own method truncates long ones from the left."""
        builder = self.continuous_token_builder
        return list(await asyncio.to_thread(builder.build_initial_tokens, [dict(message) for message in messages]))

    def system_length(self, messages: Sequence[Mapping[str, str]], ids: Sequence[int]) -> int:
        """Return the number of tokens of the system message at the beginning of a prompt; 1 if there is none."""
        system = [dict(message) for message in messages[:1] if message["role"] == "system"]
        if not system:
            return 1
        system_ids = self.tokenizer.apply_chat_template(system, tokenize=True, return_dict=False)
        differences = (number for number, (one, other) in enumerate(zip(system_ids, ids, strict=False)) if one != other)
        return next(differences, min(len(system_ids), len(ids)))

    async def generate(
        self, episode: SampledEpisode, turn: int, prompt_ids: list[int], sampling_params: SamplingParams
    ) -> TokenOutput:
        """Generate the policy's next response in an episode. Raises InferenceError."""
        training = self.job.spec.training
        output = await generate(
            self.server_manager,
            episode.name,
            prompt_ids,
            {**sampling_params, "max_tokens": self.agent.max_response_length},
            seed=sampling_seed(training.seed, episode.sampling_stream, 0, turn),
            timeout_seconds=training.timeouts.request_seconds,
        )
        self.folder.beat()
        return output

    async def close(self) -> None:
        """Close the journal."""
        await self.journal.close()

    def _record(self, episode: GrlEpisode, failure: EpisodeFailure | None = None) -> None:
        last = len(episode.turns) - 1
        records = [
            self._turn_record(
                episode, number, stop_reason=episode.stop_reason if number == last and not failure else None
            )
            for number in range(len(episode.turns))
        ]
        if failure is not None:
            position = self._position(episode, len(episode.turns))
            records.append(TurnRecord.of_failure(failure.cause, failure.message, position))
        self.log.append(records, validation=episode.validate)

    def _turn_record(self, episode: GrlEpisode, number: int, *, stop_reason: str | None) -> TurnRecord:
        turn, view = episode.turns[number], episode.views[number + 1]
        observation_ids = episode.observation_ids_after(number)
        all_trained = self.agent.loss_mask == "after_system"
        return replace(
            TurnRecord.of(turn, self._position(episode, number)),
            prompt=episode.views[number].messages[-1]["content"] if number else self.tokenizer.decode(turn.prompt_ids),
            reward=turn.reward + view.penalty,
            observation_ids=observation_ids,
            mask=(len(turn.response_ids) + len(observation_ids),) if all_trained else (),
            done=stop_reason is not None,
            stop_reason=stop_reason,
        )

    @staticmethod
    def _position(episode: GrlEpisode, number: int) -> TurnPosition:
        group = episode.group
        return TurnPosition(episode.name, group.number, number, episode.step, group.agent.name, episode.seed)


def base_seed(run_seed: int, step: int) -> int:
    """Return the seed of a step's first group; steps have different seeds, and none is a seed of validations."""
    digest = hashlib.blake2b(f"{run_seed}/{step}".encode(), digest_size=4).digest()
    return VALIDATION_SEEDS + int.from_bytes(digest, "big") % (MAX_SEED - 2 * VALIDATION_SEEDS)


def _limit(number: int) -> asyncio.Semaphore | nullcontext[None]:
    return asyncio.Semaphore(number) if number else nullcontext()
