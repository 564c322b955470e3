"""What an episode of verl's loops leaves in a journal, and what it reads there after a restart."""

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from support.gateway import bpe_tokenizer
from turnmill.core.errors import InferenceError
from turnmill.core.trajectory import TrajectoryOutcome, Turn, complete_turns
from turnmill.rollout.episode_id import EpisodeId
from turnmill.rollout.journal import EpisodeInFlight, ResumedEpisode
from turnmill.rollout.multi_turn.episode import MultiTurnEpisode
from turnmill.rollout.multi_turn.tool_results import ToolResult
from turnmill.rollout.multi_turn.verl_classes import ToolResponse
from turnmill.rollout.verl_classes import TokenOutput
from turnmill.tasks import Task

DECODE = bpe_tokenizer().decode
PROMPT = [1, 2, 3]


class MemoryJournal:
    """A journal of one episode, in memory."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []

    async def open(self, episode: EpisodeInFlight) -> ResumedEpisode:
        """Begin or resume the episode."""
        return ResumedEpisode("first" if self.turns else episode.trajectory_id, tuple(self.turns))

    async def append(self, episode: EpisodeInFlight, turn: Turn) -> None:
        """Record a turn."""
        self.turns.append(turn)

    async def finish(self, episode: EpisodeInFlight, outcome: TrajectoryOutcome) -> None:
        """Do nothing."""

    def is_resumable(self, episode: EpisodeInFlight) -> bool:
        """Return True, as with a store."""
        return True

    async def close(self) -> None:
        """Do nothing."""


async def opened(journal: MemoryJournal) -> MultiTurnEpisode:
    name = EpisodeId(1, 0, 0, validate=False)
    played = MultiTurnEpisode(name, Task(0, []), run_name="run", journal=journal, decode=DECODE)
    await played.open()
    return played


async def respond(played: MultiTurnEpisode, prompt_ids: Sequence[int], ids: list[int], stop: str = "completed") -> None:
    versions = {"min_global_steps": 4, "max_global_steps": 5}
    output = TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), stop_reason=stop, extra_fields=versions)
    await played.record_response(prompt_ids, output, asked_at=1.0)


def found(text: str) -> ToolResult:
    return ToolResult(ToolResponse(text=text), 0.25)


async def begin() -> tuple[MemoryJournal, list[int]]:
    """Play a turn with two calls, and the response after it; return the journal and the prompt of that response."""
    journal = MemoryJournal()
    played = await opened(journal)
    await respond(played, PROMPT, [10, 11])
    calls = [played.begin_tool_call(tool) for tool in ("search", "weigh")]
    await played.record_tool_result(calls[1], found("3 lb"))
    await played.record_tool_result(calls[0], found("a page"))
    prompt = [*PROMPT, 10, 11, 20]
    await respond(played, prompt, [12], "length")
    return journal, prompt


async def test_whoever_reads_the_journal_finds_each_turn_once_with_all_results():
    journal, _ = await begin()

    turns = complete_turns(journal.turns)

    assert [turn.metrics["number"] for turn in turns] == [0, 1]
    assert [turn.unanswered for turn in turns] == [False, True]
    assert all(text in turns[0].observation for text in ("a page", "3 lb"))


async def test_an_episode_that_is_played_again_has_its_responses_and_results():
    journal, prompt = await begin()
    again = await opened(journal)

    first = again.replay_response(PROMPT)
    calls = [again.begin_tool_call(tool) for tool in ("search", "weigh", "search")]
    last = again.replay_response(prompt)

    assert again.trajectory_id == "first"
    assert first is not None
    assert (first.token_ids, first.log_probs, first.stop_reason) == ([10, 11], [-0.5, -0.5], "completed")
    assert [call.result for call in calls] == [found("a page"), found("3 lb"), None]
    assert last is not None
    assert (last.token_ids, last.stop_reason) == ([12], "length")
    assert again.policy_versions == (4, 5)
    assert again.metrics.read()["turns_carried_on"] == 2
    assert again.replay_response([*prompt, 12]) is None


async def test_after_another_prompt_nothing_of_the_journal_is_replayed():
    journal, prompt = await begin()
    again = await opened(journal)

    assert again.replay_response([1, 2, 4]) is None
    await respond(again, PROMPT, [10, 11])
    assert again.begin_tool_call("search").result is None
    assert again.replay_response(prompt) is None


async def test_an_episode_ends_with_its_first_failure_unless_the_run_ends():
    played = await opened(MemoryJournal())
    played.raise_if_failed()
    played.fail(InferenceError("first"))
    played.fail(InferenceError("second"))

    with pytest.raises(InferenceError, match="first"):
        played.raise_if_failed()
    played.run_error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        played.raise_if_failed()


async def test_a_turn_has_the_seconds_of_its_response_and_of_its_calls(monkeypatch: pytest.MonkeyPatch):
    played = await opened(MemoryJournal())
    for now in (3.5, 0.5):
        monkeypatch.setattr("turnmill.rollout.multi_turn.episode.time", SimpleNamespace(time=lambda now=now: now))
        await respond(played, PROMPT, [10])
    for seconds in (0.25, 0.5):
        played.begin_tool_call("search").seconds = seconds

    assert [played.turn(number).seconds for number in (0, 1)] == [
        {"generation": 2.5, "tools": 0},
        {"generation": 0.0, "tools": 0.75},
    ]


async def test_the_text_of_tokens_is_that_of_a_response_only_if_they_are_its_own():
    played = await opened(MemoryJournal())
    await respond(played, PROMPT, [80, 81])

    assert played.text_of(played.generations[0].output.token_ids) == DECODE([80, 81])
    assert played.text_of([90]) == DECODE([90])


async def test_a_call_before_the_first_response_has_a_result_of_its_own():
    journal = MemoryJournal()
    played = await opened(journal)
    call = played.begin_tool_call("search")
    await played.record_tool_result(call, found("a page"))

    assert call.result == found("a page")
    assert journal.turns == []
