from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import torch
from PIL import Image

from turnmill.core.errors import EnvironmentFailedError, RunFailedError
from turnmill.core.trajectory import SegmentMetadata, TurnMetadata
from turnmill.jobs import AgentTrainingJob
from turnmill.rollout.token_integrity import token_checksum
from turnmill.rollout.verlog.turn_loop import MAX_FAILURES_IN_A_ROW
from turnmill.testing.agent_loops import END, TOKENIZER, TurnLoopHarness, job_of
from turnmill.testing.policies import LOG_PROB

MISBEHAVE, LOOK, WIN = "ACTION: misbehave", "ACTION: look", "ACTION: win"


def job(*, turns: int, max_turns: int, render_episodes: int, **options: str) -> AgentTrainingJob:
    """A job with one environment that counts, and `turns` turns per step."""
    return job_of(
        {"maxTurns": max_turns, "prompt": "compact", "maxResponseTokens": 32},
        {"name": "support.environments:Hostile", "count": 1, "options": options},
        turnsPerStep=turns,
        validation={"episodes": 2, "renderEpisodes": render_episodes},
    )


@pytest.fixture
async def new_harness(tmp_path) -> AsyncIterator[Callable[..., TurnLoopHarness]]:
    made: list[TurnLoopHarness] = []

    def make(
        script: Any, *, turns: int = 3, max_turns: int = 20, render_episodes: int = 0, **options: str
    ) -> TurnLoopHarness:
        settings = job(turns=turns, max_turns=max_turns, render_episodes=render_episodes, **options)
        made.append(TurnLoopHarness(tmp_path, script, settings))
        return made[-1]

    yield make
    for each in made:
        await each.loop.close()


def turns(rows: list[Any], name: str) -> list[Any]:
    """Return a field of the turns of a segment, without its bootstrap row."""
    assert all(isinstance(row.metadata, TurnMetadata) for row in rows[:-1])
    return [getattr(row.metadata, name) for row in rows[:-1]]


def segment(rows: list[Any]) -> SegmentMetadata:
    """Return the metadata of a segment, which its bootstrap row has."""
    assert isinstance(rows[-1].metadata, SegmentMetadata)
    return rows[-1].metadata


def prompt_of(row: Any) -> str:
    return TOKENIZER.decode(row.prompt_ids)


@pytest.mark.feature("Verlog", "a fixed number of turns of each environment per step")
async def test_a_segment_has_the_turns_of_a_step_and_one_bootstrap_row(new_harness):
    harness = new_harness([LOOK, "ACTION: fly", LOOK])

    rows = await harness.play()

    assert len(rows) == 3 + 1
    assert segment(rows).failure_causes == ()
    assert turns(rows, "reward") == [0, -0.1, 0]
    assert turns(rows, "valid") == [True, False, True]
    assert [row.response_mask for row in rows] == [[1] * 12, [1] * 11, [1] * 12, [0]]


async def test_the_trained_tokens_are_the_sampled_tokens(new_harness):
    harness = new_harness([LOOK, WIN, LOOK])

    rows = await harness.play()

    for row, request, answer in zip(rows, harness.policy.requests, [LOOK, WIN, LOOK], strict=False):
        assert tuple(row.prompt_ids) == request.prompt_ids
        assert TOKENIZER.decode(row.response_ids) == answer
        assert row.response_logprobs == [LOG_PROB] * len(answer)


async def test_the_environment_reads_a_response_without_its_end(new_harness):
    harness = new_harness([LOOK + END, WIN + END, LOOK + END])

    rows = await harness.play()

    assert [TOKENIZER.decode(row.response_ids) for row in rows[:3]] == [LOOK + END, WIN + END, LOOK + END]
    assert [turn.response for turn in harness.logged()] == [LOOK, WIN, LOOK]
    assert turns(rows, "valid") == [True] * 3


async def test_rows_carry_the_checksum_of_their_sampled_tokens_and_their_times(new_harness):
    harness = new_harness([LOOK, WIN, LOOK])

    *rows, bootstrap = await harness.play()

    assert [row.metadata.sampled_checksum for row in rows] == [token_checksum(row.response_ids) for row in rows]
    assert bootstrap.metadata.seconds["tools"] > 0
    assert bootstrap.metadata.seconds["generation"] >= 0


async def test_a_turn_is_logged_with_its_environment_and_its_time(new_harness):
    harness = new_harness([LOOK, WIN, LOOK])

    rows = await harness.play()

    first, second, third = harness.logged()
    assert first.environment_name == third.environment_name != second.environment_name == ""
    assert first.seed == second.seed != third.seed
    assert 0 < first.asked_at < second.asked_at
    assert all(turn.seconds["tools"] > 0 for turn in (first, second, third))
    assert turns(rows, "episode_id") == ["t0-0", "t0-0", "t0-1"]
    assert turns(rows, "turn") == [0, 1, 0]


