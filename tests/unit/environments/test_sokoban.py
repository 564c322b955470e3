import random
import re

import numpy as np
import pytest

from turnmill import environments
from turnmill.core.errors import SettingsError
from turnmill.environments.sokoban import Sokoban, generate_room

ROOMS = {
    ((6, 6), 0): "###### #____# ##O_P# ###X_# ###__# ######",
    ((6, 6), 123): "###### ###### #O#### #XP### #__### ######",
    ((6, 6), 125): "###### #__O_# #____# #_X__# #_P### ######",
    ((8, 8), 1): "######## #_###_## #_____## #__#__## #_##O__# #_X____# #_P____# ########",
    ((8, 8), 126): "######## ######## ######## #_P##### #_X_#__# #______# #___O__# ########",
}
"""Rooms of GRL's generator with a search depth of 30."""


def create(**options: object) -> Sokoban:
    environment = environments.create("sokoban", options=options)
    assert isinstance(environment, Sokoban)
    return environment


def in_room(*rows: str, **options: object) -> Sokoban:
    environment = create(**options)
    environment.start_in(list(rows))
    return environment


def words(text: str) -> set[str]:
    """Words as the tokenizer of a warm start splits them, each with the space before it."""
    return set(re.findall(r"\n| ?[^ \n]+", text))


@pytest.mark.feature("GRL", "Sokoban")
@pytest.mark.parametrize(("size", "seed"), ROOMS)
def test_a_seed_generates_the_room_of_grl(size, seed):
    assert generate_room(seed, size=size, search_depth=30) == ROOMS[size, seed].split()


@pytest.mark.parametrize(("size", "num_boxes"), [((6, 6), 1), ((8, 8), 1), ((7, 7), 2), ((5, 9), 1)])
def test_every_room_begins_unsolved_and_can_be_solved(size, num_boxes):
    environment = create(size=list(size), numBoxes=num_boxes, searchDepth=40, view="spaced")
    for seed in range(20):
        environment.reset(seed)
        expert, action, reward = environment.expert(), None, 0.0
        while reward < 1:
            action = expert.advise(action)
            assert action is not None
            result = environment.step(action)
            reward = result.reward if result.terminated else 0.0

        assert environment.board.cells.count("√") == num_boxes


def test_a_seed_without_a_solvable_room_is_replaced_reproducibly():
    rooms = [generate_room(seed, size=(5, 5)) for seed in range(100)]

    assert rooms == [generate_room(seed, size=(5, 5)) for seed in range(100)]
    assert all(sum(row.count("X") for row in room) == 1 for room in rooms)


def test_global_random_generators_are_not_used():
    random.seed(5)
    np.random.seed(5)
    expected = random.random(), np.random.random()
    random.seed(5)
    np.random.seed(5)

    generate_room(0)

    assert (random.random(), np.random.random()) == expected


def test_the_player_walks_and_stops_at_walls():
    environment = in_room("######", "#P_X_#", "#___O#", "######")

    blocked = environment.step("up")
    walked = environment.step("down")

    assert (blocked.observation, blocked.info["action_is_effective"]) == ("######\n#P_X_#\n#___O#\n######", 0.0)
    assert (walked.observation, walked.info["action_is_effective"]) == ("######\n#__X_#\n#P__O#\n######", 1.0)
    assert (walked.reward, walked.terminated) == (-0.1, False)


def test_a_box_is_pushed_but_neither_into_a_wall_nor_into_another_box():
    environment = in_room("#######", "#PX_XO#", "#__O__#", "#######")

    environment.step("right")
    pushed = environment.step("right")

    assert pushed.observation.splitlines()[1] == "#_PXXO#"
    assert pushed.info["action_is_effective"] == 0.0
    against_the_wall = in_room("######", "#OPX##", "######")
    assert against_the_wall.step("right").observation == "######\n#OPX##\n######"


