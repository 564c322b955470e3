"""Crafter behind gymnasium's interface: seeds that repeat, no picture that nobody asked for."""

from typing import Any

import crafter
import gymnasium
import numpy as np


class _Repeatable(crafter.Env):
    """Crafter, without what differs from process to process and without drawing every step."""

    def _obs(self) -> None:
        """No picture: at night it would cost draws of the game's generator as well as time."""

    def _balance_chunk(self, chunk: Any, objs: Any) -> None:
        # A set of objects has the order of their addresses.
        super()._balance_chunk(chunk, sorted(objs, key=lambda creature: tuple(creature.pos)))


class CrafterGame(gymnasium.Env[dict[str, Any], int]):
    """One game; the observation is what `info` of Crafter holds and a description needs."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (gymnasium's own form)
    render_mode = "rgb_array"

    def __init__(self, area: tuple[int, int] = (64, 64), view: tuple[int, int] = (9, 9), length: int = 10_000) -> None:
        self._game = _Repeatable(area=area, view=view, size=(view[0] * 32, view[1] * 32), length=length)
        self._names = _names(self._game)
        # Described from the map alone; Crafter's own view of all of it is not looked at.
        self._game._sem_view = lambda: None
        self.action_space = gymnasium.spaces.Discrete(len(self._game.action_names))
        self.actions: list[str] = list(self._game.action_names)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict]:
        """Make the world of a seed."""
        super().reset(seed=seed)
        if seed is not None:
            self._game._seed, self._game._episode = seed, 0
        self._game.reset()
        return self.observe(), {}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """One action; a death terminates, the length truncates."""
        _, reward, done, info = self._game.step(action)
        dead = self._game._player.health <= 0
        return self.observe(), float(reward), dead, bool(done) and not dead, {"achievements": info["achievements"]}

    def render(self) -> np.ndarray:
        """Draw what the player sees; the game goes on as if nobody had looked."""
        chance = self._game._world.random
        state = chance.get_state()
        picture: np.ndarray = self._game.render()
        chance.set_state(state)
        return picture

    def observe(self) -> dict[str, Any]:
        """What the player sees, has and is."""
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
        """Name, steps to the east and steps to the south of every cell in view but the player's own."""
        world, player = self._game._world, self._game._player
        across, down = (int(number) // 2 for number in self._game._local_view._grid)
        x, y = (int(number) for number in player.pos)
        west, north = max(0, x - across), max(0, y - down)
        cells = world._mat_map[west : x + across + 1, north : y + down + 1]
        seen = {
            (west + i, north + j): self._names[kind]
            for i, row in enumerate(cells.tolist())
            for j, kind in enumerate(row)
        }
        for thing in world.objects:
            if tuple(thing.pos) in seen:
                seen[tuple(thing.pos)] = type(thing).__name__.lower()
        del seen[x, y]
        return [(name, i - x, j - y) for (i, j), name in seen.items()]

    def _facing(self) -> str | None:
        """What is one step ahead; None at the edge of the world."""
        player = self._game._player
        material, thing = self._game._world[player.pos + np.array(player.facing)]
        return material if thing is None else type(thing).__name__.lower()


def _names(game: crafter.Env) -> list[str]:
    numbers = game._world._mat_ids
    return [str(name) for name, _ in sorted(numbers.items(), key=lambda item: item[1])]
