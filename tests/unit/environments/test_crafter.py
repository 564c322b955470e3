import re
import subprocess
import sys
from pathlib import Path

import crafter
import numpy as np
import pytest
import yaml

from turnmill import environments
from turnmill.environments.crafter import Crafter, CrafterGame
from turnmill.environments.crafter.environment import ACTIONS
from turnmill.environments.crafter.text import describe


def create(**options: object) -> Crafter:
    environment = environments.create("crafter", options={"area": [24, 24], **options})
    assert isinstance(environment, Crafter)
    return environment


EPISODE_PROGRAM = (
    "import hashlib\n"
    "from turnmill import environments\n"
    "crafter = environments.create('crafter', options={'area': [32, 32]})\n"
    "seen = [crafter.reset(11)]\n"
    "seen += [crafter.step(('move west', 'do', 'move north', 'sleep')[n % 4]).observation for n in range(300)]\n"
    "print(hashlib.sha256(repr(seen).encode()).hexdigest())\n"
)


def view(**changes: object) -> dict[str, object]:
    inventory = {"health": 9, "food": 8, "drink": 7, "energy": 6, "wood": 0, "sapling": 1}
    return {
        "surroundings": [("grass", 0, 1), ("tree", -2, 1), ("tree", 3, 0), ("zombie", 0, -4), ("grass", 1, 0)],
        "facing": "grass",
        "inventory": inventory,
        "sleeping": False,
        "dead": False,
        **changes,
    }


def test_the_nearest_object_of_each_kind_is_described_with_distance_and_direction():
    assert describe(view()) == (
        "You see:\n- grass 1 step to your east\n- tree 3 steps to your east\n- zombie 4 steps to your north\n\n"
        "You face grass at your front.\n\n"
        "Your status:\n- health: 9/9\n- food: 8/9\n- drink: 7/9\n- energy: 6/9\n\n"
        "Your inventory:\n- sapling: 1"
    )


def test_sleep_death_and_the_edge_of_the_map_are_described():
    assert describe(view(sleeping=True)).startswith("You are sleeping.\n\nYou see:")
    assert describe(view(dead=True, facing=None)).startswith("You died.")
    assert "You face nothing at your front." in describe(view(facing=None))
    assert describe(view(surroundings=[])).startswith("You see nothing around you.")


@pytest.mark.feature("Verlog", "environments")
def test_a_seed_determines_the_game_in_every_process():
    digests = {
        subprocess.run(
            [sys.executable, "-c", EPISODE_PROGRAM],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }

    assert len(digests) == 1


def test_rendering_does_not_change_the_game():
    one, other = create(), create()
    one.reset(5)
    other.reset(5)
    for turn in range(200):
        action = one.actions[1 + turn % 5]
        picture = other.render()
        assert one.step(action) == other.step(action)

    assert picture.shape == (288, 288, 3)
    assert picture.std() > 0


def test_a_prepared_map_equals_an_unprepared_one_and_is_used_once():
    prepared, unprepared = create(), create()
    prepared.reset(1)
    prepared.prepare(2)
    prepared.step("move west")

    openings = [prepared.reset(2), prepared.reset(2), prepared.reset(3)]

    assert openings == [unprepared.reset(2), unprepared.reset(2), unprepared.reset(3)]


def test_a_sleeping_player_acts_again_after_waking_up():
    environment = create()
    environment.reset(0)
    player = environment._game._game._player
    player.inventory["energy"] = 3

    result = environment.step("sleep")

    assert not player.sleeping
    assert result.terminated or player.inventory["energy"] > 3
    assert environment._game._game._step > 10


@pytest.mark.feature("Verlog", "instructions with mission and achievements")
def test_an_achievement_is_rewarded_with_one_and_removed_from_the_instructions():
    environment = create()
    environment.reset(0)
    environment._game._game._player.inventory["sapling"] = 1
    facing = environment._game._game._player.pos + np.array(environment._game._game._player.facing)
    environment._game._game._world[facing] = "grass"
    assert "place plant" in environment.instruction_prompt().split("achievements")[1]

    result = environment.step("place plant")

    assert result.reward == pytest.approx(1.0)
    assert result.info["achievements"] == 1.0
    assert ", place plant" not in environment.instruction_prompt()


def test_a_game_is_truncated_at_its_length_and_terminated_by_death():
    environment = create(length=2)
    environment.reset(0)
    environment.step("noop")
    assert environment.step("noop").truncated
    mortal = create()
    mortal.reset(0)
    mortal._game._game._player.inventory["health"] = 0
    mortal._game._game._player.inventory["food"] = 0

    assert mortal.step("noop").terminated


@pytest.mark.feature("Verlog", "parsing of the action")
@pytest.mark.parametrize(
    ("answer", "action"),
    [
        ("Move West.", "move west"),
        ("Do,", "do"),
        ("do (chop the tree)", "do"),
        ("Place_Stone\nand then more", "place stone"),
        ("Move North 3 Steps", "move north"),
        ("Collect Wood", "do"),
        ("drink from water", "do"),
        ("attack", "do"),
        ("Make Crafting Table", "place table"),
        ("make furnace", "place furnace"),
        ("make iron sword", "make iron sword"),
        ("move", None),
        ("dig", None),
        ("", None),
    ],
)
def test_unambiguous_spellings_are_matched_to_actions(answer, action):
    assert create().match_action(answer) == action


def test_a_diagonal_move_becomes_one_of_its_two_directions_reproducibly():
    environment = create()
    drawn = set()
    for seed in range(20):
        environment.reset(seed)
        drawn.add(environment.match_action("Move North-West"))
        assert environment.match_action("move northwest") == environment.match_action("Move North West")

    assert drawn == {"move north", "move west"}


def test_the_game_has_the_interface_of_gymnasium():
    game = CrafterGame(area=(24, 24))

    seen_first, _ = game.reset(seed=3)
    again, _ = game.reset(seed=3)
    observation, reward, terminated, truncated, info = game.step(0)

    assert seen_first == again
    assert set(observation) == set(again)
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert set(info) == {"achievements"}


@pytest.mark.feature("Verlog", "its templates by name")
def test_the_instructions_say_what_the_game_takes():
    rules = yaml.safe_load((Path(crafter.__file__).parent / "data.yaml").read_text())

    for kind, words in (("place", "place {}"), ("make", "make {}")):
        for name, rule in rules[kind].items():
            description = ACTIONS[words.format(name.replace("_", " "))]
            taken = {what: int(number) for number, what in re.findall(r"(\d+) (\w+)", description)}
            assert taken == rule["uses"], name
            assert all(place in description for place in rule.get("nearby", ()))
