import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from omegaconf import OmegaConf

from support.cancelled_calls import cancel_during_call
from support.http_tools import HttpTools
from turnmill.core.errors import (
    RunFailedError,
    StoreFullError,
    StoreUnavailableError,
    ToolCallConnectionError,
    ToolCallError,
    ToolCallPoisonError,
    ToolCallTimeoutError,
)
from turnmill.core.trajectory import EpisodeFailure, complete_turns
from turnmill.observability.run_folder import RunFolder
from turnmill.rollout.journal import StoreJournal, forget_newer_policies, forget_trained
from turnmill.testing.agent_loops import END, TOKENIZER, ToolLoopHarness, tool_job
from turnmill.testing.policies import Request, ScriptedPolicy
from turnmill.trajectories.client import deadline_in
from turnmill.trajectories.embedded import EmbeddedStore
from turnmill.trajectories.journal import TrajectoryJournal
from turnmill.trajectories.keys import Keys
from turnmill.trajectories.settings import StoreSettings

JOB = tool_job(maxTurns=3, toolCallMaxRetries=0)


class Crash(BaseException):
    """The end of the process: no error handler catches it."""


def script(request: Request) -> str:
    turns = request.prompt.count("[")
    return f"<py>{turns}</py>" if turns < 3 else f"answer:2{END}"


class CrashingAt:
    """A policy whose process ends when a turn is requested."""

    def __init__(self, turn: int) -> None:
        self.turn = turn

    def __call__(self, request: Request) -> str:
        if request.prompt.count("[") == self.turn:
            raise Crash
        return script(request)


class LosingAt:
    """A policy in whose response to a turn the store loses all that it has, and later attempts at the run begin."""

    def __init__(self, turn: int, store: EmbeddedStore, *, crashes_at: int = 9, later: dict[str, int] | None = None):
        self.turn = turn
        self._store = store
        self._crashes_at = crashes_at
        self._later = later or {}

    def __call__(self, request: Request) -> str:
        turn = request.prompt.count("[")
        if turn == self._crashes_at:
            raise Crash
        if turn == self.turn:
            with redis.Redis.from_url(self._store.url) as client:
                client.flushdb()
                for key, number in self._later.items():
                    client.set(key, number)
        return script(request)


@pytest.fixture(scope="module")
def store():
    with EmbeddedStore() as store:
        yield store


@pytest.fixture
async def server() -> AsyncIterator[HttpTools]:
    async with HttpTools(lambda call: f"[{call['current_step']}]") as tools:
        yield tools


@pytest.fixture
async def attempt(store, server, tmp_path) -> AsyncIterator[Callable[..., ToolLoopHarness]]:
    """Create an agent loop as in a new process of the run."""
    made: list[ToolLoopHarness] = []

    def begin(script: Any, run: str = "run", *, at: EmbeddedStore = store) -> ToolLoopHarness:
        run_dir = tmp_path / run
        journal = StoreJournal(TrajectoryJournal.from_url(at.url, RunFolder(run_dir).run_name()))
        made.append(ToolLoopHarness(run_dir, script, JOB, server.url, journal=journal))
        return made[-1]

    yield begin
    for process in made:
        await process.loop.close()


async def play_until_crash(process: ToolLoopHarness, *, step: int = 1) -> None:
    with pytest.raises(Crash):
        await process.play(step=step)


@pytest.mark.parametrize("turn", [1, 2, 3])
async def test_a_trajectory_resumes_from_its_last_turn_in_another_process(attempt, server, turn):
    expected = await attempt(script, "undisturbed").play()
    calls = [call["action"] for call in server.calls]
    server.calls.clear()

    await play_until_crash(attempt(CrashingAt(turn)))
    second = attempt(script)
    result = await second.play()

    assert result.rows == expected.rows
    assert (result.summary.stop_reason, result.detail, result.summary.num_turns) == ("completed", expected.detail, 4)
    assert len(second.policy.requests) == 4 - turn
    assert [call["action"] for call in server.calls] == calls
    assert len({call["trajectory"] for call in server.calls}) == 1
    assert result.summary.metrics["turns_carried_on"] == turn
    counted = ("num_tool_calls", "valid_action", "valid_traj", "per_action_length", "turn_1_action_logp")
    assert {name: result.summary.metrics[name] for name in counted} == {
        name: expected.summary.metrics[name] for name in counted
    }


