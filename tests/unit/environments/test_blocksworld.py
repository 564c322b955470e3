from itertools import product

import pytest

from turnmill import environments
from turnmill.environments.blocksworld import Blocksworld, State, stacks


def create(**options: object) -> Blocksworld:
    environment = environments.create("blocksworld", options=options)
    assert isinstance(environment, Blocksworld)
    return environment


def between(state: State, goal: State, **options: object) -> Blocksworld:
    environment = create(numBlocks=len(state), **options)
    environment.state, environment.goal = state, goal
    return environment


def test_three_blocks_have_all_156_pairs_of_states_in_grls_order():
    environment = create()
    pairs = []
    for seed in range(156):
        environment.reset(seed)
        pairs.append((environment.state, environment.goal))

    assert pairs[0] == ((0, 0, 1), (0, 3, 0))
    assert pairs[155] == ((0, 3, 1), (0, 1, 0))
    assert len(set(pairs)) == 156
    assert all(start != goal for start, goal in pairs)


@pytest.mark.parametrize("num_blocks", range(2, 10))
def test_every_state_stacks_each_block_exactly_once(num_blocks):
    environment = create(numBlocks=num_blocks)
    for seed in range(50):
        environment.reset(seed)
        assert environment.state != environment.goal
        for state in (environment.state, environment.goal):
            assert sorted(block for stack in stacks(state) for block in stack) == list(range(1, num_blocks + 1))


def test_a_move_costs_one_and_the_goal_is_rewarded_with_ten():
    environment = between((0, 1, 0), (0, 0, 2))

    first = environment.step("move 2 to 0")
    last = environment.step("move 3 to 2")

    assert (first.reward, first.terminated, first.info["action_is_valid"]) == (-1, False, 1.0)
    assert (last.reward, last.terminated, last.info["success"]) == (10, True, 1.0)


@pytest.mark.parametrize(
    "action", ["move 1 to 3", "move 3 to 1", "move 3 to 3", "move 4 to 0", "move 3 to 7", "move -1 to 0"]
)
def test_an_invalid_move_costs_one_and_changes_nothing(action):
    environment = between((0, 1, 0), (0, 0, 2))

    result = environment.step(action)

    assert (result.reward, result.info["action_is_valid"]) == (-1, 0.0)
    assert environment.state == (0, 1, 0)


def test_an_answer_without_a_move_costs_five():
    environment = create()
    environment.reset(0)

    assert environment.step(environment.default_action).reward == -5


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        ("(move 2 to 0)", "move 2 to 0"),
        ("Move 2 to 0", "move 2 to 0"),
        ("[2, 1]", "move 2 to 1"),
        ("move 3 to #", "move 3 to 0"),
        ("2 1 and then some", "move 2 to 1"),
        ("move two to 0", None),
        ("move 2", None),
        ("", None),
        ("move ² to 0", None),
    ],
)
def test_a_move_is_parsed_from_two_numbers_in_several_notations(answer, action):
    assert create().match_action(answer) == action


@pytest.mark.parametrize(
    ("view", "description"),
    [
        (
            "text",
            "Current state: Block 1 is on the table. Block 2 is on top of Block 1. Block 3 is on the table.\n"
            "Goal state: Block 1 is on the table. Block 2 is on the table. Block 3 is on the table.",
        ),
        ("1d", "Current representation:\n[0, 1, 0]\n\nGoal representation:\n[0, 0, 0]"),
        (
            "2d_compact",
            "Graphical representation (Current):\n2_\n13\n\nGraphical representation (Goal):\n123",
        ),
        (
            "2d_sparse",
            "Graphical representation (Current):\n _\n|2|\n ¯\n _   _\n|1| |3|\n ¯   ¯\n\n"
            "Graphical representation (Goal):\n _   _   _\n|1| |2| |3|\n ¯   ¯   ¯",
        ),
    ],
)
def test_each_view_has_its_own_description_of_a_state(view, description):
    environment = between((0, 1, 0), (0, 0, 0), view=view)

    assert environment.step("move 9 to 0").observation == description


def test_every_listed_action_is_parsed_as_itself():
    environment = create()

    assert set(environment.actions) == {f"move {a} to {b}" for a, b in product(range(1, 4), range(4)) if a != b}
    assert all(environment.match_action(action) == action for action in environment.actions)


@pytest.mark.parametrize("num_blocks", [2, 3, 5, 9])
def test_an_expert_reaches_every_goal(num_blocks):
    environment = create(numBlocks=num_blocks)
    for seed in range(30):
        environment.reset(seed)
        expert, action, results = environment.expert(), None, []
        while not results or not results[-1].terminated:
            assert expert.thought().endswith(" is next.")
            action = expert.advise(action)
            results.append(environment.step(action))

        assert len(results) <= 2 * num_blocks
        assert all(result.info["action_is_valid"] for result in results)


def test_an_expert_has_no_advice_once_the_goal_is_reached():
    assert between((0, 1), (0, 1)).expert().advise(None) is None
