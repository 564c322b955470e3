"""The journal as version 0.1 wrote it."""

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from turnmill.core.trajectory import TrajectoryMetadata, TrajectoryOutcome, Turn, complete_turns
from turnmill.trajectories.client import deadline_in
from turnmill.trajectories.journal import READ, TrajectoryJournal
from turnmill.trajectories.packing import pack, unpack
from turnmill.trajectories.scripts import Script

STORED = json.loads((Path(__file__).parent / "data" / "journal-0.1.json").read_text())
"""The values in Redis by their keys, in base64: of a trajectory that finished and of one in flight."""


class RecordedClient:
    """Answers reads as the Redis of that run did."""

    async def run(self, script: Script, key: str, *_: Any, also: Sequence[str], deadline: float) -> Any:
        assert script is READ
        fields = STORED[key]["value"].items()
        turns = STORED[f"{key}:turns"]["value"]
        words = [word for name, value in fields for word in (name.encode(), base64.b64decode(value))]
        return [words, [base64.b64decode(turn) for turn in turns]]


@pytest.fixture
def journal() -> TrajectoryJournal:
    return TrajectoryJournal(RecordedClient(), "run-0.1")  # type: ignore[arg-type]


async def test_a_finished_trajectory_is_read_with_its_turns_and_its_end(journal):
    found = await journal.read("t1-0-0", deadline=deadline_in(10))

    assert [turn.response_text for turn in complete_turns(found.turns)] == [
        "<py>0</py>",
        "<py>1</py>",
        "answer:2<|im_end|>",
    ]
    assert [turn.observation for turn in complete_turns(found.turns)] == ["[0]", "[1]", ""]
    assert found.turns[-1].done
    assert found.metadata == TrajectoryMetadata(step=1, task=0, trajectory_id="run-0.1-a15a8ddd-t1-0-0-f592f31b")
    assert found.outcome == TrajectoryOutcome("completed", "model_chose_to_finish")
    assert found.attempt == 2


async def test_a_trajectory_in_flight_is_read_up_to_its_last_turn(journal):
    found = await journal.read("t1-0-1", deadline=deadline_in(10))

    assert [turn.unanswered for turn in found.turns] == [True, False, True, False]
    assert not found.finished
    first = found.turns[1]
    assert first.prompt_ids == (2, 26, 28, 20, 30, 29, 36, 38, 1, 4)
    assert first.log_probs == (-0.5,) * 10
    assert first.observation_ids == (66, 23, 68)
    assert first.metrics == {"called": True, "cut_off": False, "num_appended": 0, "oldest_version": 0, "spoken": True}
    assert first.seconds == {"generation": 0.000332, "tools": 0.001416}


def test_turns_are_written_as_version_0_1_wrote_them():
    kept = [base64.b64decode(turn) for key, of in STORED.items() if of["type"] == "list" for turn in of["value"]]

    assert len(kept) == 9
    assert all(pack(unpack(Turn, turn)) == turn for turn in kept)
