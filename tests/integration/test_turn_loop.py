from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import torch
from PIL import Image

from turnmill.core.errors import RunFailedError
from turnmill.core.trajectory import EpisodeSummary, SegmentMetadata, TurnMetadata
from turnmill.jobs import AgentTrainingJob
from turnmill.rollout.queue_payload import decode
from turnmill.rollout.token_integrity import token_checksum
from turnmill.rollout.verlog.turn_loop import MAX_FAILURES_IN_A_ROW
from turnmill.testing.agent_loops import TOKENIZER, TurnLoopHarness, job_of
from turnmill.testing.policies import LOG_PROB

HURT, LOOK, WIN = "ACTION: hurt", "ACTION: look", "ACTION: win"


def job(*, turns: int, max_turns: int, render_episodes: int, **options: str) -> AgentTrainingJob:
    """One environment that counts, and plays `turns` turns a step."""
    return job_of(
        {"maxTurns": max_turns, "prompt": "compact", "maxResponseTokens": 32},
        {"name": "support.environments:Hostile", "count": 1, "options": options},
        turnsPerStep=turns,
        validation={"episodes": 2, "renderEpisodes": render_episodes},
    )


@pytest.fixture
async def table(tmp_path) -> AsyncIterator[Callable[..., TurnLoopHarness]]:
    made: list[TurnLoopHarness] = []

    def make(
        script: Any, *, turns: int = 3, max_turns: int = 20, render_episodes: int = 0, **options: str
    ) -> TurnLoopHarness:
        played = job(turns=turns, max_turns=max_turns, render_episodes=render_episodes, **options)
        made.append(TurnLoopHarness(tmp_path, script, played))
        return made[-1]

    yield make
    for each in made:
        await each.loop.close()


def turns(rows: list[Any], name: str) -> list[Any]:
    """A field of the turns of a segment, without its bootstrap row."""
    assert all(isinstance(row.metadata, TurnMetadata) for row in rows[:-1])
    return [getattr(row.metadata, name) for row in rows[:-1]]


def segment(rows: list[Any]) -> SegmentMetadata:
    """What the bootstrap row tells."""
    assert isinstance(rows[-1].metadata, SegmentMetadata)
    return rows[-1].metadata


def prompt_of(row: Any) -> str:
    return TOKENIZER.decode(row.prompt_ids)


@pytest.mark.feature("Verlog", "so many turns of each environment in a step")
async def test_a_segment_is_so_many_turns_and_one_bootstrap_row(table):
    at = table([LOOK, "ACTION: fly", LOOK])

    rows = await at.play()

    assert len(rows) == 3 + 1
    assert segment(rows).failure_causes == ()
    assert turns(rows, "reward") == [0, -0.1, 0]
    assert turns(rows, "valid") == [True, False, True]
    assert [row.response_mask for row in rows] == [[1] * 12, [1] * 11, [1] * 12, [0]]


async def test_the_trained_tokens_are_the_sampled_tokens(table):
    at = table([LOOK, WIN, LOOK])

    rows = await at.play()

    for row, request, answer in zip(rows, at.policy.requests, [LOOK, WIN, LOOK], strict=False):
        assert tuple(row.prompt_ids) == request.prompt_ids
        assert TOKENIZER.decode(row.response_ids) == answer
        assert row.response_logprobs == [LOG_PROB] * len(answer)


async def test_rows_carry_the_checksum_of_their_sampled_tokens_and_their_times(table):
    at = table([LOOK, WIN, LOOK])

    *rows, bootstrap = await at.play()

    assert [row.metadata.sampled_checksum for row in rows] == [token_checksum(row.response_ids) for row in rows]
    assert bootstrap.metadata.seconds["tools"] > 0
    assert bootstrap.metadata.seconds["generation"] >= 0


async def test_a_turn_is_logged_with_its_environment_and_its_time(table):
    at = table([LOOK, WIN, LOOK])

    rows = await at.play()

    first, second, third = at.logged()
    assert first.environment_name == third.environment_name != second.environment_name == ""
    assert first.seed == second.seed != third.seed
    assert 0 < first.asked_at < second.asked_at
    assert all(turn.seconds["tools"] > 0 for turn in (first, second, third))
    assert turns(rows, "episode_id") == ["t0-0", "t0-0", "t0-1"]
    assert turns(rows, "turn") == [0, 1, 0]


