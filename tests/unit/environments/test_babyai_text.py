from types import SimpleNamespace

import numpy as np
import pytest
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX

from turnmill.environments.babyai.text import describe, visible_objects


def view(**cells: tuple[str, str, int]) -> np.ndarray:
    """An empty view with things at `c<column>r<row>`; the agent stands at column 3, row 6."""
    seen = np.zeros((7, 7, 3), dtype=np.uint8)
    seen[:, :, 0] = OBJECT_TO_IDX["empty"]
    for place, (kind, colour, state) in cells.items():
        seen[int(place[1]), int(place[3])] = (OBJECT_TO_IDX[kind], COLOR_TO_IDX[colour], state)
    return seen


WALL = ("wall", "grey", 0)


def test_walls_are_described_before_objects():
    assert describe(view(c1r5=("ball", "red", 0), c3r3=WALL)) == (
        "a wall 3 steps forward\na red ball 2 steps left and 1 step forward"
    )


def test_walls_are_described_in_the_order_forward_left_right():
    assert describe(view(c4r6=WALL, c0r6=WALL, c3r5=WALL)) == (
        "a wall 1 step forward\na wall 3 steps left\na wall 1 step right"
    )


def test_an_object_hides_the_wall_behind_it():
    assert describe(view(c3r3=WALL, c3r4=("key", "blue", 0))) == "a blue key 2 steps forward"


def test_unseen_cells_are_transparent():
    assert describe(view(c3r5=("unseen", "red", 0), c3r4=WALL)) == "a wall 2 steps forward"


def test_objects_are_described_from_the_left_and_far_before_near():
    seen = view(c5r6=("box", "grey", 0), c2r5=("key", "red", 0), c2r1=("ball", "green", 0))

    assert describe(seen).split("\n") == [
        "a green ball 1 step left and 5 steps forward",
        "a red key 1 step left and 1 step forward",
        "a grey box 2 steps right",
    ]


@pytest.mark.parametrize(("state", "word"), [(0, "open"), (1, "closed"), (2, "locked")])
def test_a_door_is_described_as_open_closed_or_locked(state, word):
    assert describe(view(c3r4=("door", "red", state))) == f"a {word} red door 2 steps forward"


def test_a_carried_object_is_described_first_and_only_once():
    carried = SimpleNamespace(color="yellow", type="box")

    text = describe(view(c3r6=("box", "yellow", 0), c3r5=WALL), carried)

    assert text == "You carry a yellow box\na wall 1 step forward"


def test_an_empty_view_has_an_empty_description():
    assert describe(view()) == ""


def test_distance_is_the_sum_of_steps_sideways_and_forward():
    (thing,) = visible_objects(view(c0r2=("ball", "red", 0)))

    assert (thing.name, thing.right, thing.forward, thing.distance) == ("red ball", -3, 4, 7)
