from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from turnmill.environments.rendering import from_png, write_gif
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog, TurnRecord
from turnmill.trajectory_page.frames import frame_png
from turnmill.trajectory_page.summary import Summary
from turnmill.trajectory_page.tokens import Vocabulary, expand_mask, printable
from turnmill.trajectory_page.turn_view import build_turn_views, read_advantages

TURN = TurnRecord(
    episode="t0-0", environment=0, turn=0, step=1, policy_version=0, prompt="A ball.", response="go on", action="go",
    reward=0.0, response_ids=(0, 1), log_probs=(-0.123456, float("nan")), observation_ids=(2, 3, 4),
)  # fmt: skip
SUMMARY = Summary(
    id=1, key="t0-0", run="run", kind="training", name="t0-0", environment="babyai", number=0, task=b"a", first_step=1,
    last_step=1, first_version=0, last_version=0, outcome="solved",
)  # fmt: skip
VOCABULARY = Vocabulary(["go", " on", [0xF0, 0x9F], [0x99, 0x82], "\x1b<b>"])


def test_tokens_have_a_column_each_of_text_log_prob_advantage_and_mask():
    (view,) = build_turn_views([TURN], SUMMARY, VOCABULARY, {0: [0.5, -0.5]})

    assert view.tokens == {
        "ids": [0, 1, 2, 3, 4],
        "texts": ["go", " on", "", "🙂", "␛<b>"],
        "num_response": 2,
        "log_probs": [-0.1235, None],
        "advantages": [0.5, -0.5],
        "mask": [1, 1, 0, 0, 0],
    }


def test_an_advantage_of_the_trajectory_is_that_of_every_token_in_the_mask():
    (view,) = build_turn_views([replace(TURN, mask=(1, 1, 3))], SUMMARY, VOCABULARY, 0.25)

    assert view.tokens["advantages"] == [0.25, None, 0.25, 0.25, 0.25]


def test_the_mask_of_a_validation_is_zero():
    (view,) = build_turn_views([TURN], replace(SUMMARY, kind="validation"), VOCABULARY, None)

    assert view.tokens["mask"] == [0] * 5


def test_the_mask_of_a_failed_trajectory_is_zero_in_the_step_of_the_failure():
    end = replace(
        TURN, turn=2, step=2, response="", response_ids=(), failed_cause="environment", observation="It died."
    )
    turns = [TURN, replace(TURN, turn=1, step=2), end]

    views = build_turn_views(turns, replace(SUMMARY, outcome="failed"), VOCABULARY, None)

    assert [sum(view.tokens["mask"]) for view in views] == [2, 0, 0]
    assert [view.is_turn for view in views] == [True, True, False]
    assert views[-1].end_reason == "environment"


def test_without_a_vocabulary_tokens_have_no_text():
    (view,) = build_turn_views([TURN], SUMMARY, Vocabulary(), None)

    assert view.tokens["texts"] is None


def test_a_token_that_the_vocabulary_does_not_know_is_shown_by_its_number():
    assert VOCABULARY.decode([0, 99, -1]) == ["go", "‹99›", "‹-1›"]


@pytest.mark.parametrize(
    ("mask", "flags"),
    [((), [1, 1, 0]), ((2, 0, 1), [1, 1, 1]), ((0, 3), [0, 0, 0]), ((1,), [1, 0, 0]), ((9,), [1, 1, 1])],
)
def test_a_mask_is_expanded_from_run_lengths(mask, flags):
    assert expand_mask(mask, num_response=2, num_observation=1) == flags


def test_control_characters_are_made_visible():
    assert printable("a\x00b\x7f\n\tc") == "a␀b␡\n\tc"
    assert printable("\ud800x") == "?x"


def test_every_tool_call_of_a_response_is_shown():
    tool = {"calls": [{"name": "add", "arguments": {"a": 1}, "observation": "2", "seconds": 0.5}], "metrics": {"n": 1}}

    (view,) = build_turn_views([replace(TURN, tool=tool)], SUMMARY, VOCABULARY, None)

    assert view.calls == [{"name": "add", "arguments": '{\n "a": 1\n}', "observation": "2", "seconds": 0.5}]
    assert view.tool == [("metrics", '{\n "n": 1\n}')]


@pytest.mark.parametrize("calls", ["none", 5, [None, "x"], [{}]])
def test_malformed_tool_calls_are_tolerated(calls):
    (view,) = build_turn_views([replace(TURN, tool={"calls": calls})], SUMMARY, VOCABULARY, None)

    assert all(call["seconds"] is None for call in view.calls)


def test_advantages_of_one_trajectory_are_read(tmp_path: Path):
    folder = RunFolder(tmp_path)
    folder.create()
    log = TrajectoryLog(folder).advantages
    log.write_tokens(1, [("t0-0", 0, [0.5]), ("t0-01", 0, [9.0]), ("t0-0", 1, [-0.5])])
    log.write_tokens(2, [("t0-0", 2, [0.25])])
    log.write(3, {"t3-0-0": 1.5})
    log.write(1, {"t0-0": 0.25})

    assert read_advantages(log.path, "t0-0", {1, 2, 7}) == {0: [0.5], 1: [-0.5], 2: [0.25]}
    assert read_advantages(log.path, "t3-0-0", {3}) == 1.5
    assert read_advantages(log.path, "t9-9", {1, 2}) is None


def test_advantages_that_are_not_numbers_are_none(tmp_path: Path):
    folder = RunFolder(tmp_path)
    folder.create()
    log = TrajectoryLog(folder).advantages
    log.write_tokens(1, [("t0-0", 0, [0.5, float("nan")])])
    log.write(1, {"t1-0": float("nan")})

    worth = read_advantages(log.path, "t0-0", {1})

    assert worth == {0: [0.5, None]}
    assert build_turn_views([TURN], SUMMARY, VOCABULARY, worth)[0].tokens["advantages"] == [0.5, None]
    assert read_advantages(log.path, "t1-0", {1}) is None


def test_each_turn_has_its_frame_even_if_two_are_equal(tmp_path: Path):
    path = tmp_path / "episode.gif"
    shades = [0, 80, 80, 200]
    write_gif([np.full((8, 8, 3), shade, dtype=np.uint8) for shade in shades], path)

    pictures = [frame_png(path, number) for number in range(4)]

    assert [int(from_png(picture or b"")[0, 0, 0]) for picture in pictures] == shades
    assert frame_png(path, 40) is None
    assert frame_png(tmp_path / "none.gif", 0) is None