@pytest.mark.feature("Verlog", "episodes go on in the next step")
async def test_a_slot_carries_its_episode_on_to_the_next_segment(table):
    at = table([LOOK] * 6)

    first = await at.play(1)
    second = await at.play(2)

    assert second[0].prompt_ids == first[-1].prompt_ids
    assert "step 3" in prompt_of(second[0])
    assert {turn.episode for turn in at.logged()} == {"t0-0"}


@pytest.mark.feature("Verlog", "an episode that ended is followed by a fresh one")
async def test_after_the_end_of_an_episode_the_next_one_begins_afresh(table):
    at = table([LOOK, WIN, LOOK])

    rows = await at.play()

    first, second, third, bootstrap = map(prompt_of, rows)
    assert turns(rows, "done") == [False, True, False]
    assert turns(rows, "episode_length") == [0, 2, 0]
    assert turns(rows, "episode_reward")[1] == 1
    assert "step 1" in second
    assert "step 0" in third
    # Nothing is remembered of the episode before, and another one is played.
    assert third.count("seed") == first.count("seed") == 1
    assert third != first
    assert third.split("step 0")[0] in bootstrap


async def test_a_turn_limit_ends_an_episode_without_success(table):
    at = table([LOOK] * 3, max_turns=2)

    rows = await at.play()

    assert turns(rows, "done") == [False, True, False]
    assert turns(rows, "truncated") == [False, True, False]
    assert [turn.stop_reason for turn in at.logged()] == [None, "max_turns", None]


async def test_turns_of_an_episode_whose_environment_dies_are_never_learned_from(table):
    at = table([WIN, LOOK, HURT, LOOK, "ACTION: fly"], turns=3, on_step="exits")

    rows = await at.play()

    said = [TOKENIZER.decode(row.response_ids) for row in rows[:-1]]
    assert said == [WIN, LOOK, "ACTION: fly"]
    # The second episode died after one turn: the third begins where its turns were.
    assert "step 0" in prompt_of(rows[1])
    assert prompt_of(rows[1]) != at.prompts[1]


async def test_a_failure_is_counted_and_logged(table):
    at = table([WIN, LOOK, HURT, LOOK, LOOK], turns=3, on_step="exits")

    rows = await at.play()

    assert segment(rows).failure_causes == ("environment",)
    (failed,) = [turn for turn in at.logged() if turn.failed_cause]
    assert (failed.episode, failed.stop_reason, failed.failed_cause) == ("t0-1", "failed", "environment")
    assert "exited with code 3" in failed.observation
    assert failed.reward == 0


async def test_turns_learned_from_in_an_earlier_segment_do_not_count_against_the_present_one(table):
    at = table([LOOK] * 3 + [HURT] + [LOOK] * 3, on_step="exits")

    await at.play(1)
    rows = await at.play(2)

    assert len(rows) == 3 + 1
    assert "step 0" in prompt_of(rows[0])
    assert segment(rows).failure_causes == ("environment",)


async def test_an_answer_without_a_token_fails_the_episode_and_not_the_run(table):
    at = table([LOOK, "", LOOK, LOOK, LOOK])

    rows = await at.play()

    assert len(rows) == 3 + 1
    assert segment(rows).failure_causes == ("inference",)


async def test_an_environment_that_always_dies_ends_the_run(table):
    at = table([HURT] * MAX_FAILURES_IN_A_ROW, on_step="exits")

    with pytest.raises(RunFailedError, match=r"3 episodes in a row failed.*exited with code 3") as error:
        await at.play()

    assert error.value.cause == "environment"


async def test_an_environment_that_cannot_begin_ends_the_run(table):
    at = table([], on_reset="raises")

    with pytest.raises(RunFailedError, match="it hurts"):
        await at.play()


async def test_failures_with_whole_episodes_between_them_do_not_end_the_run(table):
    at = table([HURT, WIN] * (MAX_FAILURES_IN_A_ROW + 1), turns=MAX_FAILURES_IN_A_ROW + 1, on_step="exits")

    rows = await at.play()

    assert len(segment(rows).failure_causes) == MAX_FAILURES_IN_A_ROW + 1
    assert turns(rows, "done") == [1] * (MAX_FAILURES_IN_A_ROW + 1)


