"""GRL's agents on maps of symbols: Sokoban and Tetris."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from turnmill.environments.base import Environment
from turnmill.environments.grl.environment_agent import EnvironmentAgent
from turnmill.environments.grl.grid import ActionNames, GridSymbols
from turnmill.environments.grl.registry import register_agent
from turnmill.environments.registry import create
from turnmill.environments.sokoban.environment import SYMBOL_NAMES, Side
from turnmill.environments.tetris import EMPTY, FALLING, FILLED
from turnmill.jobs.settings import Settings

# JSON between processes turns the keys of a mapping into text.
Lookup = dict[Annotated[int, Field(strict=False)], str]


class GridConfig(Settings):
    """Symbols of a map and names of actions."""

    grid_lookup: Lookup | None = None
    """Symbols by GRL's numbers of cells."""

    grid_vocab: dict[str, str] | None = None
    """Meanings by symbols."""

    action_lookup: Lookup
    """Names of actions by their numbers."""


class GridAgent(EnvironmentAgent):
    """Base class of agents that show the environment's map in symbols of their own and name actions themselves."""

    meanings: ClassVar[dict[str, str]]
    """Meanings of the environment's symbols, in the order of GRL's numbers."""

    def make_environment(self, env_config: dict[str, Any]) -> Environment:
        """Create the environment, with the agent's symbols and action names."""
        config = self.config_of(env_config)
        self.grid = GridSymbols.of(self.meanings, grid_lookup=config.grid_lookup, grid_vocab=config.grid_vocab)
        assert self.environment_name is not None
        options = {"view": config.view} | self.options_of(config)
        environment = create(self.environment_name, None, self.agent_config.max_actions_all_turns, options)
        self.action_names = ActionNames(config.action_lookup, environment.actions)
        return environment

    def config_of(self, env_config: dict[str, Any]) -> Any:
        """Validate `envConfig`."""
        raise NotImplementedError

    def options_of(self, config: Any) -> dict[str, object]:
        """Return the environment's options."""
        raise NotImplementedError

    def match(self, action: str) -> str | None:
        """Return the environment's action for a name in any case, or for a number."""
        return self.action_names.match(action)

    def word_for(self, action: str) -> str:
        """Return the agent's name of one of the environment's actions."""
        return next(name for name in self.action_names.lookup.values() if name.lower() == action)

    def tell(self, observation: str) -> str:
        """Return the map in the agent's symbols."""
        return self.grid.translate(observation)

    def legend(self) -> str:
        """Return the line that explains the symbols."""
        return f"The symbols of the map: {self.grid.legend()}.\n"

    def describe(self) -> str:
        """Return the symbols, the actions and their limits."""
        config = self.agent_config
        return (
            f"{self.legend()}Your actions: {self.action_names.listed()}. An answer may hold up to "
            f"{config.max_actions_per_turn} of them, with {config.action_separator} between them, and all answers "
            f"together {config.max_actions_all_turns}."
        )


class SokobanConfig(GridConfig):
    """`envConfig` of a Sokoban agent; cells are 0 wall, 1 empty, 2 target, 3 box on target, 4 box, 5 player, 6 player
    on target."""

    dim_room: list[Side] = Field(default=[6, 6], min_length=2, max_length=2)
    num_boxes: int = 1
    max_steps: int = 100
    search_depth: int = 100
    view: Literal["map", "spaced", "words"] = "map"
    """`spaced` separates the symbols with spaces, for word tokenizers; `words` describes the room without a map."""

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
        """Validate `envConfig`."""
        return SokobanConfig.model_validate(env_config)

    def options_of(self, config: SokobanConfig) -> dict[str, object]:
        """Return size, boxes and depth."""
        return {
            "size": config.dim_room,
            "numBoxes": config.num_boxes,
            "maxSteps": config.max_steps,
            "searchDepth": config.search_depth,
        }

    @property
    def has_map(self) -> bool:
        """Return whether states are maps of symbols."""
        return self.env_config.get("view") != "words"

    def tell(self, observation: str) -> str:
        """Return the map in the agent's symbols, or the words."""
        return super().tell(observation) if self.has_map else observation

    def legend(self) -> str:
        """Return the line that explains the symbols of a map."""
        return super().legend() if self.has_map else ""


class TetrisConfig(GridConfig):
    """`envConfig` of a Tetris agent; cells are 0 empty, 1 filled, 2 falling."""

    dim_x: int = 4
    dim_y: int = 4
    box_type: int = 1
    view: Literal["map", "spaced"] = "map"
    """`spaced` separates the symbols with spaces, for word tokenizers."""

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
        """Validate `envConfig`."""
        return TetrisConfig.model_validate(env_config)

    def options_of(self, config: TetrisConfig) -> dict[str, object]:
        """Return the size of the board and its pieces."""
        return {"width": config.dim_x, "height": config.dim_y, "boxType": config.box_type}
