"""The agent loop of agents of type `harness`: a gateway, and a program or a request to a service per trajectory."""

import asyncio
import secrets
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from turnmill.core.errors import EpisodeError, SandboxError, SettingsError
from turnmill.core.trajectory import EpisodeFailure, TrajectoryOutcome, Turn
from turnmill.gateway.answers import Answer, AnswerRequest
from turnmill.gateway.app import create_app
from turnmill.gateway.errors import UnknownKeyError
from turnmill.gateway.parsing import create_parser
from turnmill.gateway.picture_tokens import Processor
from turnmill.gateway.rendering import ChatRenderer, Tokenizer
from turnmill.gateway.server import HttpServer
from turnmill.gateway.trajectory import Model, Trajectory
from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.harness_rules import VERIFIERS
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog, TurnPosition, TurnRecord
from turnmill.rollout.episode_id import EpisodeId
from turnmill.rollout.harness.engine import EpisodeEngine
from turnmill.rollout.harness.episode import EpisodeResult, HarnessEpisode
from turnmill.rollout.harness.preloaded import PreloadedFunction
from turnmill.rollout.harness.program import PYTHON, Ended, entry_point_command, filled, import_paths, run_program
from turnmill.rollout.harness.sandboxed import URL as SANDBOX_URL
from turnmill.rollout.harness.sandboxed import run_sandboxed
from turnmill.rollout.harness.service import ask_service, listen_towards
from turnmill.rollout.harness.verifiers_environment import VerifiersEnvironment
from turnmill.rollout.journal import Journal, NoJournal
from turnmill.rollout.rewards import require_finite
from turnmill.rollout.task_sources import TaskSources
from turnmill.rollout.verl_types import LLMClient, SamplingParams
from turnmill.sandboxes.program import make_folders, require_namespaces
from turnmill.tasks import Task

MODEL_NAME = "policy"