async def test_a_validation_episode_is_one_row_with_the_metrics_of_all_its_turns(table):
    at = table([LOOK, "ACTION: fly", WIN])

    (row,) = await at.play(4, slot=7, validate=True)

    found = decode(row.episode_summary, EpisodeSummary)
    assert (found.episode_id, found.success, found.num_turns) == ("v7-0", True, 3)
    assert found.reward == pytest.approx(0.9)
    assert found.metrics["valid_action"] == pytest.approx(2 / 3)
    assert [(turn.episode, turn.turn, turn.step) for turn in at.logged(validation=True)] == [
        ("v7-0", 0, 4),
        ("v7-0", 1, 4),
        ("v7-0", 2, 4),
    ]
    assert at.logged() == []


@pytest.mark.feature("Verlog", "validation on whole episodes")
async def test_every_validation_plays_the_same_episodes_and_every_slot_another_one(table):
    at = table([WIN] * 4)

    for slot in (0, 1, 0, 1):
        await at.play(slot=slot, validate=True)

    first, second, again, second_again = at.prompts
    assert (first, second) == (again, second_again)
    assert first != second


@pytest.mark.feature("Verlog", "animations of episodes")
async def test_a_validation_draws_as_many_episodes_as_the_job_asks_for(table):
    at = table([LOOK, WIN, LOOK, WIN], render_episodes=1)

    for slot in (0, 1):
        await at.play(4, slot=slot, validate=True)

    (drawn,) = at.folder.episodes.iterdir()
    assert drawn.name == "validation-000004-0.gif"
    with Image.open(drawn) as animation:
        assert animation.n_frames == 1 + 2


async def test_a_validation_episode_whose_environment_dies_is_played_again(table):
    at = table([LOOK, HURT, LOOK, WIN], on_step="exits")

    (row,) = await at.play(validate=True)

    assert at.prompts[2:] == at.prompts[:2]
    found = decode(row.episode_summary, EpisodeSummary)
    assert (found.num_turns, found.metrics["failures"], found.reward) == (2, 1, 1)
    logged = [(turn.episode, turn.turn, turn.failed_cause) for turn in at.logged(validation=True)]
    assert logged == [("v0-0", 0, None), ("v0-0", 1, "environment"), ("v0-0", 0, None), ("v0-0", 1, None)]


async def test_validation_leaves_the_environments_of_training_alone(table):
    at = table([LOOK, LOOK, LOOK, WIN, LOOK, LOOK, LOOK])

    first = await at.play(1)
    await at.play(1, validate=True)
    second = await at.play(2)

    assert second[0].prompt_ids == first[-1].prompt_ids


async def test_every_turn_is_sampled_under_a_seed_of_its_own_that_a_rerun_repeats(table):
    def seeds(at: TurnLoopHarness) -> list[int]:
        return [request.sampling_params["seed"] for request in at.policy.requests]

    once, again = table([LOOK] * 6), table([LOOK] * 6)
    for at in (once, again):
        await at.play(1)
        await at.play(2)

    assert seeds(once) == seeds(again)
    assert len(set(seeds(once))) == 6


@pytest.mark.feature("Verlog", "metrics of behaviour")
async def test_plans_and_second_thoughts_of_a_response_are_measured(table):
    at = table(["THINK: look, then win, no wait\nACTION: look", LOOK, LOOK])

    rows = await at.play()

    assert rows[0].metadata.plan_length > rows[1].metadata.plan_length
    assert rows[0].metadata.backtrack_length > rows[1].metadata.backtrack_length == 0


async def test_verl_gets_each_reward_on_the_last_token_of_its_own_turn(table):
    at = table([LOOK, WIN, "ACTION: fly"])

    rows = [row.as_dict() for row in await at.play()]

    assert [row["rm_scores"][-1].item() for row in rows] == pytest.approx([0, 1, -0.1, 0])
    assert all(not torch.any(row["rm_scores"][:-1]) for row in rows)