@pytest.mark.feature("Verlog", "episodes continue in the next step")
async def test_a_slot_continues_its_episode_in_the_next_segment(new_harness):
    harness = new_harness([LOOK] * 6)

    first = await harness.play(1)
    second = await harness.play(2)

    assert second[0].prompt_ids == first[-1].prompt_ids
    assert "step 3" in prompt_of(second[0])
    assert {turn.episode for turn in harness.logged()} == {"t0-0"}


@pytest.mark.feature("Verlog", "an ended episode is followed by a new one")
async def test_an_ended_episode_is_followed_by_a_new_one(new_harness):
    harness = new_harness([LOOK, WIN, LOOK])

    rows = await harness.play()

    first, second, third, bootstrap = map(prompt_of, rows)
    assert turns(rows, "done") == [False, True, False]
    assert turns(rows, "episode_length") == [0, 2, 0]
    assert turns(rows, "episode_reward")[1] == 1
    assert "step 1" in second
    assert "step 0" in third
    # The prompt has nothing of the previous episode, and the new episode differs.
    assert third.count("seed") == first.count("seed") == 1
    assert third != first
    assert third.split("step 0")[0] in bootstrap


async def test_a_turn_limit_ends_an_episode_without_success(new_harness):
    harness = new_harness([LOOK] * 3, max_turns=2)

    rows = await harness.play()

    assert turns(rows, "done") == [False, True, False]
    assert turns(rows, "truncated") == [False, True, False]
    assert [turn.stop_reason for turn in harness.logged()] == [None, "max_turns", None]


async def test_turns_of_an_episode_whose_environment_dies_are_never_learned_from(new_harness):
    harness = new_harness([WIN, LOOK, MISBEHAVE, LOOK, "ACTION: fly"], turns=3, on_step="exits")

    rows = await harness.play()

    responses = [TOKENIZER.decode(row.response_ids) for row in rows[:-1]]
    assert responses == [WIN, LOOK, "ACTION: fly"]
    # The second episode died after one turn: the third begins where its turns were.
    assert "step 0" in prompt_of(rows[1])
    assert prompt_of(rows[1]) != harness.prompts[1]


async def test_a_failure_is_counted_and_logged(new_harness):
    harness = new_harness([WIN, LOOK, MISBEHAVE, LOOK, LOOK], turns=3, on_step="exits")

    rows = await harness.play()

    assert segment(rows).failure_causes == ("environment",)
    (failed,) = [turn for turn in harness.logged() if turn.failed_cause]
    assert (failed.episode, failed.stop_reason, failed.failed_cause) == ("t0-1", "failed", "environment")
    assert "exited with code 3" in failed.observation
    assert failed.reward == 0


async def test_a_failed_episode_loses_only_its_turns_in_the_present_segment(new_harness):
    harness = new_harness([LOOK] * 3 + [MISBEHAVE] + [LOOK] * 3, on_step="exits")

    await harness.play(1)
    rows = await harness.play(2)

    assert len(rows) == 3 + 1
    assert "step 0" in prompt_of(rows[0])
    assert segment(rows).failure_causes == ("environment",)


async def test_an_empty_response_fails_the_episode_and_not_the_run(new_harness):
    harness = new_harness([LOOK, "", LOOK, LOOK, LOOK])

    rows = await harness.play()

    assert len(rows) == 3 + 1
    assert segment(rows).failure_causes == ("inference",)


async def test_an_environment_that_always_dies_ends_the_run(new_harness):
    harness = new_harness([MISBEHAVE] * MAX_FAILURES_IN_A_ROW, on_step="exits")

    with pytest.raises(RunFailedError, match=r"3 episodes in a row failed.*exited with code 3") as error:
        await harness.play()

    assert error.value.cause == "environment"


async def test_an_environment_that_cannot_begin_ends_the_run(new_harness):
    harness = new_harness([], on_reset="raises")

    with pytest.raises(RunFailedError, match="it hurts"):
        await harness.play()


async def test_failures_with_whole_episodes_between_them_do_not_end_the_run(new_harness):
    harness = new_harness(
        [MISBEHAVE, WIN] * (MAX_FAILURES_IN_A_ROW + 1), turns=MAX_FAILURES_IN_A_ROW + 1, on_step="exits"
    )

    rows = await harness.play()

    assert len(segment(rows).failure_causes) == MAX_FAILURES_IN_A_ROW + 1
    assert turns(rows, "done") == [1] * (MAX_FAILURES_IN_A_ROW + 1)


