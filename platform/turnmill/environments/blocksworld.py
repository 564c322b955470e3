"""Blocksworld: move blocks one by one until they are stacked like the goal."""

import random
import re
from collections.abc import Iterator
from itertools import pairwise, product
from typing import ClassVar, Literal

from pydantic import Field

from turnmill.environments.base import Environment, EnvironmentOptions, StepResult
from turnmill.environments.registry import register

TABLE = 0
State = tuple[int, ...]
"""Support of each block, block 1 first: another block's number, or TABLE."""

SOLVED_REWARD = 10.0
MOVE_REWARD = -1.0
UNREADABLE_REWARD = -5.0
UNREADABLE = ""
"""Action of an answer without a move."""

# In GRL's order, so that a seed selects the same pair of states.
_STATES: dict[int, str] = {
    2: "20 00 01",
    3: "001 030 201 002 000 310 200 302 012 300 230 010 031",
}
_IGNORED = re.compile(r"[\[\](),]|move|to", re.IGNORECASE)
_NUMBER = re.compile(r"-?[0-9]{1,4}")


class BlocksworldOptions(EnvironmentOptions):
    """Number of blocks, and form of observations."""

    num_blocks: int = Field(default=3, ge=2, le=9)
    """Blocks; with 2 and 3 a seed selects the same pair of states as in GRL."""

    view: Literal["text", "1d", "2d_sparse", "2d_compact"] = "text"
    """Form of observations: `text` has a sentence per block, `1d` a list of what each block stands on; the others draw
    the stacks."""


@register
class Blocksworld(Environment):
    """Blocksworld, with GRL's states, views and rewards."""

    name: ClassVar[str] = "blocksworld"
    tasks: ClassVar[tuple[str, ...] | None] = ()
    Settings: ClassVar[type[EnvironmentOptions]] = BlocksworldOptions
    default_action = UNREADABLE

    def __init__(self, task: str | None, max_turns: int, options: BlocksworldOptions) -> None:
        super().__init__(task, max_turns, options)
        self.num_blocks, self.view = options.num_blocks, options.view
        blocks = range(1, self.num_blocks + 1)
        self.actions = tuple(
            f"move {block} to {onto}" for block in blocks for onto in (TABLE, *blocks) if block != onto
        )
        self.state: State = ()
        self.goal: State = ()

    def reset(self, seed: int) -> str:
        """Set up the initial state and the goal that the seed selects."""
        self.state, self.goal = _select_states(seed, self.num_blocks)
        return self._observation()

    def step(self, action: str) -> StepResult:
        """Move a block, if it and its destination are clear."""
        if action == UNREADABLE:
            return StepResult(self._observation(), UNREADABLE_REWARD, info=_info())
        _, block, _, onto = action.split()
        valid = self.is_possible(int(block), int(onto))
        if valid:
            self.state = (*self.state[: int(block) - 1], int(onto), *self.state[int(block) :])
        solved = self.state == self.goal
        return StepResult(
            self._observation(),
            SOLVED_REWARD if solved else MOVE_REWARD,
            terminated=solved,
            info=_info(read=True, valid=valid, solved=solved),
        )

    def instruction_prompt(self) -> str:
        """Return the prompt with the rules and the form of a move."""
        return (
            f"You move {self.num_blocks} numbered blocks, one at a time, until they stand as the goal says.\n\n"
            "A block can be moved when no other block is on it: to the table, or onto a block with nothing on it.\n\n"
            'An action has the form "move X to Y": X is the block you move, Y the block it goes onto, or 0 for the '
            'table. "move 2 to 0" puts block 2 on the table.'
        )

    def compact_prompt(self) -> str:
        """Return the form of a move."""
        return "goal: move X to Y"

    def match_action(self, answer: str) -> str | None:
        """Read the first two numbers of `move X to Y`, with or without brackets; `#` is the table."""
        words = _IGNORED.sub(" ", answer).replace("#", str(TABLE)).split()
        if len(words) < 2 or not all(_NUMBER.fullmatch(word) for word in words[:2]):
            return None
        return f"move {int(words[0])} to {int(words[1])}"

    def expert(self) -> "BlocksworldExpert":
        """Return an expert for warm starts."""
        return BlocksworldExpert(self)

    def is_possible(self, block: int, onto: int) -> bool:
        """Return whether a block can be moved onto another one or the table."""
        blocks = range(1, self.num_blocks + 1)
        return (
            block in blocks
            and (onto == TABLE or onto in blocks)
            and block != onto
            and block not in self.state
            and (onto == TABLE or onto not in self.state)
        )

    def _observation(self) -> str:
        if self.view == "text":
            return f"Current state: {_sentences(self.state)}\nGoal state: {_sentences(self.goal)}"
        if self.view == "1d":
            return f"Current representation:\n{list(self.state)}\n\nGoal representation:\n{list(self.goal)}"
        draw = _draw_boxes if self.view == "2d_sparse" else _draw_digits
        current, goal = "\n".join(draw(self.state)), "\n".join(draw(self.goal))
        return f"Graphical representation (Current):\n{current}\n\nGraphical representation (Goal):\n{goal}"


