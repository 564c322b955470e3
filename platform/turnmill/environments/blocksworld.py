"""Blocksworld: move blocks one by one until they stand as the goal says."""

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
"""What each block stands on, block 1 first: another block's number, or the table."""

SOLVED_REWARD = 10.0
MOVE_REWARD = -1.0
UNREADABLE_REWARD = -5.0
UNREADABLE = ""
"""The action of an answer that names no move."""

# In GRL's order, so that a seed means the same pair of states.
_STATES: dict[int, str] = {
    2: "20 00 01",
    3: "001 030 201 002 000 310 200 302 012 300 230 010 031",
}
_IGNORED = re.compile(r"[\[\](),]|move|to", re.IGNORECASE)
_NUMBER = re.compile(r"-?[0-9]{1,4}")


class BlocksworldOptions(EnvironmentOptions):
    """How many blocks, and how they are told."""

    num_blocks: int = Field(default=3, ge=2, le=9)
    """Blocks; with 2 and 3 seeds mean GRL's pairs of states."""

    view: Literal["text", "1d", "2d_sparse", "2d_compact"] = "text"
    """`text` tells every block in a sentence, `1d` a list of what each stands on, the others draw the stacks."""


@register
class Blocksworld(Environment):
    """From one state of stacked blocks to another."""

    name: ClassVar[str] = "blocksworld"
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
        """Set up the pair of states that a seed stands for."""
        self.state, self.goal = _pair(seed, self.num_blocks)
        return self._tell()

    def step(self, action: str) -> StepResult:
        """Move a block, if nothing is on it or on where it goes."""
        if action == UNREADABLE:
            return StepResult(self._tell(), UNREADABLE_REWARD, info=_info())
        _, block, _, onto = action.split()
        valid = self.is_possible(int(block), int(onto))
        if valid:
            self.state = (*self.state[: int(block) - 1], int(onto), *self.state[int(block) :])
        solved = self.state == self.goal
        return StepResult(
            self._tell(),
            SOLVED_REWARD if solved else MOVE_REWARD,
            terminated=solved,
            info=_info(read=True, valid=valid, solved=solved),
        )

    def instruction_prompt(self) -> str:
        """Explain the blocks, the states and the form of a move."""
        return (
            f"You move {self.num_blocks} numbered blocks, one at a time, until they stand as the goal says.\n\n"
            "A block can be moved when no other block is on it: to the table, or onto a block with nothing on it.\n\n"
            'An action has the form "move X to Y": X is the block you move, Y the block it goes onto, or 0 for the '
            'table. "move 2 to 0" puts block 2 on the table.'
        )

    def compact_prompt(self) -> str:
        """State the form of a move."""
        return "goal: move X to Y"

    def match_action(self, answer: str) -> str | None:
        """The first two numbers of `move X to Y`, with or without brackets; `#` is the table."""
        words = _IGNORED.sub(" ", answer).replace("#", str(TABLE)).split()
        if len(words) < 2 or not all(_NUMBER.fullmatch(word) for word in words[:2]):
            return None
        return f"move {int(words[0])} to {int(words[1])}"

    def expert(self) -> "BlocksworldExpert":
        """Who plays this well, for a policy to imitate."""
        return BlocksworldExpert(self)

    def is_possible(self, block: int, onto: int) -> bool:
        """Whether a block can be moved there."""
        blocks = range(1, self.num_blocks + 1)
        return (
            block in blocks
            and (onto == TABLE or onto in blocks)
            and block != onto
            and block not in self.state
            and (onto == TABLE or onto not in self.state)
        )

    def _tell(self) -> str:
        if self.view == "text":
            return f"Current state: {_sentences(self.state)}\nGoal state: {_sentences(self.goal)}"
        if self.view == "1d":
            return f"Current representation:\n{list(self.state)}\n\nGoal representation:\n{list(self.goal)}"
        draw = _draw_boxes if self.view == "2d_sparse" else _draw_digits
        current, goal = "\n".join(draw(self.state)), "\n".join(draw(self.goal))
        return f"Graphical representation (Current):\n{current}\n\nGraphical representation (Goal):\n{goal}"


class BlocksworldExpert:
    """Builds what can be built, and otherwise clears what is in the way onto the table."""

    def __init__(self, environment: Blocksworld) -> None:
        self.environment = environment

    def advise(self, last_action: str | None) -> str | None:
        """A move that some shortest plan, or nearly one, goes on with."""
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
        """Where the block that comes next belongs."""
        block = (self.advise(None) or "move 0").split()[1]
        return f"Block {block} is next."

    def phrases(self) -> Iterator[str]:
        """Every word of a prompt or an answer, each in its place in a line."""
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
    """The blocks as they stand on each other, from the table up."""
    above = {onto: block for block, onto in enumerate(state, 1) if onto != TABLE}
    standing = []
    for block, onto in enumerate(state, 1):
        if onto == TABLE:
            stack = [block]
            while stack[-1] in above:
                stack.append(above[stack[-1]])
            standing.append(stack)
    return standing


def _pair(seed: int, num_blocks: int) -> tuple[State, State]:
    if num_blocks in _STATES:
        states = [tuple(map(int, digits)) for digits in _STATES[num_blocks].split()]
        pairs = [(start, goal) for start, goal in product(states, states) if start != goal]
        return pairs[seed % len(pairs)]
    chance = random.Random(seed)
    start = goal = _random_state(chance, num_blocks)
    while goal == start:
        goal = _random_state(chance, num_blocks)
    return start, goal


def _random_state(chance: random.Random, num_blocks: int) -> State:
    """Blocks in any order, each on the one before it or on the table."""
    order = chance.sample(range(1, num_blocks + 1), num_blocks)
    stands_on = {block: below if chance.random() < 0.5 else TABLE for below, block in pairwise(order)}
    return tuple(stands_on.get(block, TABLE) for block in range(1, num_blocks + 1))


def _sentences(state: State) -> str:
    places = ("on the table" if onto == TABLE else f"on top of Block {onto}" for onto in state)
    return " ".join(f"Block {block} is {place}." for block, place in enumerate(places, 1))


def _draw_digits(state: State) -> list[str]:
    standing = stacks(state)
    return [
        "".join(str(stack[level]) if level < len(stack) else "_" for stack in standing)
        for level in reversed(range(max(map(len, standing))))
    ]


def _draw_boxes(state: State) -> list[str]:
    standing = stacks(state)
    lines = []
    for level in reversed(range(max(map(len, standing)))):
        for part in (" _  ", "|{}| ", " ¯  "):
            drawn = (part.format(stack[level]) if level < len(stack) else "    " for stack in standing)
            lines.append("".join(drawn).rstrip())
    return lines


def _info(*, read: bool = False, valid: bool = False, solved: bool = False) -> dict[str, float]:
    return {"success": float(solved), "action_is_effective": float(read), "action_is_valid": float(valid)}