def test_a_box_on_its_target_is_rewarded_with_one_and_the_last_with_ten_more():
    environment = in_room("#######", "#PXO__#", "#_XO__#", "#######")

    first = environment.step("right")
    off = environment.step("right")

    assert (first.reward, first.terminated) == (pytest.approx(0.9), False)
    assert first.observation.splitlines()[1] == "#_P√__#"
    assert off.reward == pytest.approx(-1.1)
    assert off.observation.splitlines()[1] == "#__SX_#"
    solving = in_room("######", "#PXO_#", "######").step("right")
    assert (solving.reward, solving.terminated, solving.info["success"]) == (pytest.approx(10.9), True, 1.0)


def test_an_episode_ends_after_its_last_step():
    environment = create(maxSteps=2)
    environment.reset(0)

    assert not environment.step("up").truncated
    assert environment.step("up").truncated


@pytest.mark.parametrize(
    ("answer", "action"), [("Up", "up"), ("2", "down"), (" left ", "left"), ("4", "right"), ("5", None), ("up!", None)]
)
def test_actions_are_named_or_numbered(answer, action):
    assert create().match_action(answer) == action


def test_a_spaced_view_shows_the_same_room():
    assert create(view="spaced").reset(3).replace(" ", "") == create().reset(3)


def test_a_view_in_words_gives_distances_and_adjacent_walls():
    environment = in_room("#######", "#P____#", "#__XO_#", "#######", view="words")

    assert environment.step("right").observation == (
        "player wall up\nbox 1 down 1 right wall down\ntarget 1 down 2 right wall down"
    )


def test_a_view_in_words_omits_boxes_on_targets_and_names_a_target_under_the_player():
    environment = in_room("#######", "#√____#", "#_X_S_#", "#_____#", "#######", view="words")

    assert environment.step("up").observation == "player wall up\nbox 1 down 2 left\ntarget 1 down"
    assert environment.step("down").observation == "player\nbox 2 left\ntarget here"


@pytest.mark.parametrize("view", ["spaced", "words"])
def test_phrases_contain_every_word_of_every_room(view):
    environment = create(size=[7, 9], numBoxes=2, searchDepth=20, view=view)
    expert, chance = environment.expert(), random.Random(0)
    # The first word of a thought follows `THINK:` and a space.
    known = set().union(*map(words, expert.phrases()), words(" the"))

    for seed in range(10):
        texts = [environment.reset(seed)]
        for _ in range(20):
            texts += [environment.step(chance.choice(environment.actions)).observation, f" {expert.thought()}"]

        assert set().union(*map(words, texts)) <= known


def test_the_instructions_explain_the_view():
    assert "Its symbols are: # wall" in create().instruction_prompt()
    assert "how many cells from you" in create(view="words").instruction_prompt()


def test_an_expert_plans_again_after_another_action():
    environment = in_room("#######", "#P____#", "#__XO_#", "#######", view="spaced")
    expert = environment.expert()
    expert.advise(None)
    environment.step("right")

    actions = [expert.advise("right")]
    environment.step(actions[0])
    actions.append(expert.advise(actions[0]))

    assert actions == ["down", "right"]
    assert expert.thought() == "the box is 1 right and the target is 2 right"


def test_an_expert_gives_up_on_a_box_in_a_corner():
    environment = in_room("######", "#X_PO#", "#____#", "######", view="spaced")

    assert environment.expert().advise(None) is None


def test_an_expert_requires_a_view_for_a_word_tokenizer():
    with pytest.raises(SettingsError, match=r"options.view: must be spaced or words .* Set it to spaced"):
        create().expert()


@pytest.mark.parametrize("options", [{"size": [3, 6]}, {"numBoxes": 0}, {"size": [6]}, {"searchDepth": 1}])
def test_invalid_options_of_a_room_are_refused(options):
    with pytest.raises(SettingsError, match=r"environment\.options"):
        create(**options)


def test_more_boxes_than_a_room_can_hold_are_refused():
    environment = create(size=[4, 4], numBoxes=8)

    with pytest.raises(SettingsError, match=r"no room of 4 by 4 with 8 boxes"):
        environment.reset(0)


def test_a_room_is_drawn_cell_by_cell():
    environment = create()
    environment.reset(0)

    assert environment.render().shape == (6 * 24, 6 * 24, 3)
