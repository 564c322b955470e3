import pytest
from minigrid.envs.babyai.core.verifier import AfterInstr, BeforeInstr
from minigrid.utils.baby_ai_bot import BabyAIBot

from turnmill import environments
from turnmill.core.errors import SettingsError
from turnmill.environments.babyai import BabyAI
from turnmill.environments.babyai.levels import GOALS, HELD_OUT, registered_levels


def create(task: str | None = None, **options: object) -> BabyAI:
    environment = environments.create("babyai", task=task, max_turns=64, options=options)
    assert isinstance(environment, BabyAI)
    return environment


def play(environment: BabyAI, seed: int) -> list[str]:
    observations = [environment.reset(seed)]
    for action in ("turn left", "go forward", "pick up", "go forward", "turn right", "toggle", "drop"):
        result = environment.step(action)
        observations.append(result.observation)
        if result.terminated:
            break
    return observations


def objects_in(environment: BabyAI) -> set[tuple[str, str]]:
    return {(thing.type, thing.color) for thing in environment.level.grid.grid if thing and thing.type != "wall"}


@pytest.mark.parametrize("task", [*GOALS, "GoToLocal", "UnlockLocal"])
def test_a_seed_determines_the_episode(task):
    one, other = create(task), create(task)
    other.reset(99)

    assert play(one, 5) == play(other, 5)
    assert play(one, 5) == play(one, 5)
    assert [one.reset(seed) for seed in range(20)] != [one.reset(0)] * 20


@pytest.mark.parametrize("task", GOALS)
def test_every_goal_can_be_reached(task):
    environment = create(task)
    for seed in range(10):
        environment.reset(seed)
        bot, action, done, reward = BabyAIBot(environment.level), None, False, 0.0
        while not done:
            action = int(bot.replan(action))
            result = environment.step(environment.actions[action])
            done, reward = result.terminated or result.truncated, result.reward

        assert reward > 0


@pytest.mark.parametrize(
    ("task", "num_objects"), [("goto", 1), ("pickup", 1), ("open", 2), ("putnext", 2), ("pick_up_seq_go_to", 2)]
)
def test_a_goal_has_no_more_objects_than_it_needs(task, num_objects):
    environment = create(task)
    for seed in range(20):
        environment.reset(seed)
        assert len(objects_in(environment)) == num_objects


def test_distractors_are_added_that_differ_from_the_target():
    environment = create("goto", num_dists=3)
    for seed in range(20):
        environment.reset(seed)
        assert len(objects_in(environment)) == 4


@pytest.mark.parametrize("task", GOALS)
def test_held_out_objects_do_not_occur_in_training(task):
    environment = create(task)
    for seed in range(50):
        environment.reset(seed)
        assert not objects_in(environment) & HELD_OUT


@pytest.mark.parametrize("task", GOALS)
def test_goals_can_use_held_out_objects(task):
    environment = create(task, objects="held_out")
    environment.reset(0)

    assert objects_in(environment) & HELD_OUT


def test_the_task_open_has_a_locked_door_between_two_rooms():
    environment = create("open")
    environment.reset(0)

    (door,) = [thing for thing in environment.level.grid.grid if thing and thing.type == "door"]
    assert door.is_locked
    assert (environment.level.num_cols, environment.level.num_rows) == (2, 1)


def test_sequence_missions_are_worded_in_both_orders():
    environment = create("pick_up_seq_go_to")
    kinds = set()
    for seed in range(20):
        environment.reset(seed)
        kinds.add(type(environment.level.instrs))
        assert "pick up" in environment.mission
        assert "go to" in environment.mission

    assert kinds == {BeforeInstr, AfterInstr}


@pytest.mark.feature("Verlog", "environments")
def test_every_registered_level_plays_and_ends_at_its_turn_limit():
    for level in sorted(set(registered_levels().values())):
        environment = environments.create("babyai", task=level, max_turns=2)
        environment.reset(0)
        environment.step("turn left")

        assert environment.step("turn left").truncated, level


def test_a_short_name_selects_the_registered_level():
    assert play(create("GoToObj"), 3) == play(create("BabyAI-GoToObj-v0"), 3)
    assert registered_levels()["GoToObjS6"] == "BabyAI-GoToObjS6-v1"


def test_an_unknown_task_is_refused_with_a_suggestion():
    with pytest.raises(SettingsError, match=r"no task 'gotoo'. Did you mean 'goto'"):
        create("gotoo")


def test_options_are_refused_for_levels_of_minigrid():
    with pytest.raises(SettingsError, match="numDists cannot be set for the task 'GoToObj'"):
        create("GoToObj", numDists=2)


def test_resets_print_nothing(capsys):
    environment = create("putnext")
    for seed in range(100):
        environment.reset(seed)

    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("ACTION: turn_left", "turn left"),
        ("ACTION: TurnRight", "turn right"),
        ("ACTION: goforward", "go forward"),
        ("ACTION: pickup", "pick up"),
        ("ACTION: pick up the ball", None),
        ("ACTION: toggle.", None),
        ("ACTION: toggle", "toggle"),
    ],
)
def test_only_underscores_and_missing_spaces_are_corrected(text, action):
    assert create().parse_action(text) == action


@pytest.mark.feature("Verlog", "instructions with mission and achievements")
def test_the_prompts_name_the_mission_and_every_action():
    environment = create("goto")
    environment.reset(0)

    prompt = environment.instruction_prompt()

    assert environment.mission.startswith("go to the ")
    assert f"Your goal is to {environment.mission}." in prompt
    assert all(f"{action}: " in prompt for action in environment.actions)
    assert environment.compact_prompt() == f"goal: {environment.mission}"


def test_a_level_is_drawn_in_colour():
    environment = create()
    environment.reset(0)

    frame = environment.render()

    assert frame.shape == (192, 192, 3)
    assert frame.std() > 0