class BlocksworldExpert:
    """Moves blocks to their goal position where possible, and otherwise onto the table to clear the way."""

    def __init__(self, environment: Blocksworld) -> None:
        self.environment = environment

    def advise(self, last_action: str | None) -> str | None:
        """Return the next move of a shortest or nearly shortest plan, or None if the goal is reached."""
        environment = self.environment
        misplaced = [block for block in range(1, environment.num_blocks + 1) if not self._is_placed(block)]
        for block in misplaced:
            onto = environment.goal[block - 1]
            if (onto == TABLE or self._is_placed(onto)) and environment.is_possible(block, onto):
                return f"move {block} to {onto}"
        for block in misplaced:
            if environment.state[block - 1] != TABLE and environment.is_possible(block, TABLE):
                return f"move {block} to {TABLE}"
        return None

    def thought(self) -> str:
        """Return the block that is moved next."""
        block = (self.advise(None) or "move 0").split()[1]
        return f"Block {block} is next."

    def phrases(self) -> Iterator[str]:
        """Yield texts that contain every word of prompts, observations and answers, with the space before it."""
        yield self.environment.compact_prompt()
        for number in range(self.environment.num_blocks + 1):
            yield f"Current state: Block {number} is on the table."
            yield f"Goal state: Block {number} is on top of Block {number}."
            yield f"Block {number} is next."
        for action in self.environment.actions:
            yield f" {action}"

    def _is_placed(self, block: int) -> bool:
        onto = self.environment.goal[block - 1]
        return self.environment.state[block - 1] == onto and (onto == TABLE or self._is_placed(onto))


def stacks(state: State) -> list[list[int]]:
    """Return the stacks of a state, each from the table up."""
    above = {onto: block for block, onto in enumerate(state, 1) if onto != TABLE}
    found = []
    for block, onto in enumerate(state, 1):
        if onto == TABLE:
            stack = [block]
            while stack[-1] in above:
                stack.append(above[stack[-1]])
            found.append(stack)
    return found


def _select_states(seed: int, num_blocks: int) -> tuple[State, State]:
    if num_blocks in _STATES:
        states = [tuple(map(int, digits)) for digits in _STATES[num_blocks].split()]
        pairs = [(start, goal) for start, goal in product(states, states) if start != goal]
        return pairs[seed % len(pairs)]
    rng = random.Random(seed)
    start = goal = _random_state(rng, num_blocks)
    while goal == start:
        goal = _random_state(rng, num_blocks)
    return start, goal


def _random_state(rng: random.Random, num_blocks: int) -> State:
    """Draw a state: blocks in random order, each on the one before it or on the table."""
    order = rng.sample(range(1, num_blocks + 1), num_blocks)
    stands_on = {block: below if rng.random() < 0.5 else TABLE for below, block in pairwise(order)}
    return tuple(stands_on.get(block, TABLE) for block in range(1, num_blocks + 1))


def _sentences(state: State) -> str:
    positions = ("on the table" if onto == TABLE else f"on top of Block {onto}" for onto in state)
    return " ".join(f"Block {block} is {position}." for block, position in enumerate(positions, 1))


def _draw_digits(state: State) -> list[str]:
    columns = stacks(state)
    return [
        "".join(str(stack[level]) if level < len(stack) else "_" for stack in columns)
        for level in reversed(range(max(map(len, columns))))
    ]


def _draw_boxes(state: State) -> list[str]:
    columns = stacks(state)
    lines = []
    for level in reversed(range(max(map(len, columns)))):
        for part in (" _  ", "|{}| ", " ¯  "):
            drawn = (part.format(stack[level]) if level < len(stack) else "    " for stack in columns)
            lines.append("".join(drawn).rstrip())
    return lines


def _info(*, read: bool = False, valid: bool = False, solved: bool = False) -> dict[str, float]:
    return {"success": float(solved), "action_is_effective": float(read), "action_is_valid": float(valid)}
