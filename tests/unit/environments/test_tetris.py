import pytest

from turnmill import environments
from turnmill.core.errors import SettingsError
from turnmill.environments.tetris import SHAPES, Tetris, _Piece


def create(**options: object) -> Tetris:
    environment = environments.create("tetris", options=options)
    assert isinstance(environment, Tetris)
    return environment


def on_board(*rows: str, box_type: int = 1, shape: int = 0, column: int = 0, **options: object) -> Tetris:
    environment = create(width=len(rows[0]), height=len(rows), boxType=box_type, **options)
    environment.reset(0)
    environment.rows = [list(row) for row in rows]
    environment.piece = _Piece(SHAPES[box_type][shape], column)
    return environment


def columns(environment: Tetris, seeds: range) -> list[int]:
    return [environment.reset(seed).index("X") for seed in seeds]


def test_a_seed_determines_the_column_of_a_piece_as_in_grl():
    # The draws of GRL for a board of 4 by 4 with pieces of one cell.
    import random

    drawn = []
    for seed in range(20):
        chance = random.Random(seed)
        chance.randint(1, 5)
        drawn.append(chance.randint(0, 3))

    assert columns(create(), range(20)) == drawn


@pytest.mark.parametrize("box_type", [1, 2, 3])
def test_the_same_seed_and_actions_produce_the_same_boards(box_type):
    def play() -> list[str]:
        environment = create(boxType=box_type, width=5, height=6)
        seen = [environment.reset(7)]
        for action in ("left", "down", "right", "down", "down", "down", "down", "down", "left", "down"):
            seen.append(environment.step(action).observation)
        return seen

    assert play() == play()


def test_a_piece_moves_one_cell_and_stops_at_the_sides():
    environment = on_board("____", "____", "____", column=1)

    left = environment.step("left")
    blocked = environment.step("left")
    down = environment.step("down")

    assert left.observation == "X___\n____\n____"
    assert (blocked.observation, blocked.info["action_is_effective"]) == (left.observation, 0.0)
    assert down.observation == "____\nX___\n____"
    assert (down.reward, down.terminated) == (-0.1, False)


def test_a_piece_comes_to_rest_on_filled_cells():
    environment = on_board("____", "____", "#___")

    result = environment.step("down")

    assert not result.terminated
    assert result.observation.splitlines()[1:] == ["#___", "#___"]
    assert "X" in result.observation.splitlines()[0]


def test_a_full_line_wins():
    result = on_board("____", "____", "_###").step("down")
    assert not result.terminated
    winning = on_board("____", "_###")

    result = winning.step("down")

    assert (result.reward, result.terminated, result.info["success"]) == (pytest.approx(9.9), True, 1.0)


def test_a_stack_up_to_the_top_loses():
    environment = on_board("____", "#___", "#___", column=1)

    result = environment.step("left")

    assert (result.reward, result.terminated, result.info["success"]) == (-0.1, True, 0.0)


def test_a_square_clears_two_lines():
    result = on_board("____", "__##", "__##", box_type=3, shape=2, column=1).step("down")

    assert not result.terminated
    environment = on_board("____", "__##", "__##", box_type=3, shape=2, column=1)
    environment.step("down")
    assert environment.step("down").reward == pytest.approx(19.9)


def test_upright_pieces_reach_above_the_board():
    environment = on_board("____", "____", "____", box_type=2, column=2)

    assert environment.step("down").observation == "__X_\n__X_\n____"


@pytest.mark.parametrize(("answer", "action"), [("Left", "left"), ("2", "down"), ("1", "right"), ("drop", None)])
def test_actions_are_named_or_numbered(answer, action):
    assert create().match_action(answer) == action


def test_a_board_too_narrow_is_refused():
    with pytest.raises(SettingsError, match=r"options\.width"):
        create(width=1)


def test_a_board_is_drawn_cell_by_cell():
    environment = create()
    environment.reset(0)

    assert environment.render().shape == (96, 96, 3)


@pytest.mark.parametrize("box_type", [1, 2, 3])
def test_an_expert_fills_a_line(box_type):
    environment = create(boxType=box_type, view="spaced")
    won = 0
    for seed in range(20):
        environment.reset(seed)
        expert, action, done = environment.expert(), None, False
        while not done:
            action = expert.advise(action)
            result = environment.step(action)
            done = result.terminated
        won += result.reward > 0

    assert won >= (20 if box_type == 1 else 12)


def test_the_thought_of_an_expert_names_the_target_position_of_the_piece():
    environment = on_board("____", "____", "##_#", view="spaced")
    expert = environment.expert()

    assert expert.advise(None) in ("right", "down")
    assert expert.thought() == "the place is 2 right"


def test_an_expert_requires_a_view_for_a_word_tokenizer():
    with pytest.raises(SettingsError, match=r"options.view: .* Set it to spaced"):
        create().expert()


def test_a_spaced_view_shows_the_same_board():
    assert create(view="spaced").reset(3).replace(" ", "") == create().reset(3)
