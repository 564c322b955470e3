"""Plays episodes of an environment of verifiers, any number at a time: a service by verifiers' own interpreter.

PYTHON verifiers_server.py SETTINGS.json (SOCKET | --load-only)

A POST to the socket plays one task, as services of agents of type `harness` do, and the answer is its reward. The
server ends with its standard input. The interpreter is verifiers', so this file imports nothing of this package.
"""

import asyncio
import contextlib
import json
import math
import random
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from aiohttp import web

LOAD_ONLY = "--load-only"
"""Argument in place of the socket, with which nothing is served."""

TOO_LONG = ("max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens")
"""verifiers' names of the limits that end an episode, which is rewarded."""

Object = Mapping[str, object]


class Error(Protocol):
    """One error that verifiers has recorded."""

    type: str
    message: str


class Seat(Protocol):
    """verifiers' record of who played."""

    name: str | None


class Trace(Protocol):
    """verifiers' record of what one agent did in an episode."""

    agent: Seat
    ok: bool
    errors: Sequence[Error]
    reward: float
    metrics: Mapping[str, float | None]
    stop_condition: str | None


class Episode(Protocol):
    """verifiers' record of an episode."""

    errors: Sequence[Error]
    traces: Sequence[Trace]


class Env(Protocol):
    """An environment of verifiers."""

    def slots(self, task: object) -> Sequence[object]:
        """Return the plan of one episode."""

    async def run_slot(self, slot: object, context: object) -> Episode:
        """Play it."""

    def complete(self, episode: Episode) -> bool:
        """Return whether an episode is a valid result."""

    def serving(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Hold the tool servers that episodes share."""


class UnplayableError(Exception):
    """An environment that this server cannot play: its message says why."""


@dataclass(frozen=True)
class Environment:
    """An environment and its tasks, of which one agent learns."""

    env: Env
    tasks: Sequence[object]
    learner: str

    async def play(self, number: int, gateway: Object) -> web.Response:
        """Play one task, with the gateway as the model's server, and return the reward of the agent that learns."""
        from verifiers.v1.clients import EvalClientConfig, ModelContext
        from verifiers.v1.types import SamplingConfig

        # The key is another one for each trajectory, so it is in the address and not in a variable.
        client = EvalClientConfig(base_url=f"{gateway['url']}/{gateway['key']}/v1", api_key_var="TURNMILL_NO_KEY")
        context = ModelContext(client=client, model=gateway["model"], sampling=SamplingConfig())
        (slot,) = self.env.slots(self.tasks[number])
        episode = await self.env.run_slot(slot, context)
        played = [trace for trace in episode.traces if trace.agent.name == self.learner]
        if not self.env.complete(episode) or not played:
            return web.Response(status=500, text=failure(episode))
        return web.json_response(result(played))


def failure(episode: Episode) -> str:
    """Return what verifiers says of an episode that is no valid result."""
    errors = [*episode.errors, *(error for trace in episode.traces if not trace.ok for error in trace.errors)]
    said = "; ".join(f"{error.type}: {error.message}" for error in errors)
    return said or "verifiers has no complete episode, and no error"


def result(played: Sequence[Trace]) -> Object:
    """Return the reward and the metrics of the agent that learns: the means, if it played several times."""
    values: dict[str, list[float]] = {}
    for trace in played:
        for name, value in trace.metrics.items():
            if value is not None and math.isfinite(value):
                values.setdefault(name, []).append(float(value))
    found: dict[str, object] = {
        "reward": sum(trace.reward for trace in played) / len(played),
        "metrics": {name: sum(each) / len(each) for name, each in values.items()},
    }
    if any(trace.stop_condition in TOO_LONG for trace in played):
        found["stopReason"] = "max_turns"
    return found


class Tasks:
    """The tasks of training, each epoch in another order, and those of validations."""

    def __init__(self, settings: Object) -> None:
        self._seed = settings["seed"]
        self.training = load(settings, {})
        self.validation = self.training
        self._kept = range(len(self.training.tasks))
        if settings["validation"]:
            self.validation = load(settings, settings["validation"])
            self._validated = range(len(self.validation.tasks))
        else:
            # The last tasks, which training skips; with a single task, validations have the same.
            end = len(self.training.tasks) - min(int(str(settings["validation_tasks"])), len(self.training.tasks) - 1)
            self._validated = self._kept[end:] or self._kept
            self._kept = self._kept[:end]

    @property
    def environments(self) -> list[Environment]:
        """The environments, each once."""
        return [self.training] if self.validation is self.training else [self.training, self.validation]

    async def play(self, request: web.Request) -> web.Response:
        """Play the task that a request names."""
        task = await request.json()
        number = task["number"]
        if task["info"]["validate"]:
            return await self.validation.play(self._validated[number % len(self._validated)], task["gateway"])
        epoch, position = divmod(number, len(self._kept))
        return await self.training.play(self._order(epoch)[position], task["gateway"])

    @lru_cache(maxsize=4)  # noqa: B019 (one object for the whole process)
    def _order(self, epoch: int) -> Sequence[int]:
        order = list(self._kept)
        random.Random(f"{self._seed}/order/{epoch}").shuffle(order)
        return order


def load(settings: Object, changes: object) -> Environment:
    """Load an environment with verifiers' own settings. Raises UnplayableError, and whatever verifiers raises."""
    from verifiers.v1.configs.agent import agent_config_fields
    from verifiers.v1.utils import loaders

    config = loaders.resolve_env_config(merged(settings["settings"], changes))
    agents = agent_config_fields(config)
    learner = learner_of(agents, settings["agent"])
    agent, max_turns = agents[learner], settings["max_turns"]
    limit = max_turns if agent.max_turns is None else min(max_turns, agent.max_turns)
    config = config.model_copy(update={learner: agent.model_copy(update={"max_turns": limit})})
    env = loaders.load_environment(config)
    taskset = env.taskset if settings["num_tasks"] is None else env.taskset.take(settings["num_tasks"])
    if not taskset.bounded:
        raise UnplayableError("its task set has no end: set numTasks")
    tasks = list(taskset)
    if not tasks:
        raise UnplayableError("its task set is empty")
    return Environment(env, tasks, learner)


class AgentConfig(Protocol):
    """verifiers' settings of one agent."""

    client: object
    max_turns: int | None


def learner_of(agents: Mapping[str, AgentConfig], named: object) -> str:
    """Return the agent that learns. Raises UnplayableError unless the others have models of their own."""
    if named is None and len(agents) > 1:
        raise UnplayableError(f"it has several agents, {', '.join(agents)}: say as `agent` which of them learns")
    learner = next(iter(agents)) if named is None else str(named)
    if learner not in agents:
        raise UnplayableError(f"it has no agent {learner!r}, but {', '.join(agents)}")
    others = [name for name, agent in agents.items() if name != learner and agent.client is None]
    if others:
        raise UnplayableError(
            f"only {learner} learns, and {', '.join(others)} would play by the policy as well: "
            f"give each a model, as settings.{others[0]}.model and settings.{others[0]}.client (type: eval, base_url)"
        )
    return learner


def merged(settings: object, changes: object) -> object:
    """Return settings with others in place of theirs, section by section."""
    if not isinstance(settings, dict) or not isinstance(changes, dict):
        return changes
    changed = {name: merged(settings[name], value) for name, value in changes.items() if name in settings}
    return {**settings, **changes, **changed}


async def serve(tasks: Tasks, socket: str) -> None:
    """Serve until the standard input ends."""
    app = web.Application()
    app.router.add_post("/play", tasks.play)
    # Who closes the connection gives the trajectory up.
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
    async with contextlib.AsyncExitStack() as stack:
        for environment in tasks.environments:
            await stack.enter_async_context(environment.env.serving())
        stack.push_async_callback(runner.cleanup)
        await runner.setup()
        await web.UnixSite(runner, socket).start()
        print("ready", flush=True)
        async for _ in lines_of_input():
            pass


async def lines_of_input() -> AsyncIterator[bytes]:
    """Yield the lines of the standard input."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield line


def main() -> None:
    """Load the environment that the settings name, and serve it."""
    # Not the modules beside this file, which have common names.
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]
    try:
        tasks = Tasks(json.loads(Path(sys.argv[1]).read_text()))
    except Exception as error:
        # In one line, the last one, which `turnmill check` and failed trajectories report.
        kind = "" if isinstance(error, UnplayableError) else f"{type(error).__name__}: "
        sys.exit(kind + " ".join(str(error).split()))
    if LOAD_ONLY not in sys.argv[2:]:
        asyncio.run(serve(tasks, sys.argv[2]))


if __name__ == "__main__":
    main()
