"""GRL's agents in turnmill's environments."""

import json
from typing import Any

import pytest

from turnmill.core.errors import SettingsError
from turnmill.environments.grl import BaseAgent, EnvOutput, get_agent_cls
from turnmill.environments.sokoban import generate_room
from turnmill.environments.webshop.catalogue import draw_goal

ROOMS = {123: "######\n######\n#O####\n#XP###\n#__###\n######", 125: "######\n#__O_#\n#____#\n#_X__#\n#_P###\n######"}


def agent(name: str, env_config: dict[str, Any] | None = None, **config: Any) -> BaseAgent:
    settings = {"max_turns": 9, "max_actions_all_turns": 30, "max_actions_per_turn": 10} | config
    return get_agent_cls(name)({"agent_config": settings, "env_config": env_config or {}}, tag=name)


def do(agent: BaseAgent, *actions: str) -> EnvOutput:
    return agent.get_env_outputs(f"</think><answer>{'||'.join(actions)}</answer>")


@pytest.mark.parametrize("seed", ROOMS)
def test_a_sokoban_seed_generates_the_room_of_grl(seed: int):
    assert agent("sokobanAgent").reset(seed).state == ROOMS[seed]


def test_a_group_shares_its_initial_state_and_groups_differ():
    states = [[agent("sokobanAgent").reset(seed).state for _ in range(3)] for seed in (123, 124, 125)]

    assert [len(set(group)) for group in states] == [1, 1, 1]
    assert len({group[0] for group in states}) == 3


@pytest.mark.feature("GRL", "Sokoban")
def test_sokoban_rewards_steps_boxes_on_targets_and_the_solution():
    sokoban = agent("sokobanAgent")
    sokoban.reset(123)

    pushed = do(sokoban, "Down", "Left", "up")

    # Three steps, a box onto its target, all boxes on theirs.
    assert pushed.reward == pytest.approx(3 * -0.1 + 1 + 10)
    assert pushed.terminated
    assert sokoban.figures()["success"] == 1.0


def test_a_sokoban_agent_can_describe_the_room_in_words_without_symbols():
    sokoban = agent("sokobanAgent", {"view": "words"})

    output = sokoban.reset(123)

    prompt = sokoban.get_llm_prompts(output)[1]["content"]
    assert output.state == "player wall up right\nbox 1 left wall left\ntarget 1 up 1 left wall up left right"
    assert "symbols" not in prompt
    assert "Your actions: Up, Down, Left, Right." in prompt
    assert do(sokoban, "Down").state.startswith("player wall down right\nbox 1 up 1 left wall left")


@pytest.mark.parametrize("word", ["Left", "LEFT", "left", "3"])
def test_actions_are_accepted_by_name_in_any_case_and_by_number(word: str):
    sokoban = agent("sokobanAgent")
    sokoban.reset(125)

    assert do(sokoban, word).state != ROOMS[125]
    assert sokoban.num_actions == 1


def test_symbols_and_actions_can_be_set_as_in_the_documentation_of_grl():
    vocab = {"@": "player", "#": "wall", "$": "box", ".": "target"}
    lookup = {0: "up", 1: "down", 2: "left", 3: "right"}
    sokoban = agent("sokobanAgent", {"grid_vocab": vocab, "action_lookup": lookup})

    output = sokoban.reset(123)

    assert output.state == ROOMS[123].replace("X", "$").replace("P", "@").replace("O", ".")
    assert "$ box" in sokoban.get_llm_prompts(output)[1]["content"]
    assert do(sokoban, "1").state != output.state


@pytest.mark.feature("GRL", "its own configuration files")
def test_symbols_by_number_may_have_meanings_in_any_words():
    symbols = {
        "grid_lookup": {0: "_", 1: "#", 2: "X"},
        "grid_vocab": {"#": "filled spaces", "_": "empty", "X": "current block"},
    }
    tetris = agent("tetrisAgent", {**symbols, "action_lookup": {0: "Left", 1: "Right", 2: "Down"}})

    output = tetris.reset(1)

    assert set(output.state) <= {"_", "#", "X", "\n"}
    assert "# filled spaces, X current block" in tetris.get_llm_prompts(output)[1]["content"]


def test_settings_with_integer_keys_survive_json():
    config = json.loads(
        json.dumps({"grid_lookup": {4: "B"}, "action_lookup": {1: "Up", 2: "Down", 3: "Left", 4: "Right"}})
    )

    assert agent("sokobanAgent", config).reset(123).state == ROOMS[123].replace("X", "B")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"grid_vocab": {"@": "hero"}}, "envConfig.grid_vocab: 'hero' is unknown. Known: wall, empty"),
        ({"grid_lookup": {7: "?"}}, "envConfig.grid_lookup: 7 is not the number of a cell. Known: 0 to 6"),
        ({"action_lookup": {1: "Jump"}}, "envConfig.action_lookup: 'jump' is unknown. Known: up, down"),
    ],
)
def test_unknown_symbols_and_actions_are_refused(config: dict[str, Any], message: str):
    with pytest.raises(SettingsError, match=message):
        agent("sokobanAgent", config)


