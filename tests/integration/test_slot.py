"""Slots with real BabyAI environments in separate processes."""

from collections.abc import AsyncIterator, Callable

import pytest

from turnmill.core.trajectory import Turn
from turnmill.jobs import AgentTrainingJob
from turnmill.rollout.verlog.slot import EpisodePlan, Slot, SlotState

TURN = Turn((1,), (2,))
RESPONSES = ("ACTION: turn left", "no action at all", "ACTION: go forward", "ACTION: turn right", "ACTION: go forward")


def job(**agent: object) -> AgentTrainingJob:
    return AgentTrainingJob.model_validate(
        {
            "apiVersion": "turnmill.dev/v1alpha1",
            "kind": "AgentTrainingJob",
            "metadata": {"name": "slots"},
            "spec": {
                "model": {"warmStart": {}},
                "agent": {"memory": {"textTurns": 2, "thoughtTurns": 1}, "maxTurns": 4, **agent},
                "environment": {"name": "babyai", "task": "goto", "count": 4},
                "training": {"steps": 1, "turnsPerStep": 8},
            },
        }
    )


@pytest.fixture
async def slot() -> AsyncIterator[Callable[..., Slot]]:
    made: list[Slot] = []

    def make(index: int = 3, **agent: object) -> Slot:
        made.append(Slot(index, job(**agent).spec, EpisodePlan.training(0, index)))
        return made[-1]

    yield make
    for each in made:
        await each.close()


async def play(slot: Slot, responses: tuple[str, ...]) -> list[list[dict[str, str]]]:
    """Play the responses; return the messages before each of them and after the last."""
    seen = []
    for response in responses:
        await slot.ensure_episode()
        seen.append(slot.messages())
        await slot.act(response)
        slot.finish_turn()
    await slot.ensure_episode()
    return [*seen, slot.messages()]


@pytest.mark.parametrize("turns_before", range(len(RESPONSES) + 1))
async def test_a_restored_slot_continues_exactly_where_the_other_was(slot, turns_before):
    uninterrupted = await play(slot(), RESPONSES)
    killed = slot()
    await play(killed, RESPONSES[:turns_before])
    resumed = slot()

    await resumed.restore(killed.state())
    after = await play(resumed, RESPONSES[turns_before:])

    assert after == uninterrupted[turns_before:]
    assert resumed.turns_played == len(RESPONSES)


async def test_a_resumed_episode_keeps_its_number_turn_and_reward(slot):
    killed, resumed = slot(), slot()
    await play(killed, RESPONSES[:2])

    await resumed.restore(killed.state())

    assert (resumed.episode_name, resumed.turn) == (killed.episode_name, 2)
    assert resumed.reward == killed.reward == pytest.approx(-0.1)


async def test_an_episode_that_cannot_be_restored_is_dropped_and_the_next_begins(slot):
    resumed, expected = slot(), slot()
    # The episode is over after its fourth turn: nothing can follow it.
    await resumed.restore(SlotState(3, 0, 6, ("ACTION: turn left",) * 6))
    await expected.restore(SlotState(3, 1, 6, ()))

    await resumed.ensure_episode()
    await expected.ensure_episode()

    assert resumed.episode == 1
    assert resumed.messages() == expected.messages()


async def test_slots_begin_with_different_episodes(slot):
    first, second = slot(0), slot(1)

    await first.ensure_episode()
    await second.ensure_episode()

    assert first.messages() != second.messages()


async def test_an_episode_ends_at_its_turn_limit(slot):
    at_limit = slot()
    for _ in range(3):
        await at_limit.ensure_episode()
        await at_limit.act("ACTION: turn left")
        at_limit.finish_turn()

    result = await at_limit.act("ACTION: turn left")

    assert result.truncated
    assert at_limit.stop_reason(Turn((1,), (2,), done=True)) == "max_turns"
    assert at_limit.stop_reason(TURN) is None
    at_limit.finish_turn()
    assert (at_limit.episode, at_limit.turn, at_limit.reward) == (1, 0, 0)


async def test_a_dropped_episode_is_followed_by_the_next_or_repeated(slot):
    at = slot()
    await at.ensure_episode()
    first = at.messages()

    await at.drop_episode(repeat=True)
    await at.ensure_episode()
    again = at.messages()
    await at.drop_episode()
    await at.ensure_episode()

    assert again == first
    assert at.messages() != first
    assert at.episode == 1
