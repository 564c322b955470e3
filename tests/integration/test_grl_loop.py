"""Episodes of GRL's agents in separate processes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from support.agents import counter_agent, response_text
from support.grl_jobs import grl_job
from turnmill.core.errors import SettingsError
from turnmill.core.trajectory import EpisodeFailure
from turnmill.environments.base import VALIDATION_SEEDS
from turnmill.rollout.grl.lockstep import Lockstep
from turnmill.rollout.grl.rows import verl_rows
from turnmill.rollout.journal import StoreJournal
from turnmill.rollout.token_integrity import count_unsampled_tokens
from turnmill.testing.agent_loops import END, TOKENIZER, GrlLoopHarness
from turnmill.testing.policies import LOG_PROB
from turnmill.trajectories.embedded import EmbeddedStore
from turnmill.trajectories.journal import TrajectoryJournal

ONE, TWO, THREE = response_text("1") + END, response_text("2") + END, response_text("3") + END


@pytest.fixture
async def new_harness(tmp_path) -> AsyncIterator[Callable[..., GrlLoopHarness]]:
    made: list[GrlLoopHarness] = []

    def make(script: Any, *agents: dict[str, Any], journal: Any = None, **agent: Any) -> GrlLoopHarness:
        made.append(GrlLoopHarness(tmp_path, script, grl_job(*agents, **agent), journal=journal))
        return made[-1]

    yield make
    for each in made:
        await each.loop.close()


def full_text(row: Any) -> str:
    return TOKENIZER.decode([*row.prompt_ids, *row.response_ids])


def trained_text(row: Any) -> str:
    return TOKENIZER.decode([t for t, mask in zip(row.response_ids, row.response_mask, strict=True) if mask])


def num_unsampled_tokens(episode: Any) -> int:
    rows = ((row.response_ids, row.response_mask) for row in verl_rows(episode))
    return count_unsampled_tokens(rows, episode.summary().sampled_tokens)


async def test_an_episode_is_one_conversation_in_one_row(new_harness):
    harness = new_harness([ONE, THREE])

    episode = await harness.play()

    (row,) = verl_rows(episode)
    assert TOKENIZER.decode(row.prompt_ids).startswith("<sys>You count." + END)
    assert full_text(row).count("Turn 1:") == full_text(row).count("Turn 2:") == 1
    assert "Reward: \n1\n Turn 2:\nState:\nat 1" in full_text(row)
    assert (episode.stop_reason, episode.num_turns, episode.reward) == ("completed", 2, 4.0)


@pytest.mark.feature("GRL", "agents that are plain classes")
@pytest.mark.parametrize("reformat", [False, True])
async def test_a_plain_class_plays_in_a_process_of_its_own(new_harness, reformat):
    settings = {"maxTurns": 4, "useThinkAnswerToken": False}
    plain = {"name": "plain", "agentType": "support.agents:DocumentedAgent", "agentConfig": settings}
    harness = new_harness([f"next{END}", f"no{END}"] * 2, plain, reformatResponses=reformat)

    episode = await harness.play()

    # Its chat has the response in other words, which are read only if the job says so.
    assert ("I say next" in harness.prompts[1]) is reformat
    assert (episode.num_turns, episode.reward) == (4, 2 - 2 * 0.5)
    assert episode.summary().agent_metrics["plain/number"] == 2


async def test_every_prompt_ends_with_the_opening_think_tag(new_harness):
    harness = new_harness([ONE, THREE])

    await harness.play()

    assert [prompt[-12:] for prompt in harness.prompts] == ["<ast><think>"] * 2


@pytest.mark.feature("GRL", "mask")
async def test_the_tokens_of_a_row_are_those_that_the_policy_read_and_sampled(new_harness):
    harness = new_harness([ONE, "cut off without an end", THREE])

    episode = await harness.play()

    (row,) = verl_rows(episode)
    whole = (*row.prompt_ids, *row.response_ids)
    assert all(whole[: len(request.prompt_ids)] == request.prompt_ids for request in harness.policy.requests)
    assert trained_text(row) == ONE + "cut off without an end" + THREE
    assert num_unsampled_tokens(episode) == 0
    # A turn that was cut off at its token limit is closed before the next one begins.
    assert f"without an end{END}" in full_text(row)
    logged = [p for p, mask in zip(row.response_logprobs, row.response_mask, strict=True) if mask]
    assert logged == [LOG_PROB] * len(logged)


@pytest.mark.feature("GRL", "mask")
async def test_the_loss_mask_of_grl_covers_everything_after_the_system_message(new_harness):
    harness = new_harness([ONE, THREE], lossMask="after_system")

    episode = await harness.play()

    (row,) = verl_rows(episode)
    assert TOKENIZER.decode(row.prompt_ids) == f"<sys>You count.{END}"
    assert trained_text(row).startswith("<usr>Count to 3.")
    assert all(row.response_mask)


async def test_scores_are_placed_on_the_last_tokens_of_turns(new_harness):
    harness = new_harness([response_text("1", "fly") + END, THREE])

    episode = await harness.play()

    (row,) = verl_rows(episode)
    summary = row.episode_summary
    assert (summary.turn_rewards, summary.turn_penalties) == ((1.0, 3.0), (-0.1, 0.0))
    ends = [TOKENIZER.decode(row.response_ids[: token + 1]) for _, token in summary.response_ends]
    assert [end.endswith(f"</answer>{END}") for end in ends] == [True, True]
    assert summary.response_ends[-1] == (0, len(row.response_ids) - 1)
    texts = [
        TOKENIZER.decode(row.response_ids[place.end + 1 - place.num_tokens : place.end + 1])
        for place in summary.responses
    ]
    assert texts == [response_text("1", "fly") + END, THREE]


async def test_the_summary_has_the_group_the_tag_and_the_metrics_of_the_agent(new_harness):
    harness = new_harness([THREE])

    summary = (await harness.play(group=1)).summary()

    assert (summary.group, summary.tag) == (1, "counter")
    assert summary.agent_metrics["counter/success"] == 1.0
    assert (summary.success, summary.reward, summary.row_rewards) == (True, 3.0, True)


async def test_responses_may_be_reformatted_as_in_grl(new_harness):
    harness = new_harness(["  hm </think>\n<answer> 1|| 2 || 3</answer> and more", THREE], reformatResponses=True)

    episode = await harness.play()

    (row,) = verl_rows(episode)
    assert f"<think>hm</think><answer>1 || 2</answer>{END}" in full_text(row)
    assert "and more" not in full_text(row)


async def test_the_generated_length_of_a_reformatted_response_is_that_of_what_the_policy_generated(new_harness):
    long = "  hm </think>\n<answer> 1|| 2 || 3</answer> and more"
    harness = new_harness([long, THREE], reformatResponses=True)

    summary = (await harness.play()).summary()

    assert summary.generated_lengths[0] == len(TOKENIZER.encode(long)) > summary.response_lengths[0]


@pytest.mark.feature("GRL", "a seed for each group")
async def test_a_group_shares_a_seed_that_differs_between_groups_and_steps(new_harness):
    harness = new_harness(lambda request: THREE)

    episodes = [await harness.play(group=group, member=member, step=step)
                for group, member, step in [(0, 0, 1), (0, 1, 1), (1, 0, 1), (0, 0, 2)]]  # fmt: skip

    states = [episode.views[0].state for episode in episodes]
    assert states[0] == states[1]
    assert len(set(states)) == 3


@pytest.mark.feature("GRL", "validations of the same states")
@pytest.mark.feature("GRL", "validations played several times")
async def test_validations_repeat_their_states_and_training_does_not(new_harness):
    harness = new_harness(lambda request: THREE, validationAgentGroupNum=[2], validationSteps=2, validationSeed=123)

    episodes = [await harness.play(group=group, step=step, validate=True) for step in (1, 9) for group in range(4)]

    states = [episode.views[0].state for episode in episodes]
    training = await harness.play()
    assert [episode.seed for episode in episodes] == [123, 124, 123, 124] * 2
    assert states == states[:2] * 4
    assert len({*states, training.views[0].state}) == 3
    assert training.seed >= VALIDATION_SEEDS


async def test_an_episode_ends_at_its_limits_of_turns_and_actions(new_harness):
    harness = new_harness(lambda request: ONE)
    more = new_harness(lambda request: response_text("1", "1") + END)

    assert ((await harness.play()).num_turns, (await harness.play()).stop_reason) == (3, "max_turns")
    assert (await more.play()).num_turns == 2


async def test_a_conversation_that_exceeds_the_context_continues_in_another_row(new_harness):
    harness = new_harness([ONE, ONE, THREE], maxPromptLength=300)

    episode = await harness.play()

    rows = verl_rows(episode)
    assert len(rows) == 3
    assert all(len(request.prompt_ids) <= 300 for request in harness.policy.requests)
    assert [row for row, _ in episode.summary().response_ends] == [0, 1, 2]
    assert "".join(map(trained_text, rows)) == ONE + ONE + THREE
    assert num_unsampled_tokens(episode) == 0


async def test_a_conversation_that_exceeds_the_context_may_end_the_episode(new_harness):
    harness = new_harness([ONE, ONE, THREE], maxPromptLength=350, truncation="error")

    episode = await harness.play()

    assert (episode.stop_reason, episode.num_turns) == ("max_tokens", 1)


async def test_a_first_prompt_that_is_too_long_is_a_settings_error(new_harness):
    harness = new_harness([ONE], maxPromptLength=16, truncation="error")

    with pytest.raises(SettingsError, match=r"spec\.agent\.maxPromptLength"):
        await harness.play()


async def test_the_error_of_a_first_prompt_that_is_too_long_names_its_full_length(new_harness):
    fits, too_long = new_harness([THREE]), new_harness([THREE], maxPromptLength=100, truncation="error")
    length = len((await fits.play()).turns[0].prompt_ids)

    with pytest.raises(SettingsError, match=f"has {length} tokens"):
        await too_long.play()


async def test_a_truncated_first_prompt_is_the_prompt_of_its_row_with_any_loss_mask(new_harness):
    harness = new_harness([THREE], maxPromptLength=100, lossMask="after_system")

    episode = await harness.play()

    (row,) = verl_rows(episode)
    assert row.prompt_ids
    assert [*row.prompt_ids, *row.response_ids] == [*harness.policy.requests[0].prompt_ids, *TOKENIZER.encode(THREE)]
    assert len(harness.policy.requests[0].prompt_ids) == 100
    assert [place for place, _ in episode.summary().response_ends] == [0]


@pytest.mark.parametrize("mask", ["assistant", "after_system"])
async def test_a_later_prompt_that_is_too_long_by_itself_ends_the_episode(new_harness, mask):
    forgetful = counter_agent() | {"agentType": "support.agents:LastTurnCounter"}
    first = new_harness([THREE], forgetful)
    limit = len((await first.play()).turns[0].prompt_ids)
    harness = new_harness(
        [response_text("1" * 60) + END, THREE], forgetful, maxPromptLength=limit, truncation="error", lossMask=mask
    )

    episode = await harness.play()

    assert (episode.stop_reason, episode.num_turns, len(verl_rows(episode))) == ("max_tokens", 1, 1)


async def test_an_agent_without_history_has_a_row_for_every_turn(new_harness):
    harness = new_harness([ONE, THREE], counter_agent() | {"agentType": "support.agents:LastTurnCounter"})

    episode = await harness.play()

    rows = verl_rows(episode)
    assert [TOKENIZER.decode(row.prompt_ids).count("Turn") for row in rows] == [1, 1]
    assert [trained_text(row) for row in rows] == [ONE, THREE]


@pytest.mark.parametrize("how", ["exit", "raise"])
async def test_an_agent_that_raises_fails_only_its_own_episode(new_harness, how: str):
    harness = new_harness(lambda request: response_text(how) + END if "seed" in request.prompt else ONE)

    failure = await harness.play()

    assert isinstance(failure, EpisodeFailure)
    assert failure.cause == "environment"
    (record,) = harness.logged()
    assert (record.stop_reason, record.environment_name) == ("failed", "counter")


@pytest.mark.feature("GRL", "mask")
@pytest.mark.parametrize("loss_mask", ["assistant", "after_system"])
async def test_the_log_says_which_tokens_of_a_turn_are_trained_on(new_harness, loss_mask):
    harness = new_harness([ONE, THREE], lossMask=loss_mask)

    await harness.play()

    first, last = harness.logged()
    num_observed = len(first.observation_ids)
    assert num_observed > 0
    # Without a mask, it is the response alone.
    everything = [(len(first.response_ids) + num_observed,), (len(last.response_ids),)]
    assert [first.mask, last.mask] == (everything if loss_mask == "after_system" else [(), ()])


async def test_the_turns_of_an_episode_are_logged(new_harness):
    harness = new_harness([response_text("1", "fly") + END, THREE])

    episode = await harness.play()

    first, last = harness.logged()
    assert (first.action, first.valid, first.reward, first.observation) == ("1", False, 0.9, "at 1")
    assert (last.stop_reason, last.done, last.seed, last.environment_name) == (
        "completed",
        True,
        episode.seed,
        "counter",
    )
    assert last.prompt.startswith("Reward: \n1")
    assert TOKENIZER.decode(first.observation_ids).startswith("\n<usr>Reward: \n1")
    assert TOKENIZER.decode(first.observation_ids).endswith("<ast><think>")
    assert last.observation_ids == ()


@pytest.mark.feature("GRL", "synchronous turns")
async def test_synchronous_turns_wait_for_each_other(new_harness):
    turns: list[str] = []

    def script(request: Any) -> str:
        turns.append("2" if "Turn 2:" in request.prompt else "1")
        return ONE if "Turn 2:" not in request.prompt else THREE

    harness = new_harness(script)
    lockstep = Lockstep(6)

    async def member(number: int) -> None:
        with lockstep.taking_part():
            await asyncio.sleep(0.02 * number)
            await harness.play(member=number, lockstep=lockstep)

    await asyncio.gather(*map(member, range(6)))

    assert turns == ["1"] * 6 + ["2"] * 6


@pytest.mark.feature("GRL", "synchronous turns")
async def test_finished_episodes_are_not_awaited(new_harness):
    turns: list[int] = []

    def script(request: Any) -> str:
        turns.append(request.prompt.count("State:"))
        return ONE

    lengths = (3, 1, 2)
    agents = [counter_agent(maxTurns=length) | {"name": f"counter{length}"} for length in lengths]
    harness = new_harness(script, *agents, agentGroupNum=[1] * 3, agentGroupSize=[1] * 3)
    lockstep = Lockstep(3)

    async def member(group: int) -> Any:
        with lockstep.taking_part():
            return await harness.play(group=group, lockstep=lockstep)

    async with asyncio.timeout(60):
        episodes = await asyncio.gather(*map(member, range(3)))

    assert tuple(episode.num_turns for episode in episodes) == lengths
    assert turns == [1, 1, 1, 2, 2, 3]


@pytest.mark.feature("GRL", "concurrent prompts and environment steps")
@pytest.mark.parametrize("limits", [{"numPromptThreads": 1, "numEnvThreads": 1}, {"numPromptThreads": 2}])
async def test_serial_and_concurrent_rollouts_have_the_same_results(new_harness, limits: dict[str, int]):
    def script(request: Any) -> str:
        return THREE if "Turn 3:" in request.prompt else ONE

    played = []
    for settings in ({}, limits):
        harness = new_harness(script, **settings)
        played.append(await asyncio.gather(*(harness.play(group=g, member=m) for g in range(2) for m in range(2))))

    serial, parallel = ([[row.response_ids for row in verl_rows(e)] for e in episodes] for episodes in played)
    assert serial == parallel


class ConcurrencyCounter:
    """Counts the most calls that ran at once."""

    def __init__(self) -> None:
        self.peak = self._now = 0

    def counting(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return the call, counted while it runs."""

        async def counted(*args: Any, **kwargs: Any) -> Any:
            self._now += 1
            self.peak = max(self.peak, self._now)
            try:
                return await call(*args, **kwargs)
            finally:
                self._now -= 1

        return counted