class HarnessLoop:
    """Plays any number of episodes concurrently, each by an agent that asks this loop's gateway."""

    def __init__(
        self, *, server_manager: LLMClient, tokenizer: Tokenizer, job: AgentTrainingJob, run_dir: Path,
        processor: Processor | None = None, journal: Journal | None = None, **_: object,
    ) -> None:  # fmt: skip
        self.job = job
        self.agent = job.spec.harness_agent
        self.folder = RunFolder(run_dir)
        self.run_name = self.folder.run_name()
        self.log = TrajectoryLog(self.folder, sample_share=job.spec.tracking.recorded_share)
        self.verifiers = VerifiersEnvironment(job) if job.spec.environment.name == VERIFIERS else None
        self.function: PreloadedFunction | None = None
        if self.agent.preload and self.agent.entry_point is not None:
            self.function = PreloadedFunction(self.agent.entry_point, self.agent.python, self.agent.variables)
        self.sources = TaskSources(job, self.folder) if self.verifiers is None else None
        if self.sources is not None:
            self.sources.training.require_json()
        self.journal: Journal = journal or NoJournal()
        self.client = server_manager
        self.renderer = ChatRenderer(tokenizer, processor)
        self.model = Model(
            MODEL_NAME,
            self._engine({}, "", seed=0),
            self.renderer,
            create_parser(tokenizer, tool_parser=self.agent.tool_parser, reasoning_parser=self.agent.reasoning_parser),
            frozenset({tokenizer.eos_token_id}),
            self.agent.max_prompt_length + self.agent.max_response_length,
            self.agent.max_answer_length,
        )
        self._episodes: dict[str, HarnessEpisode] = {}
        """Episodes in flight by their keys."""

        self._app = create_app(self)
        self._server: HttpServer | None = None
        if self.agent.sandbox is not None:
            if self.verifiers is not None:
                raise SettingsError(
                    "spec.agent.sandbox: is for programs, which verifiers starts itself. Take it out, and give "
                    "verifiers a runtime that contains its programs."
                )
            _require_namespaces()

    # ---- the gateway ----

    async def answer(self, key: str, request: AnswerRequest) -> list[Answer]:
        """Return the answers to a request of a program. Raises UnknownKeyError if its trajectory has ended."""
        if (episode := self._episodes.get(key)) is None:
            raise UnknownKeyError("The key is of no trajectory in flight: it has ended, or another attempt plays it.")
        return await episode.ask(request)

    def _serve(self) -> HttpServer:
        """Return the gateway, which only a service on another machine reaches from outside of this one."""
        if self._server is None:
            listener = listen_towards(self.agent.url) if self.agent.url is not None else None
            self._server = HttpServer(self._app, listener)
            self._server.start()
        return self._server

    def _engine(self, sampling: SamplingParams, stream: str, *, seed: int) -> EpisodeEngine:
        timeouts = self.job.spec.training.timeouts
        return EpisodeEngine(self.client, sampling, seed=seed, stream=stream, timeout_seconds=timeouts.request_seconds)

    # ---- episodes ----

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
        position, step, sample = int(index), int(global_steps), int(session_id)
        name = EpisodeId(step, position, sample, validate)
        episode = HarnessEpisode(name, self._task(name), run_name=self.run_name)
        try:
            result = await self._play(episode, sampling_params)
        except EpisodeError as error:
            failure = EpisodeFailure(
                episode.name, error.cause, str(error), episode.num_turns, episode.timing.elapsed_seconds()
            )
            await self.journal.finish(episode, TrajectoryOutcome("failed", cause=error.cause))
            self._record_failure(episode, failure)
            return failure
        self._record(episode, result)
        self.folder.beat()
        return result

    def _task(self, episode: EpisodeId) -> Task:
        if self.verifiers is not None:
            return self.verifiers.task(episode)
        assert self.sources is not None
        return self.sources.task(episode)

    async def _play(self, episode: HarnessEpisode, sampling: SamplingParams) -> EpisodeResult:
        resumed = await self.journal.open(episode)
        episode.trajectory_id, episode.num_resumed = resumed.trajectory_id, len(resumed.turns)

        async def record(turn: Turn) -> None:
            await self.journal.append(episode, turn)
            self.folder.beat()

        engine = self._engine(sampling, episode.sampling_stream, seed=self.job.spec.training.seed)
        trajectory = episode.trajectory = Trajectory(
            episode.name,
            replace(self.model, engine=engine),
            record=record,
            turns=resumed.turns,
            max_turns=self.agent.max_turns,
        )
        ended = await self._run_agent(episode, trajectory)
        outcome = episode.outcome(ended, self.agent)
        reward = await self._reward(episode, ended)
        await self.journal.finish(episode, outcome)
        return await asyncio.to_thread(episode.result, outcome, reward, episode.program_metrics(ended))

    async def _run_agent(self, episode: HarnessEpisode, trajectory: Trajectory) -> Ended:
        """Let the agent play an episode, under a key that is valid as long as it does."""
        key = secrets.token_urlsafe(24)
        url = self._serve().url if self.agent.sandbox is None else SANDBOX_URL
        self._episodes[key] = episode
        try:
            with episode.timing.measure("tools"):
                stop, timeout_seconds = trajectory.limit_reached, self.agent.timeout_seconds
                if self.verifiers is None and self.agent.url is None:
                    return await self._run_program(episode.task, url, key, stop=stop)
                body = {**self._task_fields(episode.task), "gateway": {"url": url, "key": key, "model": MODEL_NAME}}
                if self.verifiers is not None:
                    return await self.verifiers.play(body, timeout_seconds=timeout_seconds, stop=stop)
                assert self.agent.url is not None
                return await ask_service(self.agent.url, body, timeout_seconds=timeout_seconds, stop=stop)
        finally:
            del self._episodes[key]
            await trajectory.close()

    async def _run_program(self, task: Task, url: str, key: str, *, stop: asyncio.Event) -> Ended:
        sandbox = self.agent.sandbox
        with TemporaryDirectory(prefix="turnmill-harness-", ignore_cleanup_errors=True) as folder:
            workspace = folder if sandbox is None else make_folders(folder)
            values = {
                "prompt": _prompt(task),
                "model": MODEL_NAME,
                "url": url,
                "key": key,
                "workspace": workspace,
                "python": PYTHON,
            }
            command, paths = self.agent.command or (), {}
            if self.agent.entry_point is not None:
                command = entry_point_command(self.agent.entry_point, self.agent.python)
                paths = import_paths(self.agent.python)
            words, fields = filled(command, values), self._task_fields(task)
            variables = _addresses(url, key) | paths | self.agent.variables
            if self.function is not None:
                return await self.function.run(
                    task=fields, variables=variables, workspace=Path(workspace), stop=stop,
                    timeout_seconds=self.agent.timeout_seconds,
                )  # fmt: skip
            if sandbox is not None:
                return await run_sandboxed(
                    words, self.agent, self._app, folder=folder, workspace=workspace, task=fields, variables=variables,
                    stop=stop,
                )  # fmt: skip
            return await run_program(
                words,
                task=fields,
                variables=variables,
                workspace=Path(workspace),
                timeout_seconds=self.agent.timeout_seconds,
                stop=stop,
            )

    def _task_fields(self, task: Task) -> dict[str, object]:
        """Return what a program reads of a task; the correct answer is not in it."""
        return {
            "number": task.number,
            "prompt": _prompt(task),
            "messages": [dict(message) for message in task.messages],
            "info": dict(task.extra_info),
            "maxTurns": self.agent.max_turns,
        }

    async def _reward(self, episode: HarnessEpisode, ended: Ended) -> float:
        if self.sources is None or self.agent.reward == "program":
            return require_finite(episode.program_reward(ended), episode_name=episode.name)
        return await self.sources.reward(await asyncio.to_thread(episode.answer, ended, self.renderer), episode)

    async def close(self) -> None:
        """Close the gateway and all connections."""
        if self._server is not None:
            await self._server.close()
        for agent in (self.verifiers, self.function):
            if agent is not None:
                await agent.close()
        await self.journal.close()

    # ---- records ----

    def _record(self, episode: HarnessEpisode, result: EpisodeResult) -> None:
        records, summary = episode.turn_records(self.job.spec.environment.label), result.summary
        records[-1:] = [
            replace(last, reward=summary.reward, done=True, stop_reason=summary.stop_reason, stop_detail=result.detail)
            for last in records[-1:]
        ]
        self.log.append(records, validation=episode.validate)

    def _record_failure(self, episode: HarnessEpisode, failure: EpisodeFailure) -> None:
        turns = episode.turn_records(self.job.spec.environment.label)
        position = TurnPosition(episode.name, episode.task.number, len(turns), episode.step)
        end = TurnRecord.of_failure(failure.cause, failure.message, position)
        self.log.append([*turns, end], validation=episode.validate)


def _require_namespaces() -> None:
    """Raise SettingsError if this machine has no sandbox for programs."""
    try:
        require_namespaces()
    except SandboxError as error:
        raise SettingsError(f"spec.agent.sandbox: {error}") from error


def _prompt(task: Task) -> str:
    """Return the last message of a task, which an agent's command line takes."""
    return task.messages[-1]["content"] if task.messages else ""


def _addresses(url: str, key: str) -> dict[str, str]:
    return {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_BASE": f"{url}/v1",
        "OPENAI_API_KEY": key,
        "OPENAI_MODEL": MODEL_NAME,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": key,
        "ANTHROPIC_MODEL": MODEL_NAME,
    }
