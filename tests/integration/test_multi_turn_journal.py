"""verl's multi-turn rollout, resumed from the journal after its process died."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.verl_tools import CAMERA_FILE, SCALES_FILE, Camera, Scales
from support.vision import tiny_vision_model
from turnmill.rollout.journal import StoreJournal
from turnmill.testing.agent_loops import END
from turnmill.testing.conversations import ConversationHarness, conversation_job, summary_of
from turnmill.testing.policies import Request
from turnmill.trajectories.embedded import EmbeddedStore
from turnmill.trajectories.journal import TrajectoryJournal

WEIGHTS = (3, 4)
Attempt = Callable[..., ConversationHarness]


class Crash(BaseException):
    """The end of the process: no error handler catches it."""


def script(request: Request) -> str:
    turns = request.prompt.count("</tool_response>")
    if turns == len(WEIGHTS):
        return f"It is done{END}"
    arguments = {"name": "weigh", "arguments": {"weight": WEIGHTS[turns]}}
    return f"<tool_call>{json.dumps(arguments)}</tool_call>{END}"


def crashing_at(turn: int) -> Callable[[Request], str]:
    def answer(request: Request) -> str:
        if request.prompt.count("</tool_response>") == turn:
            raise Crash
        return script(request)

    return answer


@pytest.fixture(scope="module")
def store():
    with EmbeddedStore() as store:
        yield store


@pytest.fixture
def attempt(store: EmbeddedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    """Create a worker as in a new process of the run."""
    monkeypatch.setattr(Scales, "calls", [])
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"prompt": "Weigh it."}))

    def begin(script: Any, tools: str = SCALES_FILE, model: Any = None, **agent: Any) -> ConversationHarness:
        (tmp_path / "tools.yaml").write_text(tools)
        job = conversation_job(tmp_path / "tasks.jsonl", toolConfigPath=str(tmp_path / "tools.yaml"), **agent)
        journal = StoreJournal(TrajectoryJournal.from_url(store.url, tmp_path.name))
        return ConversationHarness(tmp_path, script, job, journal=journal, model=model)

    return begin


@pytest.mark.parametrize("turn", [1, 2])
async def test_journaled_responses_and_tool_results_are_replayed(attempt: Attempt, turn: int):
    first = attempt(crashing_at(turn))
    with pytest.raises(Crash):
        await first.play()
    second = attempt(script)

    (row,) = await second.play()

    await second.worker.close()
    assert len(first.policy.requests) == turn + 1
    assert len(second.policy.requests) == 3 - turn
    assert [note for note in Scales.calls if note.startswith("execute")] == [
        f"execute {{'weight': {weight}}}" for weight in WEIGHTS
    ]
    metrics = summary_of(row).metrics
    assert (metrics["turns_carried_on"], metrics["num_turns"], metrics["num_tool_calls"]) == (turn, 3, 2)
    assert row.extra_fields["tool_rewards"] == [0.5, 0.5]


async def test_parallel_tool_results_of_one_response_are_all_journaled(attempt: Attempt):
    def both(request: Request) -> str:
        if "</tool_response>" in request.prompt:
            return script(request)
        calls = [{"name": "weigh", "arguments": {"weight": weight}} for weight in WEIGHTS]
        return "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls) + END

    def crash(request: Request) -> str:
        if "</tool_response>" in request.prompt:
            assert "is played elsewhere" not in request.prompt
            raise Crash
        return both(request)

    with pytest.raises(Crash):
        await attempt(crash, maxParallelCalls=2).play()
    executed = [note for note in Scales.calls if note.startswith("execute")]
    second = attempt(both, maxParallelCalls=2)

    (row,) = await second.play()

    await second.worker.close()
    assert len(executed) == 2
    assert [note for note in Scales.calls if note.startswith("execute")] == executed
    assert summary_of(row).metrics["num_tool_calls"] == 2


async def test_a_tool_call_without_a_journaled_result_is_repeated(attempt: Attempt, monkeypatch: pytest.MonkeyPatch):
    async def crash(self: Any, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(Scales, "execute", crash)
        with pytest.raises(Crash):
            await attempt(script).play()
    second = attempt(script)

    await second.play()

    await second.worker.close()
    # The response is in the journal; only its call is repeated.
    assert len(second.policy.requests) == 2
    assert "execute {'weight': 3}" in Scales.calls


async def test_images_of_tool_results_are_restored_from_the_journal(attempt: Attempt, monkeypatch: pytest.MonkeyPatch):
    model = tiny_vision_model()

    def photograph(request: Request) -> str:
        if "</tool_response>" in request.prompt:
            return f"It is done{END}"
        return f'<tool_call>{{"name": "photograph", "arguments": {{"colour": "red"}}}}</tool_call>{END}'

    def crash(request: Request) -> str:
        if "</tool_response>" in request.prompt:
            raise Crash
        return photograph(request)

    with pytest.raises(Crash):
        await attempt(crash, CAMERA_FILE, model).play()
    monkeypatch.delattr(Camera, "execute")
    second = attempt(photograph, CAMERA_FILE, model)

    (row,) = await second.play()

    await second.worker.close()
    (picture,) = row.multi_modal_data["images"]
    assert picture.getpixel((5, 5)) == (255, 0, 0)


async def test_an_episode_whose_prompt_changed_begins_again(attempt: Attempt):
    with pytest.raises(Crash):
        await attempt(crashing_at(1)).play()
    second = attempt(script, SCALES_FILE.replace("name: weigh", "name: weigh_it"))

    (row,) = await second.play()

    await second.worker.close()
    assert len(second.policy.requests) == 3
    assert "Unknown function 'weigh'" in second.prompts[1]
    assert summary_of(row).metrics["num_turns"] == 3