async def test_a_call_in_progress_at_the_crash_is_repeated_unchanged(attempt, server):
    first = attempt(script)

    async def crash(call: Any) -> None:
        server.calls.append({"action": call.action, "trajectory": call.trajectory_id, **call.extra})
        raise Crash

    first.loop.tools.call = crash
    await play_until_crash(first)
    # A new request would have another response.
    second = attempt(lambda request: script(request).replace("<py>0", "<py>9"))
    result = await second.play()

    first_call, again, *_ = server.calls
    assert again == first_call
    assert again["action"] == "<py>0</py>"
    assert len(second.policy.requests) == 3
    assert "<py>9" not in "".join(second.prompts)
    assert result.summary.num_turns == 4


async def test_a_resumed_trajectory_names_the_version_that_its_last_call_made(attempt, server):
    server.versions = True
    await play_until_crash(attempt(CrashingAt(2)))

    await attempt(script).play()

    assert [call["after_version"] for call in server.calls] == ["", "1 turn-0", "2 turn-1"]


@pytest.mark.parametrize("turn", [0, 1, 2, 3])
async def test_a_trajectory_that_the_store_has_lost_goes_on_and_is_there_again(attempt, server, store, turn):
    """A store that comes back without its last second may have lost its beginning."""
    expected = await attempt(script, "undisturbed").play()
    server.calls.clear()

    result = await attempt(LosingAt(turn, store)).play()
    last = attempt(script)
    again = await last.play()

    assert result.rows == again.rows == expected.rows
    assert result.summary.stop_reason == "completed"
    assert last.policy.requests == []
    assert len({call["trajectory"] for call in server.calls}) == 1
    assert len(server.calls) == 3


async def test_a_trajectory_that_the_store_has_lost_is_resumed_under_its_own_id(attempt, server, store):
    await play_until_crash(attempt(LosingAt(1, store, crashes_at=2)))

    result = await attempt(script).play()

    assert result.summary.metrics["turns_carried_on"] == 2
    assert len({call["trajectory"] for call in server.calls}) == 1


@pytest.mark.parametrize(("latest", "fails"), [(1, False), (2, True)])
async def test_a_lost_trajectory_of_an_earlier_attempt_is_not_begun_again(store, server, tmp_path, latest, fails):
    run = RunFolder(tmp_path / "run").run_name()
    journal = StoreJournal(TrajectoryJournal.from_url(store.url, run, attempt=1))
    policy = LosingAt(1, store, later={Keys(run).attempt: latest})
    process = ToolLoopHarness(tmp_path / "run", policy, JOB, server.url, journal=journal)

    result = await process.play()
    await process.loop.close()

    assert isinstance(result, EpisodeFailure) == fails


async def test_an_ended_trajectory_is_not_played_again(attempt):
    expected = await attempt(script).play()
    second = attempt(script)

    result = await second.play()

    assert (result.rows, result.summary.stop_reason, result.detail) == (
        expected.rows,
        expected.summary.stop_reason,
        expected.detail,
    )
    assert second.policy.requests == []


class PolicyOfVersion(ScriptedPolicy):
    """A policy after so many steps."""

    def __init__(self, version: int, script: Any) -> None:
        super().__init__(TOKENIZER, script)
        self.version = version

    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        output = await super().generate(*args, **kwargs)
        output.extra_fields = {"min_global_steps": 0, "max_global_steps": self.version}
        return output


@pytest.mark.parametrize("validate", [False, True])
async def test_a_process_resumes_trajectories_of_all_steps(attempt, server, validate):
    """As one that replaces another, while rollout is several steps ahead."""
    for step in (1, 2):
        with pytest.raises(Crash):
            await attempt(CrashingAt(2)).play(step=step, validate=validate)
    second = attempt(script)

    results = [await second.play(step=step, validate=validate) for step in (1, 2)]

    assert [result.summary.metrics["turns_carried_on"] for result in results] == [2, 2]
    assert len(second.policy.requests) == 4
    assert len({(call["trajectory"], call["call_id"]) for call in server.calls}) == len(server.calls) == 6


