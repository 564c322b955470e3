"""Environments of verifiers, which play their own episodes: by a process of verifiers' interpreter for each worker."""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import Field, JsonValue

from turnmill.core.errors import HarnessError
from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.harness_rules import VERIFIERS
from turnmill.jobs.options import EnvironmentOptions, read_options
from turnmill.rollout.episode_id import EpisodeId
from turnmill.rollout.harness import verifiers_server
from turnmill.rollout.harness.program import INHERITED, Ended, inherited, kill_group, last_words
from turnmill.rollout.harness.service import ask_service
from turnmill.tasks import Task

LOAD_SECONDS = 600.0
"""Time for an environment to load, which may download its tasks."""

CLOSE_SECONDS = 20.0
"""Time for an environment to end its tool servers."""

DEATH_SECONDS = 5.0
"""Time within which a process that has broken a connection is known to have died."""

MAX_KEPT_BYTES = 65_536
"""Size of the end of its messages that is kept."""

SOCKET = "socket"
"""Name of its socket, in a folder of its own."""


class VerifiersOptions(EnvironmentOptions):
    """An environment of verifiers, and how its tasks are used."""

    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """verifiers' own settings of the environment: what its configuration files have in the table `env`."""

    validation: dict[str, JsonValue] = Field(default_factory=dict)
    """What validations have in place of `settings`, such as `{taskset: {split: test}}`; if omitted, they have the last
    `validationTasks` tasks, which training then skips."""

    validation_tasks: int = Field(default=128, ge=0)
    """Tasks that are reserved for validations without `validation`."""

    num_tasks: int | None = Field(default=None, ge=1)
    """Tasks that are taken, the first ones; a task set without an end needs it."""

    agent: str | None = None
    """Agent that learns, in an environment of several; the others need models of their own."""


class VerifiersEnvironment:
    """The environment of a job, with its process, which starts with the first episode and again if it dies."""

    def __init__(self, job: AgentTrainingJob) -> None:
        agent, environment = job.spec.harness_agent, job.spec.environment
        self._spec = job.spec
        self._python = environment.python or sys.executable
        self._settings = server_settings(
            environment.options, environment.task, max_turns=agent.max_turns, seed=job.spec.training.seed
        )
        self._variables = agent.variables
        self._server: _Server | None = None
        self._starting = asyncio.Lock()

    def task(self, episode: EpisodeId) -> Task:
        """Return the task of an episode: a number, with which the environment finds it."""
        number = episode.task if episode.validate else self._spec.task_number(episode.step, episode.task)
        return Task(number, (), extra_info={"validate": episode.validate})

    async def play(self, body: Mapping[str, object], *, timeout_seconds: float, stop: asyncio.Event) -> Ended:
        """Play a task against the gateway that `body` names. Raises HarnessError if the process cannot."""
        server = await self._started()
        try:
            return await ask_service(
                "http://verifiers/play", body, timeout_seconds=timeout_seconds, stop=stop, socket_file=server.socket
            )
        except HarnessError as error:
            await server.wait_for_end()
            raise HarnessError(f"environment.name: verifiers broke off: {server.last_words() or error}") from error

    async def close(self) -> None:
        """End the process, with its tool servers."""
        if self._server is not None:
            await self._server.close()

    async def _started(self) -> "_Server":
        async with self._starting:
            if self._server is not None and not self._server.is_running:
                await self._server.close()
                self._server = None
            if self._server is None:
                self._server = await _Server.start(self._python, self._settings, self._variables)
            return self._server


class _Server:
    """A process that plays episodes; its socket is in a folder that only this user reads."""

    def __init__(self, process: asyncio.subprocess.Process, folder: "TemporaryDirectory[str]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.socket = Path(folder.name) / SOCKET
        self._process = process
        self._input, self._output = process.stdin, process.stdout
        self._folder = folder
        self._errors = bytearray()
        self._readers = [asyncio.create_task(_keep_end(process.stderr, self._errors))]

    @classmethod
    async def start(cls, python: str, settings: Mapping[str, object], variables: Mapping[str, str]) -> "_Server":
        """Start a process and wait until it serves. Raises HarnessError if it does not."""
        folder = TemporaryDirectory(prefix="turnmill-verifiers-", ignore_cleanup_errors=True)
        try:
            process = await asyncio.create_subprocess_exec(
                *server_command(python, settings, Path(folder.name)),
                SOCKET,
                cwd=folder.name,
                env=server_variables(python, variables),
                # It ends with its input, and so with this process.
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            folder.cleanup()
            raise HarnessError(
                f"environment.python: {python!r} cannot be started: {error}. Give the interpreter of a virtual "
                "environment with verifiers."
            ) from error
        server = cls(process, folder)
        try:
            await server._wait_until_ready()
        except BaseException:
            await server.close()
            raise
        return server

    @property
    def is_running(self) -> bool:
        """Return whether the process has not ended."""
        return self._process.returncode is None

    async def _wait_until_ready(self) -> None:
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                # What an environment prints may come before.
                while (line := await self._output.readline()) and line.strip() != b"ready":
                    pass
                if not line:
                    await asyncio.wait(self._readers)
        except TimeoutError as error:
            raise HarnessError(f"environment.task: verifiers did not load it within {LOAD_SECONDS:g} s.") from error
        if not line:
            raise HarnessError(f"environment.task: verifiers cannot load it: {self.last_words()}")
        self._readers.append(asyncio.create_task(_keep_end(self._output, bytearray())))

    async def wait_for_end(self) -> None:
        """Wait for the end of a process that has probably died, so that another one takes its place."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), DEATH_SECONDS)

    def last_words(self) -> str:
        """Return the end of what the process wrote to its standard error."""
        return last_words(self._errors.decode(errors="replace"))

    async def close(self) -> None:
        """End the process: by itself, which ends its tool servers, or by force."""
        self._input.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), CLOSE_SECONDS)
        kill_group(self._process.pid)
        await self._process.wait()
        for reader in self._readers:
            reader.cancel()
        await asyncio.to_thread(self._folder.cleanup)


async def _keep_end(output: asyncio.StreamReader, kept: bytearray) -> None:
    """Read what a process writes, so that it never waits, and keep the end."""
    while piece := await output.read(65_536):
        kept += piece
        del kept[:-MAX_KEPT_BYTES]


def server_settings(given: Mapping[str, object], task: str | None, *, max_turns: int, seed: int) -> dict[str, object]:
    """Return what the process reads, from `environment.options` and `environment.task`. Raises SettingsError."""
    options = read_options(VerifiersOptions, given, "environment.options", owner=VERIFIERS, by_name=True)
    taskset = options.settings.get("taskset")
    named = {"id": task} if task is not None else {}
    return {
        **options.model_dump(mode="json"),
        "settings": {**options.settings, "taskset": {**(taskset if isinstance(taskset, dict) else {}), **named}},
        "max_turns": max_turns,
        "seed": seed,
    }


def server_command(python: str, settings: Mapping[str, object], folder: Path) -> list[str]:
    """Return a process without its last argument; its settings are written to the folder."""
    file = folder / "settings.json"
    file.write_text(json.dumps(settings))
    return [python, verifiers_server.__file__, str(file)]


def server_variables(python: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a process: its programs are beside its interpreter, and its caches in the home folder."""
    found = inherited([*INHERITED, "HOME"])
    return found | {"PATH": f"{Path(python).parent}{os.pathsep}{found.get('PATH', os.defpath)}"} | dict(variables)
