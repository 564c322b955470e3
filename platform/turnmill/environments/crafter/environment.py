"""Crafter: gather, build, fight and survive in a small world."""

import random
import re
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from turnmill.environments.base import Environment, EnvironmentOptions, StepResult
from turnmill.environments.crafter.game import CrafterGame
from turnmill.environments.crafter.text import describe
from turnmill.environments.parsing import before_answer
from turnmill.environments.registry import register

ACTIONS = {
    "noop": "do nothing",
    "move west": "turn west, and go there if the ground is free",
    "move east": "turn east, and go there if the ground is free",
    "move north": "turn north, and go there if the ground is free",
    "move south": "turn south, and go there if the ground is free",
    "do": "gather, mine, drink, eat or attack what you face",
    "sleep": "sleep until your energy is back; choose a safe place",
    "place stone": "put a stone in front of you; takes 1 stone",
    "place table": "put a table in front of you; takes 2 wood",
    "place furnace": "put a furnace in front of you; takes 4 stone",
    "place plant": "plant a sapling on the grass in front of you; takes 1 sapling",
    "make wood pickaxe": "takes 1 wood, and a table nearby",
    "make stone pickaxe": "takes 1 wood and 1 stone, and a table nearby",
    "make iron pickaxe": "takes 1 wood, 1 coal and 1 iron, and a table and a furnace nearby",
    "make wood sword": "takes 1 wood, and a table nearby",
    "make stone sword": "takes 1 wood and 1 stone, and a table nearby",
    "make iron sword": "takes 1 wood, 1 coal and 1 iron, and a table and a furnace nearby",
}
"""Actions in Crafter's order, with their effects."""

ACHIEVEMENTS = (
    "collect wood", "place table", "eat cow", "collect sapling", "collect drink", "make wood pickaxe",
    "make wood sword", "place plant", "defeat zombie", "collect stone", "place stone", "eat plant", "defeat skeleton",
    "make stone pickaxe", "make stone sword", "wake up", "place furnace", "collect coal", "collect iron",
    "make iron pickaxe", "make iron sword", "collect diamond",
)  # fmt: skip
"""All achievements, from easy to hard."""

_DIAGONAL = re.compile(r"move (north|south) ?(west|east)")
_SEVERAL_STEPS = re.compile(r"(move (?:north|south|west|east)) [0-9]{1,3} steps?")
_INTERACTION = re.compile(r"(?:collect|mine|chop|cut|drink|attack|hit|defeat|eat)(?: [a-z]+){0,3}")
_PARENTHESES = re.compile(r" ?\([^)]*\)")
_SYNONYMS = {
    "make table": "place table",
    "make crafting table": "place table",
    "make furnace": "place furnace",
}

_PLAN_PHRASES = (
    "move west", "move east", "move north", "move south", "do ", "collect ", "drink ", "hit ", "attack ", "sleep",
    "place ", "make ", "craft ", "moving west", "moving east", "moving north", "moving south", "collecting ",
    "drinking ", "hitting ", "attacking ", "sleeping", "placing ", "making ", "crafting ",
)  # fmt: skip
"""What Verlog counts as the length of a plan; one phrase within another counts twice."""

Side = Annotated[int, Field(ge=9, le=256)]


class CrafterOptions(EnvironmentOptions):
    """Size of the world and of the view, and length of episodes."""

    area: list[Side] = Field(default=[64, 64], min_length=2, max_length=2)
    """Columns and rows of the world."""

    view: list[Annotated[int, Field(ge=5, le=31)]] = Field(default=[9, 9], min_length=2, max_length=2)
    """Columns and rows of the view; in images the inventory covers two of the rows."""

    length: int = Field(default=10_000, ge=1)
    """Steps of the game after which an episode ends; one turn takes many steps while the player sleeps."""


