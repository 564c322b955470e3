"""Which engine serves which trajectory, by verl's own load balancer and clients."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayError, RayTaskError
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.router import GlobalRequestLoadBalancer
from vllm.v1.engine.exceptions import EngineDeadError

from support.jobs import job
from turnmill.jobs import AgentTrainingJob
from turnmill.rollout.episode_id import EpisodeId
from turnmill.rollout.generation import generate
from turnmill.rollout.llm_client import EngineClient, ResumingClient, SingleEngineClient
from turnmill.rollout.verlog.slot import EpisodePlan, Slot


class Engine:
    """An engine that answers once as many requests are in flight as the test starts at a time."""

    def __init__(self, name: str, cluster: "Cluster") -> None:
        self.name = name
        self.death: RayError | None = None
        self.generate = SimpleNamespace(remote=self._generate)
        self._cluster = cluster

    async def _generate(self, **_: Any) -> TokenOutput:
        if self.death is not None:
            raise self.death
        await self._cluster.arrive()
        # Clients pass on the tokens of a response, and no more.
        return TokenOutput(token_ids=[ord(letter) for letter in self.name], log_probs=[0.0], stop_reason="completed")


class Balancer:
    """verl's load balancer with the calls of a Ray actor."""

    def __init__(self, balancer: GlobalRequestLoadBalancer) -> None:
        self._balancer = balancer

    def __getattr__(self, name: str) -> Any:
        method: Callable[..., Any] = getattr(self._balancer, name)

        def remote(*args: Any, **kwargs: Any) -> "asyncio.Future[Any]":
            answer = asyncio.get_running_loop().create_future()
            answer.set_result(method(*args, **kwargs))
            return answer

        return SimpleNamespace(remote=remote)


class Cluster:
    """Engines behind verl's load balancer."""

    def __init__(self, engines: Iterable[str], client_cls: type[LLMServerClient] = ResumingClient) -> None:
        self.engines = {name: Engine(name, self) for name in engines}
        self.balancer = GlobalRequestLoadBalancer(self.engines)  # type: ignore[arg-type]
        rollout = SimpleNamespace(name="vllm", full_determinism=False)
        config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout))
        self.client = client_cls(config, Balancer(self.balancer))  # type: ignore[arg-type]
        self._waiting = asyncio.Barrier(1)

    async def arrive(self) -> None:
        """Wait until all requests that were started together are in flight."""
        await self._waiting.wait()

    async def play(self, trajectories: Iterable[str]) -> list[str]:
        """Play a turn of all trajectories at once; return the engine of each."""
        names = list(trajectories)
        self._waiting = asyncio.Barrier(len(names))
        return await asyncio.gather(*(self.turn(name) for name in names))

    async def turn(self, name: str) -> str:
        """Play a turn of a trajectory; return its engine."""
        output = await generate(self.client, name, [1], {"max_tokens": 1}, seed=0, timeout_seconds=60)
        return "".join(map(chr, output.token_ids))

    def replace(self, lost: str, new: str) -> None:
        """Let an engine serve in place of another one."""
        self.balancer.remove_servers([lost])
        self.balancer.add_servers({new: Engine(new, self)})


def step(number: int, *, size: int) -> list[str]:
    """Return the names of a step's trajectories."""
    return [str(EpisodeId(number, task, 0, validate=False)) for task in range(size)]


@pytest.fixture(params=[LLMServerClient, ResumingClient])
def client_cls(request: pytest.FixtureRequest) -> type[LLMServerClient]:
    """verl's own client, and the one of the asynchronous modes."""
    cls: type[LLMServerClient] = request.param
    return cls


async def test_a_replacement_gets_its_share_of_the_trajectories_that_begin_after_it(client_cls):
    cluster = Cluster("AB", client_cls)
    assert Counter(await cluster.play(step(1, size=64))) == {"A": 32, "B": 32}

    cluster.balancer.remove_servers(["A"])
    assert Counter(await cluster.play(step(2, size=64))) == {"B": 64}
    cluster.balancer.add_servers({"C": Engine("C", cluster)})

    assert Counter(await cluster.play(step(3, size=64))) == {"B": 32, "C": 32}


async def test_every_one_of_512_engines_gets_requests(client_cls):
    engines = [f"engine-{number}" for number in range(512)]

    assert Counter(await Cluster(engines, client_cls).play(step(1, size=1024))) == dict.fromkeys(engines, 2)


async def test_the_turns_of_a_trajectory_go_to_the_engine_that_has_its_prefix(client_cls):
    cluster = Cluster("AB", client_cls)
    first = await cluster.play(step(1, size=64))

    assert await cluster.play(step(1, size=64)) == first
    cluster.replace("A", "C")

    after = await cluster.play(step(1, size=64))
    assert [engine for engine, before in zip(after, first, strict=True) if before == "B"] == ["B"] * 32


@pytest.mark.parametrize(
    "death",
    [
        RayTaskError("generate", "", EngineDeadError()).as_instanceof_cause(),
        ActorDiedError(),
        OutOfMemoryError("killed to save the machine's memory"),
    ],
)
async def test_requests_of_an_engine_that_has_died_continue_on_the_others(death):
    cluster = Cluster("ABC", EngineClient)
    first = await cluster.play(step(1, size=63))
    cluster.engines["A"].death = death

    after = await cluster.play(step(1, size=63))

    assert cluster.balancer.get_all_servers() == ["B", "C"]
    assert set(after) == {"B", "C"}
    moved = {(before, engine) for before, engine in zip(first, after, strict=True) if before != engine}
    assert {before for before, _ in moved} == {"A"}


async def test_the_death_of_the_load_balancer_ends_its_requests(monkeypatch):
    cluster = Cluster("AB", EngineClient)
    await cluster.turn("trajectory")

    def die(*_: Any, **__: Any) -> None:
        raise ActorDiedError

    monkeypatch.setattr(cluster.balancer, "acquire_server", die)

    with pytest.raises(ActorDiedError):
        await cluster.turn("trajectory")


async def test_the_only_engine_of_synchronous_rollout_is_looked_up_once():
    cluster = Cluster("A", SingleEngineClient)

    for number in range(3):
        assert set(await cluster.play(step(number, size=8))) == {"A"}

    assert cluster.balancer.get_total_inflight() <= 8


def test_slots_name_every_episode_anew_and_every_turn_of_one_the_same():
    spec = AgentTrainingJob.model_validate(job()).spec
    slots = [
        *(Slot(index, spec, EpisodePlan.training(0, index)) for index in range(4)),
        *(Slot(index, spec, EpisodePlan.validation(0, index, step)) for step in (0, 5) for index in range(4)),
    ]

    names = [slot.trajectory for slot in slots]
    slots[0].turns_played += 1
    same = slots[0].trajectory
    slots[0].episode += 1

    assert len(set(names)) == len(names)
    assert same == names[0]
    assert slots[0].trajectory not in names