async def test_a_validation_episode_is_one_row_with_the_metrics_of_all_its_turns(new_harness):
    harness = new_harness([LOOK, "ACTION: fly", WIN])

    (row,) = await harness.play(4, slot=7, validate=True)

    found = row.episode_summary
    assert (found.episode_id, found.success, found.num_turns) == ("v7-0", True, 3)
    assert (TOKENIZER.decode(row.response_ids), row.metadata.done) == (WIN, 1)
    assert found.reward == pytest.approx(0.9)
    assert found.metrics["valid_action"] == pytest.approx(2 / 3)
    assert [(turn.episode, turn.turn, turn.step) for turn in harness.logged(validation=True)] == [
        ("v7-0", 0, 4),
        ("v7-0", 1, 4),
        ("v7-0", 2, 4),
    ]
    assert harness.logged() == []


class Stuck:
    """A slot whose environment cannot be closed."""

    async def close(self) -> None:
        raise EnvironmentFailedError("It does not end.")


async def test_an_environment_that_cannot_be_closed_is_no_error_at_the_end_of_a_run(new_harness):
    harness = new_harness([LOOK, LOOK, LOOK])
    await harness.play()
    harness.loop.slots[1] = Stuck()

    await harness.loop.close()


@pytest.mark.feature("Verlog", "validation on whole episodes")
async def test_validations_repeat_the_same_episodes_which_differ_between_slots(new_harness):
    harness = new_harness([WIN] * 4)

    for slot in (0, 1, 0, 1):
        await harness.play(slot=slot, validate=True)

    first, second, again, second_again = harness.prompts
    assert (first, second) == (again, second_again)
    assert first != second


@pytest.mark.feature("Verlog", "animations of episodes")
async def test_a_validation_renders_as_many_episodes_as_the_job_sets(new_harness):
    harness = new_harness([LOOK, WIN, LOOK, WIN], render_episodes=1)

    for slot in (0, 1):
        await harness.play(4, slot=slot, validate=True)

    (animation_file,) = harness.folder.episodes.iterdir()
    assert animation_file.name == "validation-000004-0.gif"
    with Image.open(animation_file) as animation:
        assert animation.n_frames == 1 + 2


async def test_a_validation_episode_whose_environment_dies_is_played_again(new_harness):
    harness = new_harness([LOOK, MISBEHAVE, LOOK, WIN], on_step="exits")

    (row,) = await harness.play(validate=True)

    assert harness.prompts[2:] == harness.prompts[:2]
    found = row.episode_summary
    assert (found.num_turns, found.metrics["failures"], found.reward) == (2, 1, 1)
    logged = [(turn.episode, turn.turn, turn.failed_cause) for turn in harness.logged(validation=True)]
    assert logged == [("v0-0", 0, None), ("v0-0", 1, "environment"), ("v0-0", 0, None), ("v0-0", 1, None)]


async def test_validation_does_not_affect_the_environments_of_training(new_harness):
    harness = new_harness([LOOK, LOOK, LOOK, WIN, LOOK, LOOK, LOOK])

    first = await harness.play(1)
    await harness.play(1, validate=True)
    second = await harness.play(2)

    assert second[0].prompt_ids == first[-1].prompt_ids


async def test_every_turn_has_a_different_sampling_seed_that_a_rerun_repeats(new_harness):
    def seeds(harness: TurnLoopHarness) -> list[int]:
        return [request.sampling_params["seed"] for request in harness.policy.requests]

    once, again = new_harness([LOOK] * 6), new_harness([LOOK] * 6)
    for harness in (once, again):
        await harness.play(1)
        await harness.play(2)

    assert seeds(once) == seeds(again)
    assert len(set(seeds(once))) == 6


@pytest.mark.feature("Verlog", "metrics of behaviour")
async def test_the_lengths_of_plans_and_backtracking_are_measured(new_harness):
    harness = new_harness(["THINK: look, then win, no wait\nACTION: look", LOOK, LOOK])

    rows = await harness.play()

    assert rows[0].metadata.plan_length > rows[1].metadata.plan_length
    assert rows[0].metadata.backtrack_length > rows[1].metadata.backtrack_length == 0


async def test_verl_gets_each_reward_on_the_last_token_of_its_own_turn(new_harness):
    harness = new_harness([LOOK, WIN, "ACTION: fly"])

    rows = [row.as_dict() for row in await harness.play()]

    assert [row["rm_scores"][-1].item() for row in rows] == pytest.approx([0, 1, -0.1, 0])
    assert all(not torch.any(row["rm_scores"][:-1]) for row in rows)
