"""The process that plays episodes of an environment of verifiers, with a package that stands for verifiers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from turnmill.core.trajectory import EpisodeFailure
from turnmill.observability.run_folder import RunFolder
from turnmill.rollout.harness.episode import EpisodeResult
from turnmill.rollout.harness.loop import HarnessLoop
from turnmill.rollout.harness.program import kill_group
from turnmill.testing.agent_loops import END, SAMPLING, TOKENIZER, job_of
from turnmill.testing.policies import ScriptedPolicy

MODULES = {
    "clients": """
from types import SimpleNamespace as EvalClientConfig
from types import SimpleNamespace as ModelContext
""",
    "types": "from types import SimpleNamespace as SamplingConfig",
    "configs/agent": """
def agent_config_fields(config):
    return {"agent": config.agent}
""",
    "utils/loaders": """
import asyncio, contextlib, os
from pathlib import Path
from types import SimpleNamespace

import aiohttp


class Config(SimpleNamespace):
    def model_copy(self, update):
        return Config(**{**vars(self), **update})


def resolve_env_config(settings):
    if settings["taskset"]["id"] == "missing":
        raise ModuleNotFoundError("taskset 'missing'\\nnot found")
    return Config(agent=Config(client=None, max_turns=None), taskset=settings["taskset"])


class Tasks(list):
    bounded = True


class Env:
    def __init__(self, config):
        self.config, self.taskset = config, Tasks([config.taskset["id"]])

    def slots(self, task):
        return [task]

    async def run_slot(self, kind, context):
        print("some words", flush=True)
        trace = SimpleNamespace(agent=SimpleNamespace(name="agent"), ok=True, errors=[], reward=-0.5, metrics={"m": 2},
                                stop_condition="max_turns" if kind == "limited" else "done")
        async with aiohttp.ClientSession() as session:
            body = {"model": context.model, "messages": [{"role": "user", "content": kind}]}
            async with session.post(context.client.base_url + "/chat/completions", json=body) as response:
                if not response.ok or kind == "broken":
                    error = SimpleNamespace(type="ProviderError", message=str(response.status))
                    trace.ok, trace.errors = False, [error]
        try:
            await asyncio.sleep(60 if kind == "slow" else 0)
        except asyncio.CancelledError:
            Path(os.environ["FOLDER"], "cancelled").touch()
            raise
        return SimpleNamespace(errors=[], traces=[trace])

    def complete(self, episode):
        return all(trace.ok for trace in episode.traces)

    @contextlib.asynccontextmanager
    async def serving(self):
        yield
        Path(os.environ["FOLDER"], "closed").touch()


load_environment = Env
""",
}

Begin = Callable[..., HarnessLoop]


@pytest.fixture
async def begin(tmp_path: Path) -> AsyncIterator[Begin]:
    loops: list[HarnessLoop] = []
    for name, code in MODULES.items():
        file = tmp_path / "verifiers" / "v1" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(code)

    def create(task: str, answer: str = f"one{END}", **agent: Any) -> HarnessLoop:
        variables = {"PYTHONPATH": str(tmp_path), "FOLDER": str(tmp_path)}
        job = job_of(
            {"type": "harness", "groupSize": 2, "variables": variables, **agent},
            {"name": "verifiers", "task": task},
            algorithm={"type": "grpo"},
            tasksPerStep=1,
        )
        run_dir = tmp_path / f"run{len(loops)}"
        RunFolder(run_dir).create()
        policy = ScriptedPolicy(TOKENIZER, lambda request: answer)
        loops.append(HarnessLoop(server_manager=policy, tokenizer=TOKENIZER, job=job, run_dir=run_dir))
        return loops[-1]

    yield create
    for loop in loops:
        await loop.close()


async def play(loop: HarnessLoop, sample: int = 0) -> EpisodeResult | EpisodeFailure:
    return await loop.run(SAMPLING, index=0, session_id=sample, global_steps=1)


@pytest.mark.parametrize(("task", "stop_reason"), [("easy", "completed"), ("limited", "max_turns")])
async def test_an_episode_has_the_reward_and_the_metrics_of_its_environment(begin: Begin, task: str, stop_reason: str):
    result = await play(begin(task))

    assert isinstance(result, EpisodeResult), result
    assert (result.summary.reward, result.summary.stop_reason, result.summary.num_turns) == (-0.5, stop_reason, 1)
    assert result.summary.metrics["result_m"] == 2


@pytest.mark.parametrize(
    ("task", "answer", "cause", "message"),
    [
        ("broken", f"one{END}", "harness", "ProviderError: 200"),
        ("easy", "", "inference", ""),
        ("missing", "", "harness", "cannot load it: ModuleNotFoundError: taskset 'missing' not found"),
    ],
)
async def test_an_episode_that_is_not_complete_has_no_reward(
    begin: Begin, task: str, answer: str, cause: str, message: str
):
    failure = await play(begin(task, answer))

    assert isinstance(failure, EpisodeFailure)
    assert failure.cause == cause
    assert message in failure.message


async def test_an_episode_out_of_time_is_given_up(begin: Begin, tmp_path: Path):
    failure = await play(begin("slow", timeoutSeconds=0.5))

    assert isinstance(failure, EpisodeFailure)
    assert "took more than 0.5 s" in failure.message
    await until((tmp_path / "cancelled").exists)


async def test_a_process_ends_its_tool_servers_with_the_loop(begin: Begin, tmp_path: Path):
    loop = begin("easy")
    await play(loop)
    process = server_of(loop)._process

    await loop.close()

    assert (tmp_path / "closed").exists()
    assert process.returncode == 0


async def test_a_process_that_dies_is_replaced(begin: Begin):
    loop = begin("slow")
    playing = asyncio.create_task(play(loop))
    await until(lambda: bool(loop.client.requests))

    kill_group(server_of(loop)._process.pid)
    failure = await playing
    loop.verifiers._settings["settings"]["taskset"]["id"] = "easy"

    assert isinstance(failure, EpisodeFailure)
    assert "verifiers broke off" in failure.message
    assert isinstance(await play(loop, 1), EpisodeResult)


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come")


def server_of(loop: HarnessLoop) -> Any:
    return loop.verifiers._server
