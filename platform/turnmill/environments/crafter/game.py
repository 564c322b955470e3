"""Crafter behind gymnasium's interface: deterministic by its seed, and drawn only on request."""

from collections.abc import Iterable
from typing import Any, TypedDict

import crafter
import gymnasium
import numpy as np


class Observation(TypedDict):
    """The player's view and state."""

    surroundings: list[tuple[str, int, int]]
    """Name, steps to the east and steps to the south of every cell in view but the player's own."""

    facing: str | None
    """Name of the cell ahead; None at the edge of the world."""

    inventory: dict[str, int]
    """Items, and the vitals health, food, drink and energy."""

    achievements: dict[str, int]
    """Number of times that each achievement was unlocked."""

    sleeping: bool
    dead: bool


class _DeterministicCrafter(crafter.Env):
    """Crafter without differences between processes, and without an image at every step."""

    def _obs(self) -> None:
        """Draw no image: it takes time, and at night random numbers of the game's generator."""

    def _balance_chunk(self, chunk: object, objs: Iterable[Any]) -> None:
        # The order of a set of objects depends on their addresses.
        super()._balance_chunk(chunk, sorted(objs, key=lambda creature: tuple(creature.pos)))


class CrafterGame(gymnasium.Env[Observation, int]):
    """One game of Crafter; observations are symbolic."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (gymnasium's own form)
    render_mode = "rgb_array"

    def __init__(self, area: tuple[int, int] = (64, 64), view: tuple[int, int] = (9, 9), length: int = 10_000) -> None:
        self._game = _DeterministicCrafter(area=area, view=view, size=(view[0] * 32, view[1] * 32), length=length)
        self._names = _material_names(self._game)
        # Observations are made from the map: Crafter's own semantic view of the whole world is not needed.
        self._game._sem_view = lambda: None
        self.action_space = gymnasium.spaces.Discrete(len(self._game.action_names))
        self.actions: list[str] = list(self._game.action_names)

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Observation, dict[str, object]]:
        """Generate the world of a seed."""
        super().reset(seed=seed)
        if seed is not None:
            self._game._seed, self._game._episode = seed, 0
        self._game.reset()
        return self.observe(), {}

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, object]]:
        """Execute one action; the player's death terminates the game, its length truncates it."""
        _, reward, done, info = self._game.step(action)
        dead = self._game._player.health <= 0
        return self.observe(), float(reward), dead, bool(done) and not dead, {"achievements": info["achievements"]}

    def render(self) -> np.ndarray:
        """Draw the player's view without changing the state of the game's random generator."""
        rng = self._game._world.random
        state = rng.get_state()
        picture: np.ndarray = self._game.render()
        rng.set_state(state)
        return picture

    def observe(self) -> Observation:
        """Return the present observation."""
        player = self._game._player
        return {
            "surroundings": self._surroundings(),
            "facing": self._facing(),
            "inventory": dict(player.inventory),
            "achievements": dict(player.achievements),
            "sleeping": bool(player.sleeping),
            "dead": bool(player.health <= 0),
        }

    def _surroundings(self) -> list[tuple[str, int, int]]:
        world, player = self._game._world, self._game._player
        across, down = (int(number) // 2 for number in self._game._local_view._grid)
        x, y = (int(number) for number in player.pos)
        west, north = max(0, x - across), max(0, y - down)
        cells = world._mat_map[west : x + across + 1, north : y + down + 1]
        visible = {
            (west + i, north + j): self._names[kind]
            for i, row in enumerate(cells.tolist())
            for j, kind in enumerate(row)
        }
        for thing in world.objects:
            if tuple(thing.pos) in visible:
                visible[tuple(thing.pos)] = type(thing).__name__.lower()
        del visible[x, y]
        return [(name, i - x, j - y) for (i, j), name in visible.items()]

    def _facing(self) -> str | None:
        player = self._game._player
        material, thing = self._game._world[player.pos + np.array(player.facing)]
        return material if thing is None else type(thing).__name__.lower()


def _material_names(game: crafter.Env) -> list[str]:
    numbers = game._world._mat_ids
    return [str(name) for name, _ in sorted(numbers.items(), key=lambda item: item[1])]
