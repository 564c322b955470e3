from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turnmill.core.trajectory import EpisodeFailure, EpisodeSummary
from turnmill.jobs import AgentTrainingJob
from turnmill.rollout.token_integrity import pack_tokens
from turnmill.rollout.verlog.episode_loop import EpisodeLoop
from turnmill.testing.agent_loops import SAMPLING, AgentLoopHarness, job_of

MISBEHAVE, LOOK, WIN = "ACTION: misbehave", "ACTION: look", "ACTION: win"


class EpisodeLoopHarness(AgentLoopHarness):
    """A harness for loops that play whole episodes."""

    def __init__(self, run_dir: Path, script: Any, job: AgentTrainingJob) -> None:
        super().__init__(EpisodeLoop, run_dir, script, job)

    async def play(self, *, task: int = 0, sample: int = 0, step: int = 1, validate: bool = False) -> Any:
        """Play one episode; return its rows or an EpisodeFailure."""
        return await self.loop.run(SAMPLING, index=task, session_id=sample, global_steps=step, validate=validate)


@pytest.fixture
def new_harness(tmp_path) -> Callable[..., EpisodeLoopHarness]:
    def make(script: Any, *, max_turns: int = 20, **options: str) -> EpisodeLoopHarness:
        job = job_of(
            {"maxTurns": max_turns, "prompt": "compact", "maxResponseTokens": 32, "groupSize": 4},
            {"name": "support.environments:Hostile", "count": 4, "options": options},
            algorithm={"type": "gigpo"},
            tasksPerStep=2,
        )
        return EpisodeLoopHarness(tmp_path, script, job)

    return make


def summary(rows: list[Any]) -> EpisodeSummary:
    return rows[-1].episode_summary


async def test_an_episode_is_played_to_its_end_with_a_row_for_each_turn(new_harness):
    harness = new_harness([LOOK, "ACTION: fly", WIN])

    rows = await harness.play(task=1, sample=2, step=3)

    assert [row.metadata.reward for row in rows] == [0, -0.1, 1.0]
    assert [float(row.as_dict()["rm_scores"].sum()) for row in rows] == pytest.approx([0, -0.1, 1.0])
    assert summary(rows).episode_id == harness.logged()[0].episode == "t3-1-2"
    assert summary(rows).sampled_tokens == b"".join(pack_tokens(row.response_ids) for row in rows)
    assert (summary(rows).reward, summary(rows).success, summary(rows).stop_reason) == (0.9, True, "completed")
    assert summary(rows).metrics["valid_action"] == pytest.approx(2 / 3)
    assert [row.episode_summary for row in rows[:-1]] == [None] * (len(rows) - 1)


async def test_an_episode_ends_at_its_turn_limit(new_harness):
    rows = await new_harness([LOOK] * 3, max_turns=2).play()

    assert len(rows) == 2
    assert (summary(rows).stop_reason, summary(rows).success) == ("max_turns", False)


async def test_the_episodes_of_a_task_share_the_initial_state_and_differ_in_their_sampling_seeds(new_harness):
    harness = new_harness([WIN] * 4)

    rows = [await harness.play(task=task, sample=sample) for task, sample in ((0, 0), (0, 1), (1, 0), (0, 0))]

    first, second, other, again = (summary(each).row_states for each in rows)
    assert first == second == again != other
    seeds = [request.sampling_params["seed"] for request in harness.policy.requests]
    assert seeds[0] == seeds[3]
    assert len(set(seeds)) == 3


async def test_the_summary_has_the_state_before_each_turn(new_harness):
    # Every `look` is counted and so changes the state.
    rows = await new_harness([LOOK, LOOK, WIN]).play()

    assert len(set(summary(rows).row_states)) == 3


async def test_an_episode_whose_environment_fails_has_no_rows(new_harness):
    harness = new_harness([LOOK, MISBEHAVE], on_step="raises")

    failure = await harness.play(task=1)

    assert isinstance(failure, EpisodeFailure)
    assert (failure.episode_id, failure.cause, failure.num_turns) == ("t1-1-0", "environment", 1)
    assert [turn.stop_reason for turn in harness.logged()] == [None, "failed"]


async def test_an_episode_of_a_validation_is_one_row(new_harness):
    harness = new_harness([LOOK, WIN])

    (row,) = await harness.play(validate=True)

    assert (summary([row]).reward, summary([row]).success, summary([row]).num_turns) == (1.0, True, 2)
    assert (summary([row]).metrics["valid_action"], summary([row]).metrics["failures"]) == (1.0, 0)
    assert len(harness.logged(validation=True)) == 2