@register
class Crafter(Environment):
    """Crafter (Hafner, 2021) with its own rewards: 1 for each new achievement, ±0.1 for health gained or lost."""

    name: ClassVar[str] = "crafter"
    tasks: ClassVar[tuple[str, ...] | None] = ("default",)
    Settings: ClassVar[type[EnvironmentOptions]] = CrafterOptions
    actions = tuple(ACTIONS)
    plan_phrases = _PLAN_PHRASES
    default_action = "noop"

    def __init__(self, task: str | None, max_turns: int, options: CrafterOptions) -> None:
        super().__init__(task, max_turns, options)
        self._game = self._make()
        self._prepared: tuple[int, CrafterGame] | None = None
        self._spare: CrafterGame | None = None
        self._achieved: dict[str, int] = {}
        self._seed = self._num_steps = 0

    def prepare(self, seed: int) -> None:
        """Generate the world of a seed while an episode is played in another one."""
        game = self._spare or self._make()
        self._spare = None
        game.reset(seed=seed)
        self._prepared = (seed, game)

    def reset(self, seed: int) -> str:
        """Start in the world of a seed."""
        if self._prepared is not None and self._prepared[0] == seed:
            self._spare, self._game = self._game, self._prepared[1]
            observation = self._game.observe()
        else:
            observation, _ = self._game.reset(seed=seed)
        self._prepared = None
        self._seed, self._num_steps = seed, 0
        self._achieved = observation["achievements"]
        return describe(observation)

    def step(self, action: str) -> StepResult:
        """Execute one action; if the player falls asleep, also all steps until he wakes up."""
        self._num_steps += 1
        observation, reward, terminated, truncated, _ = self._game.step(self.actions.index(action))
        while observation["sleeping"] and not (terminated or truncated):
            observation, more, terminated, truncated, _ = self._game.step(self.actions.index("noop"))
            reward += more
        self._achieved = observation["achievements"]
        num_achieved = sum(count > 0 for count in self._achieved.values())
        info = {"achievements": float(num_achieved)}
        return StepResult(describe(observation), reward, terminated, truncated, info=info)

    def instruction_prompt(self) -> str:
        """Return the prompt with the actions, the missing achievements and their requirements."""
        actions = "\n".join(f"{action}: {description}" for action, description in ACTIONS.items())
        missing = [name for name in ACHIEVEMENTS if not self._achieved.get(name.replace(" ", "_"))]
        return (
            "You are a player of Crafter, a small world in which you gather, build, fight and stay alive.\n\n"
            f"These are the actions you can take, each with what it does:\n{actions}\n\n"
            f"These achievements are still to be had:\n{', '.join(missing) or 'none'}\n\n"
            "What to know:\n"
            "- Trees give wood, grass now and then a sapling; water quenches thirst; cows and ripe plants feed you.\n"
            "- Stone and coal need a wooden pickaxe, iron a stone one, diamonds an iron one.\n"
            "- Zombies live on grass and hurt more while you sleep; skeletons live in caves and shoot arrows.\n"
            "- Lava kills. Food, drink and energy run out: at zero they take your health.\n\n"
            "Plan before you act: look at what you face, what you have, and what is missing.\n\n"
            "PLAY!"
        )

    def compact_prompt(self) -> str:
        """Return the goal."""
        return "goal: stay alive and achieve all you can"

    def match_action(self, answer: str) -> str | None:
        """Match the first line, normalizing spellings that unambiguously mean an action."""
        words = answer.strip().lower().partition("\n")[0].strip()
        words = words[:-1] if words.endswith((".", ",")) else words
        words = _PARENTHESES.sub("", words.replace("_", " ").replace("-", " ")).strip()
        if several := _SEVERAL_STEPS.fullmatch(words):
            words = several[1]
        if diagonal := _DIAGONAL.fullmatch(words):
            # One of the two at random, but the same one when the episode is replayed.
            words = f"move {random.Random(f'{self._seed}/{self._num_steps}').choice(diagonal.groups())}"
        words = _SYNONYMS.get(words, words)
        if words not in ACTIONS and _INTERACTION.fullmatch(words):
            words = "do"
        return words if words in ACTIONS else None

    def remembered(self, response: str, action: str) -> str:
        """Return the response up to its marker, with the executed action after it, as Verlog shows it later."""
        return f"{before_answer(response)}\nACTION: {action}.\n"

    def render(self) -> np.ndarray:
        """Draw the player's view."""
        return self._game.render()

    def _make(self) -> CrafterGame:
        options = self.options
        return CrafterGame(area=tuple(options.area), view=tuple(options.view), length=options.length)
