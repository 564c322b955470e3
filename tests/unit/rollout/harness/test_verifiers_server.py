"""What the process of an environment of verifiers makes of verifiers' records."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from turnmill.rollout.harness import verifiers_server
from turnmill.rollout.harness.verifiers_server import (
    Environment,
    Tasks,
    UnplayableError,
    failure,
    learner_of,
    merged,
    result,
)


def trace(**fields: Any) -> Any:
    return SimpleNamespace(**{"reward": 1.0, "metrics": {}, "stop_condition": "agent_completed", **fields})


def error(kind: str, message: str) -> Any:
    return SimpleNamespace(type=kind, message=message)


def test_the_reward_is_that_of_the_agent_that_learns_or_the_mean_of_what_it_played():
    assert result([trace(reward=0.25)])["reward"] == 0.25
    assert result([trace(reward=0.25), trace(reward=1.25)])["reward"] == 0.75


def test_metrics_without_a_value_are_left_out():
    played = [trace(metrics={"seconds": 1.0, "none": None, "broken": float("nan")}), trace(metrics={"seconds": 2.0})]

    assert result(played)["metrics"] == {"seconds": 1.5}


@pytest.mark.parametrize(("condition", "told"), [("max_turns", True), ("max_total_tokens", True), ("done", False)])
def test_an_episode_that_a_limit_ended_says_so(condition: str, told: bool):
    assert ("stopReason" in result([trace(stop_condition=condition)])) is told


def test_a_failure_has_the_errors_of_the_episode_and_of_the_traces_that_failed():
    episode: Any = SimpleNamespace(
        errors=[error("EnvError", "no board")],
        traces=[
            SimpleNamespace(ok=False, errors=[error("ProviderError", "upstream 500")]),
            SimpleNamespace(ok=True, errors=[error("SandboxError", "was repeated")]),
        ],
    )

    assert failure(episode) == "EnvError: no board; ProviderError: upstream 500"


def agents(**clients: object) -> dict[str, Any]:
    return {name: SimpleNamespace(client=client, max_turns=None) for name, client in clients.items()}


def test_one_agent_learns_and_the_others_have_models_of_their_own():
    assert learner_of(agents(agent=None), None) == "agent"
    assert learner_of(agents(player0=None, player1="http"), "player0") == "player0"


@pytest.mark.parametrize(
    ("given", "named", "message"),
    [
        ({"a": None, "b": None}, None, "several agents, a, b: say as `agent`"),
        ({"a": None, "b": None}, "c", "no agent 'c', but a, b"),
        ({"a": None, "b": None}, "a", "b would play by the policy as well: .* settings.b.client"),
    ],
)
def test_agents_that_cannot_be_told_apart_are_refused(given: dict[str, None], named: str | None, message: str):
    with pytest.raises(UnplayableError, match=message):
        learner_of(agents(**given), named)


def test_settings_are_merged_section_by_section():
    settings = {"taskset": {"id": "gsm8k", "split": "train"}, "agent": {"max_turns": 3}}

    assert merged(settings, {"taskset": {"split": "test"}, "retries": 1}) == {
        "taskset": {"id": "gsm8k", "split": "test"}, "agent": {"max_turns": 3}, "retries": 1,
    }  # fmt: skip


class Played(Environment):
    async def play(self, number: int, gateway: object) -> Any:
        return self.tasks[number]


def tasks(
    monkeypatch: pytest.MonkeyPatch, size: int, *, validation: object = None, kept: int = 2, seed: int = 0
) -> Tasks:
    def load(settings: object, changes: object) -> Environment:
        environment: Any = SimpleNamespace()
        return Played(environment, [f"{'test' if changes else 'train'}{n}" for n in range(size)], "agent")

    monkeypatch.setattr(verifiers_server, "load", load)
    return Tasks({"seed": seed, "validation": validation or {}, "validation_tasks": kept})


async def played(source: Tasks, numbers: Sequence[int], *, validate: bool = False) -> list[str]:
    async def body(number: int) -> Any:
        return {"number": number, "info": {"validate": validate}, "gateway": {}}

    requests: list[Any] = [SimpleNamespace(json=lambda number=number: body(number)) for number in numbers]
    return [str(await source.play(request)) for request in requests]


async def test_every_epoch_has_all_tasks_in_another_order_and_none_of_the_validations(monkeypatch: pytest.MonkeyPatch):
    source = tasks(monkeypatch, 10)

    first, second = await played(source, range(8)), await played(source, range(8, 16))
    validated = await played(source, range(3), validate=True)

    assert sorted(first) == sorted(second) == [f"train{number}" for number in range(8)]
    assert first != second
    assert first == await played(tasks(monkeypatch, 10), range(8))
    assert first != await played(tasks(monkeypatch, 10, seed=1), range(8))
    assert validated == ["train8", "train9", "train8"]


async def test_validations_have_the_tasks_of_their_own_settings_or_of_a_single_task(monkeypatch: pytest.MonkeyPatch):
    own, single = tasks(monkeypatch, 3, validation={"taskset": {"split": "test"}}), tasks(monkeypatch, 1)

    assert await played(own, range(4), validate=True) == ["test0", "test1", "test2", "test0"]
    assert sorted(await played(own, range(3))) == ["train0", "train1", "train2"]
    assert await played(single, [5]) == await played(single, [5], validate=True) == ["train0"]
