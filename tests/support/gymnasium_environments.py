"""Small environments in gymnasium's interface."""

from typing import Any

import gymnasium


class CityQuestion(gymnasium.Env[str, str]):
    """Asks for a city until the answer is right."""

    observation_space = gymnasium.spaces.Text(200)
    action_space = gymnasium.spaces.Text(20)

    def __init__(self, answer: str = "Oslo") -> None:
        self.answer = answer
        self.num_tries = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Return the question."""
        super().reset(seed=seed)
        self.num_tries = 0
        return f"seed {seed}: which city?", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Compare the action with the answer."""
        self.num_tries += 1
        right = action == self.answer
        return (
            f"{action} it is{'' if right else ' not'}",
            float(right),
            right,
            False,
            {"tries": self.num_tries, "x": "y"},
        )


class DictObservations(gymnasium.Env[dict[str, Any], int]):
    """Observations that are dictionaries of a text and a number."""

    observation_space = gymnasium.spaces.Dict({})
    action_space = gymnasium.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the first observation."""
        super().reset(seed=seed)
        return {"text": "hello", "number": 1}, {}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Return the text and the action."""
        return {"text": "hello", "number": action}, 0.0, False, False, {}
