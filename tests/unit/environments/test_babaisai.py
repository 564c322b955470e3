"""The published rule set of BabaIsAI on small maps: upper case is text, lower case an object, `.` is free."""

import pytest

from turnmill import environments
from turnmill.core.errors import SettingsError
from turnmill.environments.babaisai import LEVELS, BabaIsAI
from turnmill.environments.babaisai.engine import Thing, World, text
from turnmill.environments.babaisai.expert import solve
from turnmill.environments.babaisai.text import describe


def world(*rows: str) -> World:
    """A map inside a border; `red-key` is a red key."""
    cells = [row.split() for row in rows]
    width, height = len(cells[0]) + 2, len(cells) + 2
    made = World(width, height)
    for place in range(width * height):
        row, column = divmod(place, width)
        if row in (0, height - 1) or column in (0, width - 1):
            made.place(Thing("border", "border"), column, row)
        elif (word := cells[row - 1][column - 1]) != ".":
            made.place(thing(word), column, row)
    made.read_rules()
    return made


def thing(word: str) -> Thing:
    if word.isupper():
        return text(word.lower())
    colour, _, name = word.rpartition("-")
    return Thing("object", name, colour or "red")


def rows(played: World) -> list[str]:
    lines = []
    for start in range(played.width, len(played.cells) - played.width, played.width):
        tops = [cell[-1] if cell else None for cell in played.cells[start + 1 : start + played.width - 1]]
        lines.append(" ".join("." if top is None else top.name.upper() if top.is_text else top.name for top in tops))
    return lines


def play(played: World, *actions: str) -> str | None:
    outcome = None
    for action in actions:
        outcome = played.step(action)
    return outcome


def create(task: str | None = None, **options: object) -> BabaIsAI:
    environment = environments.create("babaisai", task, options=options)
    assert isinstance(environment, BabaIsAI)
    return environment


@pytest.mark.parametrize(
    ("lines", "rules"),
    [
        (["BABA IS YOU . baba"], ["baba is you"]),
        (["BABA .", "IS .", "YOU baba"], ["baba is you"]),
        (["RED KEY IS WIN"], ["red key is win"]),
        (["KEY IS BALL"], ["key is ball"]),
        (["KEY IS WIN", "IS . .", "STOP . ."], ["key is win", "key is stop"]),
        (["WIN IS KEY"], []),
        (["KEY WIN IS"], []),
        (["KEY IS RED"], []),
        (["KEY . IS WIN"], []),
    ],
)
def test_rules_are_read_to_the_right_and_downwards(lines, rules):
    assert world(*lines).rules == rules


def test_you_walk_over_objects_without_a_rule():
    played = world("BABA IS YOU .", "baba key . .")

    assert play(played, "right") is None
    assert rows(played)[1] == ". baba . ."
    assert play(played, "right") is None
    assert rows(played)[1] == ". key baba ."


def test_a_stop_object_blocks_the_way():
    played = world("BABA IS YOU KEY", ". . . IS", "baba key . STOP")

    play(played, "right")

    assert rows(played)[2] == "baba key . STOP"


def test_the_border_blocks_the_way_without_a_rule():
    played = world("BABA IS YOU", "baba . .")

    play(played, "left", "down")

    assert rows(played)[1] == "baba . ."


def test_text_is_pushed_as_far_as_the_border():
    played = world("BABA IS YOU .", "baba WIN . .", ". . . .")

    play(played, "right", "right", "right")

    assert rows(played)[1] == ". . baba WIN"


def test_several_blocks_are_pushed_at_once():
    played = world("BABA IS YOU . .", "baba KEY WIN . .")

    play(played, "right", "right", "right")

    assert rows(played)[1] == ". . baba KEY WIN"


def test_a_push_object_is_pushed():
    played = world("BABA IS YOU KEY", ". . . IS", "baba key . PUSH")

    play(played, "right")

    assert rows(played)[2] == ". baba key PUSH"


def test_a_pull_object_follows_you():
    played = world("BABA IS YOU KEY", ". . . IS", "key baba . PULL")

    play(played, "right")

    assert rows(played)[2] == ". key baba PULL"


def test_a_move_object_moves_after_you():
    played = world("BABA IS YOU KEY", ". . . IS", "key . . MOVE", "baba . . .")

    play(played, "right")

    assert rows(played)[2:] == [". key . MOVE", ". baba . ."]


def test_nothing_moves_while_you_idle():
    played = world("BABA IS YOU KEY", ". . . IS", "key . . MOVE", "baba . . .")

    play(played, "idle")

    assert rows(played)[2:] == ["key . . MOVE", "baba . . ."]


def test_open_and_shut_objects_remove_each_other():
    played = world("BABA IS YOU .", "KEY IS OPEN .", "KEY IS PUSH .", "DOOR IS SHUT .", "baba key door .")

    play(played, "right")

    assert rows(played)[4] == ". baba . ."


def test_reaching_a_win_object_wins_and_a_lose_object_loses():
    assert play(world("BABA IS YOU .", "KEY IS WIN .", "baba key . ."), "right") == "win"
    assert play(world("BABA IS YOU .", "KEY IS LOSE .", "baba key . ."), "right") == "lose"


def test_a_rule_with_a_colour_applies_to_that_colour_only():
    played = world("RED KEY IS WIN", "BABA IS YOU .", "blue-key baba red-key .")

    assert play(played, "left") is None
    assert play(played, "right", "right") == "win"


