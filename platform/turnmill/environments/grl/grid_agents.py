"""GRL's agents on maps of symbols: Sokoban and Tetris."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from turnmill.environments.base import Environment
from turnmill.environments.grl.environment_agent import EnvironmentAgent
from turnmill.environments.grl.grid import ActionWords, Grid
from turnmill.environments.grl.registry import register_agent
from turnmill.environments.registry import create
from turnmill.environments.sokoban.environment import SYMBOL_NAMES, Side
from turnmill.environments.tetris import EMPTY, FALLING, FILLED
from turnmill.jobs.settings import Settings

# On their way between processes the keys of a mapping become text.
Lookup = dict[Annotated[int, Field(strict=False)], str]


class GridConfig(Settings):
    """How a map is drawn and what actions are called."""

    grid_lookup: Lookup | None = None
    """Symbols by GRL's numbers of cells."""

    grid_vocab: dict[str, str] | None = None
    """What symbols mean."""

    action_lookup: Lookup
    """Actions by their numbers."""

    view: Literal["map", "spaced"] = "map"
    """`spaced` puts spaces between symbols, for tokenizers of words."""


class GridAgent(EnvironmentAgent):
    """Draws the environment's map in symbols of its own and has words of its own for actions."""

    meanings: ClassVar[dict[str, str]]
    """Of the environment's symbols, in the order of GRL's numbers."""

    def make_environment(self, env_config: dict[str, Any]) -> Environment:
        """The environment, with symbols and actions of the agent's own."""
        config = self.config_of(env_config)
        self.grid = Grid.of(self.meanings, grid_lookup=config.grid_lookup, grid_vocab=config.grid_vocab)
        assert self.environment_name is not None
        options = {"view": config.view} | self.options_of(config)
        environment = create(self.environment_name, None, self.agent_config.max_actions_all_turns, options)
        self.words = ActionWords(config.action_lookup, environment.actions)
        return environment

    def config_of(self, env_config: dict[str, Any]) -> Any:
        """`envConfig`, checked."""
        raise NotImplementedError

    def options_of(self, config: Any) -> dict[str, Any]:
        """The environment's options."""
        raise NotImplementedError

    def match(self, action: str) -> str | None:
        """A word for an action in whatever case, or its number."""
        return self.words.match(action)

    def word_for(self, action: str) -> str:
        """The agent's word for an action of the environment."""
        return next(word for word in self.words.lookup.values() if word.lower() == action)

    def tell(self, observation: str) -> str:
        """The map in the agent's symbols."""
        return self.grid.draw(observation)

    def describe(self) -> str:
        """Symbols, actions and how many of them."""
        config = self.agent_config
        return (
            f"The symbols of the map: {self.grid.legend()}.\n"
            f"Your actions: {self.words.named()}. An answer may hold up to {config.max_actions_per_turn} of them, with "
            f"{config.action_separator} between them, and all answers together {config.max_actions_all_turns}."
        )


class SokobanConfig(GridConfig):
    """`envConfig` of a Sokoban agent; cells are 0 wall, 1 empty, 2 target, 3 box on target, 4 box, 5 player, 6 player
    on target."""

    dim_room: list[Side] = Field(default=[6, 6], min_length=2, max_length=2)
    num_boxes: int = 1
    max_steps: int = 100
    search_depth: int = 100
    action_lookup: Lookup = Field(default={1: "Up", 2: "Down", 3: "Left", 4: "Right"})


@register_agent("sokobanAgent")
class SokobanAgent(GridAgent):
    """Pushes boxes onto targets."""

    environment_name: ClassVar[str] = "sokoban"
    meanings: ClassVar[dict[str, str]] = SYMBOL_NAMES
    system_prompt: ClassVar[str] = "You are a helpful assistant that solves Sokoban puzzles."
    prompt: ClassVar[str] = (
        "You are solving a Sokoban puzzle. You are the player, and every box has to be pushed onto a target. A box "
        "cannot be pulled, and is pushed only where nothing is behind it. Look at the whole room before you answer."
    )

    def config_of(self, env_config: dict[str, Any]) -> SokobanConfig:
        """`envConfig`, checked."""
        return SokobanConfig.model_validate(env_config)

    def options_of(self, config: SokobanConfig) -> dict[str, Any]:
        """Size, boxes and depth."""
        return {
            "size": config.dim_room,
            "numBoxes": config.num_boxes,
            "maxSteps": config.max_steps,
            "searchDepth": config.search_depth,
        }


class TetrisConfig(GridConfig):
    """`envConfig` of a Tetris agent; cells are 0 empty, 1 filled, 2 falling."""

    dim_x: int = 4
    dim_y: int = 4
    box_type: int = 1
    action_lookup: Lookup = Field(default={0: "Left", 1: "Right", 2: "Down"})


@register_agent("tetrisAgent")
class TetrisAgent(GridAgent):
    """Fills a line."""

    environment_name: ClassVar[str] = "tetris"
    meanings: ClassVar[dict[str, str]] = {EMPTY: "empty", FILLED: "filled", FALLING: "falling block"}
    system_prompt: ClassVar[str] = "You are a helpful assistant that plays Tetris."
    prompt: ClassVar[str] = (
        "You are playing a small Tetris. Move the falling block until one line is full; blocks that reach the top end "
        "the game. A block falls only when you move it down, and rests as soon as something is under it."
    )

    def config_of(self, env_config: dict[str, Any]) -> TetrisConfig:
        """`envConfig`, checked."""
        return TetrisConfig.model_validate(env_config)

    def options_of(self, config: TetrisConfig) -> dict[str, Any]:
        """The board and its pieces."""
        return {"width": config.dim_x, "height": config.dim_y, "boxType": config.box_type}