@pytest.mark.parametrize(("begins_with", "carried_on"), [(3, 2), (2, 0)])
async def test_an_attempt_resumes_no_trajectory_of_policies_that_it_does_not_have(
    attempt, server, store, tmp_path, begins_with, carried_on
):
    first = attempt(script)
    first.loop.server_manager = PolicyOfVersion(3, CrashingAt(2))
    await play_until_crash(first, step=5)
    (interrupted,) = {call["trajectory"] for call in server.calls}
    config = OmegaConf.create({"turnmill": {"store_url": store.url, "run_dir": str(tmp_path / "run")}})

    await forget_newer_policies(config, begins_with)
    result = await attempt(script).play(step=5)

    assert result.summary.metrics["turns_carried_on"] == carried_on
    # Otherwise, tools must not use the state that they keep of the interrupted trajectory.
    assert (interrupted in {call["trajectory"] for call in server.calls[2:]}) == (carried_on > 0)


async def test_an_attempt_does_not_begin_without_its_store(tmp_path, monkeypatch):
    monkeypatch.setattr("turnmill.rollout.journal.START_SECONDS", 0.3)
    with EmbeddedStore() as gone:
        config = OmegaConf.create({"turnmill": {"store_url": gone.url, "run_dir": str(tmp_path / "run")}})

    with pytest.raises(RunFailedError, match="did not answer") as caught:
        await forget_newer_policies(config, 0)

    assert caught.value.cause == "store"


async def test_an_ended_trajectory_is_kept_until_its_step_has_been_trained(store, server, tmp_path):
    """A step may take longer than results of a finished trajectory are kept for late repeats of its calls."""
    settings = StoreSettings(finished_seconds=0.05)
    made = []
    for script_or_none in (script, "no response is generated again"):
        journal = StoreJournal(TrajectoryJournal.from_url(store.url, "long step", settings))
        made.append(ToolLoopHarness(tmp_path, script_or_none, JOB, server.url, journal=journal))
        await made[-1].play()
        await made[-1].loop.close()
        await asyncio.sleep(0.2)

    assert made[1].policy.requests == []


@pytest.mark.parametrize(
    ("checkpoint", "ahead", "kept"),
    [
        (1, 0, ["t2-0-0", "t4-0-0"]),
        (1, 1, ["t2-0-0", "t3-0-0", "t4-0-0"]),
        (3, 1, ["t4-0-0"]),
        (0, 0, ["t1-0-0", "t4-0-0"]),
    ],
)
async def test_trained_trajectories_are_deleted_unless_an_attempt_could_resume_them(store, checkpoint, ahead, kept):
    run = RunFolder(Path(f"/runs/{checkpoint}-{ahead}")).run_name()
    journal = TrajectoryJournal.from_url(store.url, run)
    for name in ("t1-0-0", "t2-0-0", "t3-0-0", "t4-0-0", "v0-0-0", "v3-0-0", "v4-0-0", "not an episode's"):
        await journal.open(name, deadline=deadline_in(5))
    config = OmegaConf.create({"turnmill": {"store_url": store.url, "run_dir": f"/runs/{checkpoint}-{ahead}"}})

    await forget_trained(config, step=3, checkpoint=checkpoint, ahead=ahead)

    assert await journal.names(deadline=deadline_in(5)) == ["not an episode's", *kept, "v4-0-0"]
    await journal.close()


async def test_a_trajectory_in_flight_can_be_read_from_the_store(attempt, store):
    first = attempt(CrashingAt(2))
    await play_until_crash(first)

    journal = TrajectoryJournal.from_url(store.url, first.folder.run_name())
    (trajectory,) = await journal.live(deadline=deadline_in(5))

    turns = complete_turns(trajectory.turns)
    assert [turn.observation for turn in turns] == ["[0]", "[1]"]
    assert turns[0].log_probs == (-0.5,) * len(turns[0].response_ids)
    await journal.close()


async def test_a_process_whose_trajectory_was_taken_over_stops_and_releases_nothing(attempt, server):
    class Slow(ScriptedPolicy):
        async def generate(self, *args: Any, **kwargs: Any) -> Any:
            if len(self.requests) == 1:
                await play_until_crash(attempt(CrashingAt(2)))
            return await super().generate(*args, **kwargs)

    process = attempt(script)
    process.loop.server_manager = Slow(TOKENIZER, script)

    failure = await process.play()

    assert isinstance(failure, EpisodeFailure)
    assert "is played elsewhere" in failure.message
    await process.loop.close()
    assert server.finished == []
    result = await attempt(script).play()
    assert result.summary.metrics["turns_carried_on"] == 2