@pytest.mark.feature("GRL", "concurrent prompts and environment steps")
@pytest.mark.parametrize(("prompts", "environments"), [(1, 1), (2, 3), (3, 2), (0, 0)])
async def test_the_job_limits_concurrent_generations_and_environment_steps(
    new_harness, monkeypatch, prompts: int, environments: int
):
    harness = new_harness(lambda request: THREE if "Turn 2:" in request.prompt else ONE,
                          numPromptThreads=prompts, numEnvThreads=environments)  # fmt: skip
    counters = {name: ConcurrencyCounter() for name in ("tokenize_prompt", "ct_merge_context_msg", "reset", "act")}
    for name in ("tokenize_prompt", "ct_merge_context_msg"):
        monkeypatch.setattr(harness.loop, name, counters[name].counting(getattr(harness.loop, name)))
    make, answer = harness.loop.environment_of, harness.policy.generate
    turns, answers = Lockstep(4), Lockstep(4)

    def counted_environment_of(agent: Any) -> Any:
        process = make(agent)
        for name in ("reset", "act"):
            monkeypatch.setattr(process, name, counters[name].counting(getattr(process, name)))
        return process

    async def all_at_once(*args: Any, **kwargs: Any) -> Any:
        await answers.wait()
        return await answer(*args, **kwargs)

    monkeypatch.setattr(harness.loop, "environment_of", counted_environment_of)
    monkeypatch.setattr(harness.policy, "generate", all_at_once)
    async with asyncio.timeout(60):
        await asyncio.gather(*(harness.play(member=member, lockstep=turns) for member in range(4)))

    peaks = {name: counter.peak for name, counter in counters.items()}
    assert peaks == {
        "tokenize_prompt": prompts or 4,
        "ct_merge_context_msg": prompts or 4,
        "reset": environments or 4,
        "act": environments or 4,
    }


class Crash(BaseException):
    """The end of the process: no error handler catches it."""


@pytest.mark.parametrize("turn", [1, 2, 3])
async def test_an_episode_resumes_from_its_last_turn_in_another_process(new_harness, turn: int):
    def script(request: Any) -> str:
        return {1: ONE, 2: response_text("1", "fly") + END, 3: TWO}[request.prompt.count("State:")]

    def crashes(request: Any) -> str:
        if request.prompt.count("State:") == turn:
            raise Crash
        return script(request)

    expected = await new_harness(script).play(member=1)
    with EmbeddedStore() as store:
        with pytest.raises(Crash):
            await new_harness(crashes, journal=StoreJournal(TrajectoryJournal.from_url(store.url, "run"))).play()
        second = new_harness(script, journal=StoreJournal(TrajectoryJournal.from_url(store.url, "run")))
        episode = await second.play()
        await second.loop.close()

    assert len(second.policy.requests) == 3 - (turn - 1)
    assert episode.conversation.rows == expected.conversation.rows
    names_and_times = {"episode_id": "", "seconds": {}}
    assert replace(episode.summary(), **names_and_times) == replace(expected.summary(), **names_and_times)
    assert (episode.stop_reason, episode.num_turns) == ("max_turns", 3)