def test_the_options_of_a_room_are_passed_to_the_generator():
    large = agent("sokobanAgent", {"dim_room": [8, 8], "num_boxes": 2, "search_depth": 30})

    assert large.reset(7).state == "\n".join(generate_room(7, size=(8, 8), num_boxes=2, search_depth=30))


@pytest.mark.feature("GRL", "the other environments")
def test_tetris_penalizes_every_step_and_rewards_a_full_line():
    tetris = agent("tetrisAgent", {"dim_x": 2, "dim_y": 4})
    tetris.reset(3)

    rewards = [do(tetris, "Left", "Down", "Down", "Down").reward, do(tetris, "Right", "Down", "Down", "Down").reward]

    assert rewards[0] == pytest.approx(-0.4)
    assert rewards[1] == pytest.approx(10 - 0.4)
    assert tetris.done


@pytest.mark.feature("GRL", "the other environments")
def test_blocksworld_penalizes_an_unparsable_answer_more_than_an_invalid_move():
    blocks = agent("blocksworldAgent")
    blocks.reset(0)

    assert do(blocks, "hello").reward == -5
    assert do(blocks, "(move 1 to 1)").reward == -1


@pytest.mark.feature("GRL", "the other environments")
def test_the_right_answer_to_a_maths_problem_is_rewarded_with_ten():
    gsm8k = agent("gsm8kAgent")
    gsm8k.reset(1)
    truth = gsm8k.environment._truth.rpartition("####")[2].strip()

    assert do(gsm8k, "no number").reward == -0.1
    assert do(gsm8k, f"it is {truth}").reward == 10
    assert gsm8k.done


@pytest.mark.feature("GRL", "the other environments")
def test_an_answer_without_sql_is_penalized_and_ends_the_episode():
    bird = agent("birdAgent")
    bird.reset(1)

    output = do(bird, "I do not know")

    assert (output.reward, output.terminated) == (-0.5, True)


def test_reaching_the_goal_state_of_blocksworld_is_rewarded_with_ten():
    blocks = agent("blocksworldAgent")
    blocks.reset(0)
    expert = blocks.environment.expert()

    outputs = []
    while not blocks.done:
        outputs.append(do(blocks, f"({expert.advise(None)})"))

    assert [output.reward for output in outputs] == [-1.0] * (len(outputs) - 1) + [10.0]


@pytest.mark.parametrize(("tries", "reward"), [(1, 1.0), (2, 0.5), (3, 0.25)])
def test_the_reward_of_a_right_statement_halves_with_every_try(tries: int, reward: float):
    bird = agent("birdAgent")
    bird.reset(1)
    right = bird.environment._row["SQL"]

    statements = ["SELECT 'a' || 'b'"] * (tries - 1) + [right]
    outputs = [do(bird, f"```sql\n{statement}\n```") for statement in statements]

    assert (outputs[-1].reward, outputs[-1].terminated) == (reward, True)
    assert bird.penalty == 0.0


def test_the_reward_of_a_purchase_is_that_of_the_shop():
    shop, goal = agent("webshopAgent"), draw_goal(4)
    shop.reset(4)

    output = do(
        shop,
        f"search[{goal.product.title}]",
        f"click[{goal.product.number}]",
        *(f"click[{option}]" for option in goal.options.values()),
        "click[buy now]",
    )

    assert (output.reward, output.terminated, shop.figures()["success"]) == (1.0, True, 1.0)


def test_the_environment_agent_acts_in_any_registered_environment():
    babyai = agent("environmentAgent", {"name": "babyai", "task": "goto"})

    output = babyai.reset(5)

    assert "go to" in babyai.get_llm_prompts(output)[1]["content"]
    assert do(babyai, "go forward", "fly").info["action_is_valid"] == 1.0
    assert babyai.penalty == -0.1


def test_the_environment_agent_requires_the_name_of_an_environment():
    with pytest.raises(SettingsError, match=r"envConfig\.name: is missing"):
        agent("environmentAgent")


@pytest.mark.feature("GRL", "the other environments")
@pytest.mark.parametrize("name", ["amc23", "aime24", "aime25", "math500", "minervamath"])
def test_every_set_of_maths_problems_has_an_agent(name: str):
    problems = agent(f"{name}Agent")

    assert problems.environment.task == name
    assert problems.reset(3).state