async def test_a_cancelled_trajectory_keeps_the_state_of_its_tools_for_the_attempt_that_resumes_it(attempt, server):
    first = attempt(script)
    await cancel_during_call(first)
    assert server.finished == []

    second = attempt(script)
    result = await second.play()
    await second.loop.close()

    assert result.summary.metrics["turns_carried_on"] == 1
    assert server.finished == [server.calls[0]["trajectory"]]


@pytest.mark.parametrize("operation", ["finish", "delete"])
async def test_tools_keep_a_trajectory_until_the_store_has_recorded_its_end(attempt, server, monkeypatch, operation):
    async def fail(*_: Any, **__: Any) -> None:
        raise StoreUnavailableError("for a moment")

    async def fail_call(_: Any) -> None:
        raise ToolCallError("no answer")

    first = attempt(script)
    if operation == "delete":
        first.loop.tools.call = fail_call
    with monkeypatch.context() as patched:
        patched.setattr(TrajectoryJournal, operation, fail)
        await first.play()
    await first.loop.close()
    assert server.finished == []


@pytest.fixture
def failing_append(monkeypatch):
    """Let the first write of a trajectory's third record fail with an error."""

    def begin(error: Exception) -> None:
        append, errors = TrajectoryJournal.append, [error]

        async def fail(self: TrajectoryJournal, trajectory: Any, *args: Any, **kwargs: Any) -> Any:
            if errors and len(trajectory.turns) > 1:
                raise errors.pop()
            return await append(self, trajectory, *args, **kwargs)

        monkeypatch.setattr(TrajectoryJournal, "append", fail)

    return begin


async def test_a_turn_that_the_store_could_not_take_goes_with_the_next(attempt, server, failing_append):
    first = attempt(CrashingAt(2))
    failing_append(StoreUnavailableError("for a moment"))
    await play_until_crash(first)
    assert first.loop.journal.num_failed_writes == 1

    result = await attempt(script).play()

    assert result.summary.metrics["turns_carried_on"] == 2
    assert len({call["trajectory"] for call in server.calls}) == 1


async def test_a_trajectory_with_a_missing_turn_in_the_journal_begins_again(attempt, server, failing_append):
    first = attempt(script)
    failing_append(StoreFullError("for a moment"))
    await first.play()
    assert first.loop.journal.num_failed_writes == 1
    (before,) = {call["trajectory"] for call in server.calls}
    server.calls.clear()

    result = await attempt(script).play()

    assert result.summary.metrics["turns_carried_on"] == 0
    assert before not in {call["trajectory"] for call in server.calls}


@pytest.mark.parametrize(
    ("error", "carried_on"),
    [
        (ToolCallConnectionError("away"), 2),
        (ToolCallTimeoutError("away"), 2),
        (ToolCallPoisonError("it killed its servers"), 0),
    ],
)
async def test_what_failed_as_a_server_was_away_goes_on_in_the_next_attempt(attempt, server, error, carried_on):
    first = attempt(script)
    call = first.loop.tools.call

    async def fail(request: Any) -> Any:
        if request.extra["current_step"] == 1:
            raise error
        return await call(request)

    first.loop.tools.call = fail
    failure = await first.play()
    assert isinstance(failure, EpisodeFailure)
    await first.loop.close()
    assert bool(server.finished) == (not carried_on)

    result = await attempt(script).play()

    assert result.summary.metrics["turns_carried_on"] == carried_on
    assert len({call["trajectory"] for call in server.calls}) == (1 if carried_on else 2)


async def test_an_unreachable_store_loses_the_journal_but_not_the_trajectory(attempt, monkeypatch):
    monkeypatch.setattr("turnmill.rollout.journal.STORE_SECONDS", 0.3)
    with EmbeddedStore() as gone:
        process = attempt(script, at=gone)

    result = await process.play()

    assert result.summary.stop_reason == "completed"
    assert process.loop.journal.num_failed_writes > 0