def test_breaking_a_rule_ends_it_at_once():
    played = world(". . . . .", "WALL IS STOP . .", ". baba . . .", "BABA IS YOU wall .")

    play(played, "up")

    assert rows(played)[0] == ". IS . . ."
    assert played.rules == ["baba is you"]


def test_making_a_rule_starts_it_at_once():
    played = world("baba KEY . . .", ". . . IS WIN", "BABA IS YOU . key")
    assert play(played, "right") is None

    play(played, "left", "up", "right", "down")

    assert "key is win" not in played.rules
    joined = world(". . baba . .", ". . KEY . .", ". . . IS WIN", "BABA IS YOU . key")
    play(joined, "down")
    assert joined.rules == ["key is win", "baba is you"]


def test_a_rule_turns_one_kind_of_object_into_another():
    played = world("KEY IS BALL .", "BABA IS YOU .", "baba . key .")

    play(played, "right")

    assert rows(played)[2] == ". baba ball ."


def test_all_objects_that_are_you_move():
    played = world("BABA IS YOU .", "KEY IS YOU .", "baba . key .", ". . . .")

    play(played, "down")

    assert rows(played)[3] == "baba . key ."


@pytest.mark.feature("Verlog", "environments")
def test_there_are_forty_tasks():
    assert len(LEVELS) == 40
    assert sum(name.startswith("two_room-") for name in LEVELS) == 30


@pytest.mark.parametrize("task", LEVELS)
def test_a_seed_determines_the_map_and_baba_is_you_on_it(task):
    environment, again = create(task), create(f"env/{task}")
    maps = [environment.reset(seed) for seed in range(30)]

    assert maps == [again.reset(seed) for seed in range(30)]
    assert len(set(maps)) > 25
    assert all("baba is you" in description for description in maps)


@pytest.mark.parametrize(
    ("task", "rules", "missing"),
    [
        ("goto_win", " is win", None),
        ("make_win", "baba is you", " is win"),
        ("two_room-goto_win", " is win", "wall is stop"),
        ("two_room-break_stop-goto_win", "wall is stop", None),
        ("two_room-break_stop-make_win", "wall is stop", " is win"),
        ("two_room-make_you-make_win", "wall is stop", " is win"),
        ("two_room-make_wall_win", "wall is stop", " is win"),
    ],
)
def test_the_name_of_a_task_determines_its_rules(task, rules, missing):
    environment = create(task)
    for seed in range(20):
        active = environment.reset(seed).split("\n\n")[0]
        assert rules in active
        assert missing is None or missing not in active


@pytest.mark.parametrize("task", ["goto_win", "goto_win-distr_obj_rule", "make_win", "two_room-goto_win-distr_obj"])
def test_tasks_can_be_solved(task):
    environment = create(task)
    for seed in range(1, 4):
        environment.reset(seed)
        results = [environment.step(action) for action in solve(environment.world)]

        assert results[-1].terminated
        assert results[-1].reward > 0


def test_an_unsolvable_map_has_no_solution():
    assert solve(world("BABA IS YOU", "baba . key")) == []


def test_an_expert_follows_the_shortest_solution_and_plans_again_after_another_action():
    environment = create()
    environment.reset(0)
    environment.world = world("BABA IS YOU .", "KEY IS WIN .", "baba . . key")
    expert = environment.expert()

    advised = [expert.advise(None)]
    for taken in ("right", "left", "right", "right"):
        environment.step(taken)
        advised.append(expert.advise(taken))

    assert advised == ["right"] * 5
    assert expert.thought() == "the way is right"


def test_the_reward_of_a_win_decreases_with_the_steps():
    environment = create()
    environment.reset(0)
    environment.world = world("BABA IS YOU .", "KEY IS WIN .", "baba . key .")
    environment.step("right")

    result = environment.step("right")

    assert (result.reward, result.terminated, result.info["success"]) == (pytest.approx(0.982), True, 1.0)


def test_losing_ends_the_episode():
    environment = create()
    environment.reset(0)
    environment.world = world("BABA IS YOU .", "KEY IS LOSE .", "baba key . .")

    result = environment.step("right")

    assert (result.reward, result.terminated) == (-1.0, True)


def test_a_level_restarts_if_nothing_is_you():
    environment = create()
    opening = environment.reset(0)
    environment.world = world(". . .", "BABA IS YOU", ". baba .")

    result = environment.step("up")

    assert result.observation == f"Nothing was YOU any more: the level begins anew.\n\n{opening}"
    assert not result.terminated


def test_an_episode_ends_after_its_last_step():
    environment = create(maxSteps=2)
    environment.reset(0)

    assert not environment.step("idle").truncated
    assert environment.step("idle").truncated


def test_a_map_is_described_relative_to_you():
    assert describe(world("KEY IS WIN .", ". baba . key", "BABA IS YOU .")) == (
        "Active rules:\nkey is win\nbaba is you\n\nObjects on the map:\n"
        "rule `key` 1 step to the left and 1 step up\nrule `is` 1 step up\n"
        "rule `win` 1 step to the right and 1 step up\nkey 2 steps to the right\n"
        "rule `baba` 1 step to the left and 1 step down\nrule `is` 1 step down\n"
        "rule `you` 1 step to the right and 1 step down"
    )


def test_an_unknown_task_is_refused_with_a_suggestion():
    with pytest.raises(SettingsError, match=r"no task 'goto_wins'. Did you mean 'goto_win'"):
        create("goto_wins")


def test_a_map_is_drawn_cell_by_cell():
    environment = create("two_room-make_you")
    environment.reset(0)

    assert environment.render().shape == (9 * 40, 13 * 40, 3)
