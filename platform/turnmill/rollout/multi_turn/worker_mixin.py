"""What a worker of verl's does around its agent loops."""

import logging
from pathlib import Path
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopWorker, _agent_loop_registry, register

from turnmill.core.errors import AgentLoopError, EpisodeError, SettingsError
from turnmill.core.lookup import suggestion
from turnmill.core.trajectory import EpisodeFailure, TrajectoryOutcome
from turnmill.jobs import AgentTrainingJob
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog
from turnmill.rollout.episode_id import EpisodeId
from turnmill.rollout.journal import Journal
from turnmill.rollout.multi_turn.dataset_fields import loop_input
from turnmill.rollout.multi_turn.episode import CURRENT, Conversation
from turnmill.rollout.multi_turn.llm_client import ConversationClient
from turnmill.rollout.multi_turn.loop import MultiTurnLoop
from turnmill.rollout.multi_turn.rows import answer_of, measure, records_of, rows_of
from turnmill.rollout.multi_turn.tools import watched
from turnmill.rollout.rewards import compute_reward, require_finite
from turnmill.rollout.rows import EpisodeRow
from turnmill.tasks import Task, create_source

log = logging.getLogger(__name__)


class ConversationPlayer:
    """Mixed into a worker of verl's: the loop that a task names plays it, with verl's own dispatch."""

    llm_client: Any
    tools: list[Any]
    tokenizer: Any
    processor: Any

    def __init__(self, config: Any, *args: Any, journal: Journal, **kwargs: Any) -> None:
        # In place of verl's own; those of the user's file come after it.
        register("tool_agent")(MultiTurnLoop)
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        self.job = AgentTrainingJob.model_validate_json(config.turnmill.job)
        self.agent = self.job.spec.multi_turn_agent
        self.folder = RunFolder(Path(config.turnmill.run_dir))
        self.run_name = self.folder.run_name()
        self.log = TrajectoryLog(self.folder)
        self.journal = journal
        self.llm_client = ConversationClient(self.llm_client, self.job, self.folder)
        self.tools = [watched(tool, self.agent) for tool in self.tools]
        environment, training = self.job.spec.environment, self.job.spec.training
        self.label = environment.label
        self.source = create_source(environment.name, environment.options, seed=training.seed)
        self.validation_source = create_source(environment.name, environment.options, seed=training.validation.seed)

    async def play(
        self, sampling_params: dict[str, Any], *, validate: bool, **row: Any
    ) -> EpisodeFailure | list[EpisodeRow]:
        """One trajectory of one task: its rows, or what ended it."""
        step, position, sample = int(row["global_steps"]), int(row["index"]), int(row["session_id"])
        conversation = Conversation(
            EpisodeId(step, position, sample, validate),
            self._task(step, position, validate=validate),
            run_name=self.run_name,
            journal=self.journal,
            decode=self.tokenizer.decode,
        )
        token = CURRENT.set(conversation)
        try:
            rows = await self._play(conversation, sampling_params, row)
        except EpisodeError as error:
            return await self._failed(conversation, error)
        finally:
            CURRENT.reset(token)
        self.log.append(
            records_of(conversation, self.tokenizer, self.label, reward=float(rows[-1].reward_score or 0)),
            validation=validate,
        )
        self.folder.beat()
        return rows

    async def _play(
        self, conversation: Conversation, sampling_params: dict[str, Any], row: dict[str, Any]
    ) -> list[EpisodeRow]:
        await conversation.begin()
        await self._run_loop(conversation, sampling_params, row)
        conversation.require_sound()
        reward = await self._reward(conversation)
        measure(conversation)
        await conversation.end(TrajectoryOutcome(conversation.stop_reason, conversation.detail))
        return rows_of(conversation.outputs, conversation, reward)

    async def _run_loop(self, conversation: Conversation, sampling_params: dict[str, Any], row: dict[str, Any]) -> None:
        """Have verl dispatch to the loop of the task; what it returns comes by `_agent_loop_postprocess`."""
        name = conversation.task.row.get("agent_name") or self.agent.default_agent_loop
        if name not in _agent_loop_registry:
            raise SettingsError(
                f"agent_name: there is no agent loop {name!r}. {suggestion(name, sorted(_agent_loop_registry))} "
                "Loops of yours are listed in spec.agent.agentLoopConfigPath."
            )
        given = row | loop_input(conversation.task, self.processor, self.agent)
        trajectory = {
            "step": conversation.step,
            "sample_index": row["index"],
            "rollout_n": row["session_id"],
            "validate": conversation.validate,
        }
        try:
            await AgentLoopWorker._run_agent_loop(
                self, dict(sampling_params), trajectory, agent_name=name, trace=False, **given
            )
        except EpisodeError:
            raise
        except Exception as error:
            conversation.require_sound()
            log.exception("Agent loop failed", extra={"trajectory": conversation.name, "agent_loop": name})
            raise AgentLoopError(f"{conversation.name}: the agent loop {name!r} broke: {error!r}") from error
        if not conversation.outputs:
            raise AgentLoopError(f"{conversation.name}: the agent loop {name!r} returned nothing to learn from")

    async def _agent_loop_postprocess(self, output: Any, validate: bool, **given: Any) -> None:
        """What verl makes of a loop's output comes when the trajectory is over, with its reward and figures."""
        if (conversation := CURRENT.get(None)) is None:
            await super()._agent_loop_postprocess(output, validate, **given)  # type: ignore[misc]
        else:
            conversation.outputs = list(output) if isinstance(output, list) else [output]

    async def _reward(self, conversation: Conversation) -> float:
        """What the loop says of its last output, or else what the task's source says."""
        if (told := conversation.outputs[-1].reward_score) is not None:
            return require_finite(float(told), episode_name=conversation.name)
        source = self.validation_source if conversation.validate else self.source
        answer = answer_of(conversation, conversation.outputs, self.tokenizer)
        return await compute_reward(answer, conversation.task, source, episode_name=conversation.name)

    async def _failed(self, conversation: Conversation, error: EpisodeError) -> EpisodeFailure:
        failure = EpisodeFailure(
            conversation.name,
            error.cause,
            str(error),
            len(conversation.generations),
            conversation.timing.elapsed_seconds(),
        )
        await conversation.end(TrajectoryOutcome("failed", cause=error.cause))
        records = records_of(
            conversation, self.tokenizer, self.label, reward=0.0, failure={"cause": error.cause, "message": str(error)}
        )
        self.log.append(records, validation=conversation.validate)
        return failure

    def _task(self, step: int, position: int, *, validate: bool) -> Task:
        if validate:
            return self.validation_source.validation(position)
        return self.source.training(self.job.spec.task_number(step, position))

    async def close(self) -> None:
        """Close connections."""
        await self.journal.close()
