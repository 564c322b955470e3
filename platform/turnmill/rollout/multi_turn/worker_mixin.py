"""Episodes of verl's agent loops: seeds, failures, rewards and records, mixed into verl's worker."""

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Unpack, cast

from verl.experimental.agent_loop.agent_loop import register

from turnmill.core.errors import AgentLoopError, EpisodeError, SettingsError
from turnmill.core.lookup import suggestion
from turnmill.core.pace import Pace
from turnmill.core.trajectory import EpisodeFailure, TrajectoryOutcome
from turnmill.jobs import job_from_json
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog
from turnmill.rollout.episode_id import EpisodeId
from turnmill.rollout.generation import STARTS
from turnmill.rollout.journal import Journal
from turnmill.rollout.multi_turn.dataset_fields import dataset_fields
from turnmill.rollout.multi_turn.episode import CURRENT_EPISODE, MultiTurnEpisode
from turnmill.rollout.multi_turn.llm_client import EpisodeClient
from turnmill.rollout.multi_turn.loop import MultiTurnLoop
from turnmill.rollout.multi_turn.prompt_length import prompt_length
from turnmill.rollout.multi_turn.removed_tools import offer_removed_tools
from turnmill.rollout.multi_turn.rows import answer_of, measure, turn_records, verl_rows
from turnmill.rollout.multi_turn.schemas import read_schemas, show_whole_schema
from turnmill.rollout.multi_turn.tools import wrap_tool
from turnmill.rollout.multi_turn.verl_classes import BaseTool, FunctionTool, ToolListWrap
from turnmill.rollout.rewards import require_finite
from turnmill.rollout.rows import EpisodeRow
from turnmill.rollout.task_sources import TaskSources
from turnmill.rollout.texts import text_decoder
from turnmill.rollout.verl_classes import AgentLoopOutput, AgentLoopWorker, DictConfigWrap, agent_loop_registry
from turnmill.rollout.verl_types import BatchRow, RunConfig, SamplingParams, TrajectoryInfo
from turnmill.tasks import Task

log = logging.getLogger(__name__)

OWN_LOOP = {"_target_": f"{MultiTurnLoop.__module__}.{MultiTurnLoop.__qualname__}"}
"""verl's registration of this package's loop of tools, without settings of a user's."""


