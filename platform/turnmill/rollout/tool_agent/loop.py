"""The agent loop of agents of type `tool`: generation, with tool calls in between."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from PIL.Image import Image

from turnmill.core.errors import AgentLoopError, EpisodeError, SettingsError
from turnmill.core.pace import Pace
from turnmill.core.trajectory import EpisodeFailure, TrajectoryOutcome
from turnmill.jobs import AgentTrainingJob
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog, TurnPosition, TurnRecord
from turnmill.rollout.episode_id import EpisodeId
from turnmill.rollout.generation import RESPONSES, STARTS, generate, sampling_seed
from turnmill.rollout.journal import Journal, NoJournal
from turnmill.rollout.task_images import MEDIA_FIELDS, build_messages, images_in
from turnmill.rollout.task_sources import TaskSources
from turnmill.rollout.texts import text_decoder
from turnmill.rollout.tool_agent.client import ToolServerClient, parse_urls
from turnmill.rollout.tool_agent.episode import Episode, Limits
from turnmill.rollout.tool_agent.observations import ObservationTokenizer
from turnmill.rollout.tool_agent.response import ResponseParser
from turnmill.rollout.tool_agent.rows import EpisodeResult
from turnmill.rollout.tool_agent.stop_tokens import load_stop_tokens
from turnmill.rollout.verl_classes import AgentLoopBase, TokenOutput
from turnmill.rollout.verl_types import Message, SamplingParams

log = logging.getLogger(__name__)


class ToolLoop(AgentLoopBase):
    """Plays any number of episodes with tools concurrently."""

    def __init__(
        self, *args: object, job: AgentTrainingJob, run_dir: Path, tool_server_url: str | None = None,
        journal: Journal | None = None, **kwargs: object,
    ) -> None:  # fmt: skip
        super().__init__(*args, **kwargs)
        self.job = job
        self.agent = job.spec.tool_agent
        self.folder = RunFolder(run_dir)
        self.run_name = self.folder.run_name()
        self.log = TrajectoryLog(self.folder, sample_share=job.spec.tracking.recorded_share)
        self.sources = TaskSources(job, self.folder)
        self.stop_tokens = load_stop_tokens(self.agent)
        self.stop_token_ids = frozenset({self.tokenizer.eos_token_id, *self.agent.additional_eos_token_ids})
        self.decode = text_decoder(self.tokenizer)
        self.observation_tokenizer = ObservationTokenizer(self.tokenizer, self.agent, processor=self.processor)
        self.response_parser = ResponseParser(
            self.tokenizer,
            self.agent,
            stop_tokens=self.stop_tokens,
            observation_tokenizer=self.observation_tokenizer,
        )
        self.tools = self._create_client(tool_server_url or self.agent.tool_server_url)
        if self.tools is not None:
            self.sources.training.require_json()
        self.journal: Journal = journal or NoJournal()
        self._releases: set[asyncio.Task[None]] = set()
        self._starts, self._responses = Pace(STARTS), Pace(RESPONSES)

    def _create_client(self, urls: str | None) -> ToolServerClient | None:
        if urls is None:
            if self.agent.enable_agent:
                raise SettingsError(
                    "spec.agent.toolServerUrl is missing, and no tool server was started: "
                    "give the address of one, or set spec.agent.enableAgent to false."
                )
            return None
        return ToolServerClient(
            parse_urls(urls),
            timeout_seconds=self.agent.tool_call_timeout,
            outage_seconds=self.agent.tool_outage_timeout,
            max_retries=self.agent.tool_call_max_retries,
            max_connections=self.agent.max_concurrent_trajectories or 0,
        )

    async def run(
        self,
        sampling_params: SamplingParams,
        *,
        index: int,
        session_id: int,
        global_steps: int,
        validate: bool = False,
        **_: object,
    ) -> EpisodeResult | EpisodeFailure:
        """Play one trajectory of a task; return its result, or its failure."""
        await self._starts.wait()
        position, step, sample = int(index), int(global_steps), int(session_id)
        name = EpisodeId(step, position, sample, validate)
        episode = Episode(name, self.sources.task(name), self, self._limits(validate=validate), sampling_params)
        try:
            result = await self._play(episode)
        except EpisodeError as error:
            failure = EpisodeFailure(
                str(name), error.cause, str(error), episode.num_turns, episode.timing.elapsed_seconds()
            )
            await self.journal.finish(episode, TrajectoryOutcome("failed", cause=error.cause))
            self._record_failure(episode, failure, step, validate=validate)
            return failure
        finally:
            # After a cancellation or another error, the episode is resumed with the state of its tools.
            if not self.journal.is_resumable(episode):
                self._release(episode)
        self._record(episode, result, step, validate=validate)
        self.folder.beat()
        return result

    async def _play(self, episode: Episode) -> EpisodeResult:
        messages: list[Message] = [dict(message) for message in episode.task.messages]
        images: list[Image] = []
        if any(episode.task.row.get(name) for name in MEDIA_FIELDS.values()):
            messages = build_messages(episode.task, self.processor)
            images = await asyncio.to_thread(images_in, messages)
        try:
            prompt_ids = await self.ct_build_initial_tokens(messages, images=images or None)
        except ValueError as error:
            if not images:
                raise
            # A prompt with images is not cut.
            raise AgentLoopError(f"{episode.name}: {error}") from error
        await episode.play(prompt_ids, images)
        answer = episode.answer()
        reward = await self.sources.reward(answer, episode)
        prediction = await self.sources.prediction(answer, episode) if self.sources.has_votes(episode) else None
        return episode.result(reward, prediction=prediction)

    def _limits(self, *, validate: bool) -> Limits:
        agent = self.agent
        turns, length = agent.max_turns, agent.max_response_length
        if validate:
            turns = turns if agent.val_max_turns is None else agent.val_max_turns
            length = agent.val_max_response_length or length
        return Limits(max_turns=turns, max_response_length=length)

    async def generate(
        self,
        episode: Episode,
        turn: int,
        prompt_ids: list[int],
        sampling_params: SamplingParams,
        *,
        max_tokens: int,
        stops: bool,
        images: Sequence[object] = (),
    ) -> TokenOutput:
        """Generate the policy's next response in an episode. Raises InferenceError."""
        training = self.job.spec.training
        params: dict[str, object] = {
            **sampling_params,
            "max_tokens": max_tokens,
            # vLLM needs the text only to find stop strings.
            "detokenize": stops and bool(self.stop_tokens),
        }
        if stops and self.stop_tokens:
            params |= {"stop": list(self.stop_tokens), "include_stop_str_in_output": True}
        if self.agent.additional_eos_token_ids:
            params["stop_token_ids"] = list(self.agent.additional_eos_token_ids)
        output = await generate(
            self.server_manager,
            episode.name,
            prompt_ids,
            params,
            seed=sampling_seed(training.seed, episode.sampling_stream, 0, turn),
            timeout_seconds=training.timeouts.request_seconds,
            **({"image_data": list(images)} if images else {}),
        )
        await self._responses.wait()
        placeholders = self.observation_tokenizer.placeholder_ids
        if not placeholders.isdisjoint(output.token_ids):
            raise AgentLoopError(
                f"{episode.name}: the policy generated the placeholder of an image, which has no image"
            )
        self.folder.beat()
        return output

    def _release(self, episode: Episode) -> None:
        """Release the trajectory at the tool servers in the background."""
        if self.tools is None or not episode.may_call_tools:
            return

        async def release_trajectory(tools: ToolServerClient) -> None:
            if not await tools.finish(episode.trajectory_id):
                log.warning("Trajectory not released", extra={"trajectory": episode.name})

        release = asyncio.create_task(release_trajectory(self.tools))
        self._releases.add(release)
        release.add_done_callback(self._releases.discard)

    async def close(self) -> None:
        """Wait for releases in progress, ten seconds at most, and close all connections."""
        if self._releases:
            _, pending = await asyncio.wait(self._releases, timeout=10)
            for task in pending:
                task.cancel()
        if self.tools is not None:
            await self.tools.close()
        await self.journal.close()

    def _record(self, episode: Episode, result: EpisodeResult, step: int, *, validate: bool) -> None:
        records = [self._turn_record(episode, step, number) for number in range(len(episode.turns))]
        summary = result.summary
        # The reward of the episode is logged with its last turn; rewards of tools are not.
        records[-1:] = [
            replace(last, reward=summary.reward, done=True, stop_reason=summary.stop_reason, stop_detail=result.detail)
            for last in records[-1:]
        ]
        self.log.append(records, validation=validate)

    def _record_failure(self, episode: Episode, failure: EpisodeFailure, step: int, *, validate: bool) -> None:
        turns = [self._turn_record(episode, step, number) for number in range(len(episode.turns))]
        position = TurnPosition(episode.name, episode.task.number, len(turns), step)
        end = TurnRecord.of_failure(failure.cause, failure.message, position)
        self.log.append([*turns, end], validation=validate)

    def _turn_record(self, episode: Episode, step: int, number: int) -> TurnRecord:
        turn, first = episode.turns[number], number == 0
        environment_name = self.job.spec.environment.label if first else ""
        position = TurnPosition(episode.name, episode.task.number, number, step, environment_name)
        return replace(
            TurnRecord.of(turn, position),
            prompt=self.decode(episode.prompt_ids) if first else turn.prompt_text,
            prompt_ids=tuple(episode.prompt_ids) if first else turn.prompt_ids,
            reward=0.0,
            done=False,
            tool=episode.tool_info[number],
            mask=episode.mask(turn),
        )
