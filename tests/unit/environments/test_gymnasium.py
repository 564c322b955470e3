from typing import Any

import numpy as np
import pytest

from turnmill import environments
from turnmill.core.errors import SettingsError

MODULE = "support.gymnasium_environments"


def create(task: str | None, **options: object) -> environments.Environment:
    return environments.create("gymnasium", task, options=options)


def test_a_text_environment_receives_the_text_of_the_response():
    environment = create(f"{MODULE}:CityQuestion", arguments={"answer": "Rome"})

    opening = environment.reset(seed=4)
    wrong = environment.step(environment.match_action(" Paris "))
    right = environment.step(environment.match_action("Rome"))

    assert opening == "seed 4: which city?"
    assert (wrong.observation, wrong.reward, wrong.terminated) == ("Paris it is not", 0.0, False)
    assert (right.reward, right.terminated, right.info) == (1.0, True, {"tries": 2.0})


def test_text_outside_the_action_space_is_not_passed_to_the_environment():
    environment = create(f"{MODULE}:CityQuestion")
    opening = environment.reset(seed=0)

    assert environment.match_action("x" * 100) is None
    assert environment.match_action("") is None
    assert environment.step(environment.default_action).observation == opening


def test_discrete_actions_can_be_given_names():
    environment = create("CliffWalking-v1", actions=["Up", "Right", "Down", "Left"], instruction="Reach the goal.")

    opening = environment.reset(seed=0)
    result = environment.step(environment.match_action("UP"))

    assert (opening, result.observation, result.reward) == ("36", "24", -1.0)
    assert environment.default_action == "up"
    assert environment.instruction_prompt().startswith("Reach the goal.\n\nThe actions you can take are: up, right")


def test_discrete_actions_without_names_are_named_by_their_numbers():
    environment = create("CliffWalking-v1", defaultAction="2")

    assert environment.actions == ("0", "1", "2", "3")
    assert environment.default_action == "2"


def test_one_key_of_an_observation_can_be_selected():
    environment = create(f"{MODULE}:DictObservations", observationKey="text")

    assert environment.reset(seed=0) == "hello"
    with pytest.raises(SettingsError, match=r"has no key 'words'\. It has: text, number"):
        create(f"{MODULE}:DictObservations", observationKey="words").reset(seed=0)


def test_a_picture_is_rendered_if_the_environment_renders_one():
    environment = create("CliffWalking-v1", arguments={"render_mode": "rgb_array"})
    environment.reset(seed=0)

    assert environment.render().dtype == np.uint8
    undrawn = create(f"{MODULE}:DictObservations")
    undrawn.reset(seed=0)
    with pytest.raises(NotImplementedError, match="does not implement render"):
        undrawn.render()


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        (None, {}, "gymnasium needs a task"),
        ("NoSuch-v0", {}, "cannot make 'NoSuch-v0'"),
        ("no_such_package:Some-v0", {}, "cannot make"),
        ("MountainCarContinuous-v0", {}, "only Text and Discrete are supported"),
        (
            "CliffWalking-v1",
            {"actions": ["up", "down"]},
            "2 different names are given",
        ),
        ("CliffWalking-v1", {"defaultAction": "jump"}, "'jump' is not an action"),
        (f"{MODULE}:CityQuestion", {"arguments": {"no": 1}}, "options.arguments"),
    ],
)
def test_an_environment_that_cannot_be_created_is_refused(task: str | None, options: dict[str, Any], message: str):
    with pytest.raises(SettingsError, match=message):
        create(task, **options)