class MultiTurnWorkerMixin(AgentLoopWorker):
    """Plays each task in the agent loop that it names, dispatched by the verl worker it is mixed into."""

    tools: list[BaseTool | FunctionTool]

    def __init__(self, config: RunConfig, *args: object, journal: Journal, **kwargs: object) -> None:
        # Replaces verl's own; loops of the user's file are registered after it.
        register("tool_agent")(MultiTurnLoop)
        offer_removed_tools()
        super().__init__(config, *args, **kwargs)
        self.job = job_from_json(config.turnmill.job)
        self.agent = self.job.spec.multi_turn_agent
        self.decode = text_decoder(self.tokenizer)
        self.folder = RunFolder(Path(config.turnmill.run_dir))
        self.run_name = self.folder.run_name()
        self.log = TrajectoryLog(self.folder, sample_share=self.job.spec.tracking.recorded_share)
        self.journal = journal
        self._starts = Pace(STARTS)
        self.llm_client = EpisodeClient(self.llm_client, self.job, self.folder)
        schemas = read_schemas(config.actor_rollout_ref.rollout.multi_turn.tool_config_path)
        for tool in self.tools:
            show_whole_schema(tool, schemas)
        self.tools = [wrap_tool(tool, self.agent) for tool in self.tools]
        self.label = self.job.spec.environment.label
        self.sources = TaskSources(self.job, self.folder)
        if self.agent.filter_overlong_prompts:
            self.sources.keep(self._fits)

    def _fits(self, task: Task) -> bool:
        settings = cast("Mapping[str, object]", self.config.data.get("apply_chat_template_kwargs") or {})
        length = prompt_length(task, self.tools, self.tokenizer, self.processor, settings)
        return length <= self.agent.max_prompt_length

    async def play(
        self, sampling_params: SamplingParams, *, validate: bool, **row: Unpack[BatchRow]
    ) -> EpisodeFailure | list[EpisodeRow]:
        """Play one episode of one task; return its rows, or its failure."""
        await self._starts.wait()
        name = EpisodeId(int(row["global_steps"]), int(row["index"]), int(row["session_id"]), validate)
        episode = MultiTurnEpisode(
            name,
            self.sources.task(name),
            run_name=self.run_name,
            journal=self.journal,
            decode=self.decode,
        )
        token = CURRENT_EPISODE.set(episode)
        try:
            rows = await self._play(episode, sampling_params, row)
        except EpisodeError as error:
            return await self._failed(episode, error)
        finally:
            CURRENT_EPISODE.reset(token)
        self.log.append(
            turn_records(episode, self.label, reward=float(rows[-1].reward_score or 0)),
            validation=validate,
        )
        self.folder.beat()
        return rows

    async def _play(
        self, episode: MultiTurnEpisode, sampling_params: SamplingParams, row: BatchRow
    ) -> list[EpisodeRow]:
        await episode.open()
        await self._run_loop(episode, sampling_params, row)
        episode.raise_if_failed()
        reward = await self._reward(episode)
        measure(episode)
        await episode.finish(TrajectoryOutcome(episode.stop_reason, episode.stop_detail))
        return verl_rows(episode.outputs, episode, reward, prediction=await self._prediction(episode))

    async def _run_loop(self, episode: MultiTurnEpisode, sampling_params: SamplingParams, row: BatchRow) -> None:
        """Make verl run the loop of the task; `_agent_loop_postprocess` receives its output."""
        name = episode.task.row.get("agent_name") or self.agent.default_agent_loop
        if name not in agent_loop_registry:
            raise SettingsError(
                f"agent_name: there is no agent loop {name!r}. {suggestion(name, sorted(agent_loop_registry))} "
                "Loops of your own are listed in spec.agent.agentLoopConfigPath."
            )
        fields = cast(BatchRow, {**row, **dataset_fields(episode.task, self.processor, self.agent)})
        trajectory: TrajectoryInfo = {
            "step": episode.step,
            "sample_index": row["index"],
            "rollout_n": row["session_id"],
            "validate": episode.validate,
        }
        try:
            if agent_loop_registry[name] == OWN_LOOP:
                output = await self.tool_loop.for_episode().run(dict(sampling_params), **fields)
                await self._agent_loop_postprocess(output, episode.validate, **fields)
            else:
                await AgentLoopWorker._run_agent_loop(
                    self, dict(sampling_params), trajectory, agent_name=name, trace=False, **fields
                )
        except EpisodeError:
            raise
        except Exception as error:
            episode.raise_if_failed()
            log.exception("Agent loop failed", extra={"trajectory": episode.name, "agent_loop": name})
            raise AgentLoopError(f"{episode.name}: the agent loop {name!r} broke: {error!r}") from error
        if not episode.outputs:
            raise AgentLoopError(f"{episode.name}: the agent loop {name!r} returned no response tokens")

    @cached_property
    def tool_loop(self) -> MultiTurnLoop:
        """The loop of tools of this worker's job."""
        return MultiTurnLoop(
            trainer_config=DictConfigWrap(self.config),
            server_manager=self.llm_client,
            tokenizer=self.tokenizer,
            processor=self.processor,
            hf_model_type=self.hf_model_type,
            dataset_cls=self.dataset_cls,
            data_config=DictConfigWrap(self.config.data),
            tools=ToolListWrap(self.tools),
        )

    async def _agent_loop_postprocess(
        self, output: AgentLoopOutput | Sequence[AgentLoopOutput], validate: bool, **row: Unpack[BatchRow]
    ) -> None:
        """Keep a loop's output until the end of the episode; verl then gets it with reward and metrics."""
        if (episode := CURRENT_EPISODE.get(None)) is None:
            await super()._agent_loop_postprocess(output, validate, **row)
        else:
            episode.outputs = [output] if isinstance(output, AgentLoopOutput) else list(output)

    async def _reward(self, episode: MultiTurnEpisode) -> float:
        """Return the reward in the loop's last output, or that of the task's source."""
        if (reward := episode.outputs[-1].reward_score) is not None:
            return require_finite(float(reward), episode_name=episode.name)
        answer = answer_of(episode, episode.outputs, self.decode)
        return await self.sources.reward(answer, episode)

    async def _prediction(self, episode: MultiTurnEpisode) -> str | None:
        """Return the vote of the answer in a validation with several samples: the loop's own, or that of the source."""
        if not self.sources.has_votes(episode):
            return None
        pred = (episode.outputs[-1].extra_fields.get("reward_extra_info") or {}).get("pred")
        if pred is not None:
            return str(pred)
        answer = answer_of(episode, episode.outputs, self.decode)
        return await self.sources.prediction(answer, episode)

    async def _failed(self, episode: MultiTurnEpisode, error: EpisodeError) -> EpisodeFailure:
        failure = EpisodeFailure(
            episode.name,
            error.cause,
            str(error),
            len(episode.generations),
            episode.timing.elapsed_seconds(),
        )
        await episode.finish(TrajectoryOutcome("failed", cause=error.cause))
        records = turn_records(episode, self.label, reward=0.0, failure=failure)
        self.log.append(records, validation=episode.validate)
        return failure

    async def close(self) -> None:
        """Close connections."""
        await self.journal.close()
