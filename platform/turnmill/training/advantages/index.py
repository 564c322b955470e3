"""The rows of a trajectory as one sequence, and back.

Axes: R rows, G tokens of a row, K trajectories, L tokens of a whole trajectory.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class TrajectoryIndex:
    """The rows of each trajectory, in order, and the number of tokens of each row."""

    rows_K: tuple[tuple[int, ...], ...]
    lengths_R: tuple[int, ...]

    @classmethod
    def of(cls, keys: Sequence[str], lengths_R: Tensor) -> "TrajectoryIndex":
        """Index rows by their keys, {task}_{sample}_{row}; trajectories are in the order of their first rows."""
        trajectory_R, lengths = [*map(trajectory_of, keys)], tuple(map(int, lengths_R.tolist()))
        if len(set(trajectory_R)) == len(keys):
            return cls(tuple(zip(range(len(keys)))), lengths)
        rows: dict[str, list[int]] = {}
        for position, trajectory in enumerate(trajectory_R):
            rows.setdefault(trajectory, []).append(position)
        for found in rows.values():
            if len(found) > 1:
                found.sort(key=lambda row: row_number(keys[row]))
        return cls(tuple(map(tuple, rows.values())), lengths)

    @property
    def last_rows(self) -> list[int]:
        """Position of each trajectory's last row."""
        return [rows[-1] for rows in self.rows_K]

    @cached_property
    def trajectory_of_row(self) -> Tensor:
        """Number of each row's trajectory, shape (rows,)."""
        found = [0] * len(self.lengths_R)
        for trajectory, rows in enumerate(self.rows_K):
            for row in rows:
                found[row] = trajectory
        return torch.tensor(found, dtype=torch.long)

    @cached_property
    def _places(self) -> tuple[Tensor, Tensor]:
        """Number of each row's trajectory, and the row's place in it, both of shape (rows,)."""
        place_R = [0] * len(self.lengths_R)
        for rows in self.rows_K:
            for place, row in enumerate(rows):
                place_R[row] = place
        return self.trajectory_of_row, torch.tensor(place_R)

    def join(self, values_RG: Tensor) -> Tensor:
        """Concatenate the tokens of each trajectory's rows, shape (trajectories, tokens)."""
        if max(self.lengths_R) == 1:
            trajectory_R, place_R = self._places
            values_KL = values_RG.new_zeros(len(self.rows_K), int(place_R.max()) + 1)
            values_KL[trajectory_R, place_R] = values_RG[:, 0]
            return values_KL
        width = max(sum(self.lengths_R[row] for row in rows) for rows in self.rows_K)
        values_KL = values_RG.new_zeros(len(self.rows_K), width)
        for values_L, rows in zip(values_KL.unbind(), self.rows_K, strict=True):
            start = 0
            for row in rows:
                length = self.lengths_R[row]
                values_L[start : start + length] = values_RG[row, :length]
                start += length
        return values_KL

    def split(self, values_KL: Tensor, width: int) -> Tensor:
        """Undo `join`, shape (rows, width)."""
        if max(self.lengths_R) == 1 == width:
            trajectory_R, place_R = self._places
            return values_KL[trajectory_R, place_R][:, None]
        values_RG = values_KL.new_zeros(len(self.lengths_R), width)
        for trajectory, rows in enumerate(self.rows_K):
            start = 0
            for row in rows:
                length = self.lengths_R[row]
                values_RG[row, :length] = values_KL[trajectory, start : start + length]
                start += length
        return values_RG


def trajectory_of(key: str) -> str:
    """Return the trajectory of a row, {task}_{sample}, from its key."""
    return key.rsplit("_", 1)[0]


def group_of(key: str) -> str:
    """Return the task of a row from its key; trajectories of the same task are a group."""
    return key.rsplit("_", 2)[0]


def row_number(key: str) -> int:
    """Return the position of a row in its trajectory, from its key."""
    return int(key.rsplit("_", 1)[1])


def groups_with_different_rewards(groups_K: Iterable[str], rewards_K: Iterable[float]) -> set[str]:
    """Return the groups whose trajectories differ in reward, from the group and the reward of each."""
    first: dict[str, float] = {}
    pairs = zip(groups_K, rewards_K, strict=True)
    return {group for group, reward in pairs if first.setdefault(group, reward) != reward}
