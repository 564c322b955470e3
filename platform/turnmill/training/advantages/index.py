"""The rows of a trajectory as one sequence, and back.

Axes: R rows, G tokens of a row, K trajectories, L tokens of a whole trajectory.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TrajectoryIndex:
    """Which rows make up each trajectory, in order, and how many tokens each row has."""

    rows_K: tuple[tuple[int, ...], ...]
    lengths_R: tuple[int, ...]

    @classmethod
    def of(cls, keys: Sequence[str], lengths_R: Tensor) -> "TrajectoryIndex":
        """The rows of these keys, which read {task}_{sample}_{row}, in the order in which their trajectories come."""
        rows: dict[str, list[int]] = {}
        for position, key in enumerate(keys):
            rows.setdefault(trajectory_of(key), []).append(position)
        ordered = (tuple(sorted(found, key=lambda row: row_number(keys[row]))) for found in rows.values())
        return cls(tuple(ordered), tuple(int(length) for length in lengths_R.tolist()))

    @property
    def last_rows(self) -> list[int]:
        """The position of each trajectory's last row."""
        return [rows[-1] for rows in self.rows_K]

    @property
    def trajectory_of_row(self) -> Tensor:
        """The trajectory of each row."""
        found = torch.zeros(len(self.lengths_R), dtype=torch.long)
        for trajectory, rows in enumerate(self.rows_K):
            found[list(rows)] = trajectory
        return found

    def join(self, values_RG: Tensor) -> Tensor:
        """The tokens of each trajectory one after the other, shape (trajectories, tokens)."""
        joined = [torch.cat([values_RG[row, : self.lengths_R[row]] for row in rows]) for rows in self.rows_K]
        return torch.nn.utils.rnn.pad_sequence(joined, batch_first=True)

    def split(self, values_KL: Tensor, width: int) -> Tensor:
        """The opposite of `join`, shape (rows, width)."""
        values_RG = values_KL.new_zeros(len(self.lengths_R), width)
        for trajectory, rows in enumerate(self.rows_K):
            start = 0
            for row in rows:
                length = self.lengths_R[row]
                values_RG[row, :length] = values_KL[trajectory, start : start + length]
                start += length
        return values_RG


def trajectory_of(key: str) -> str:
    """Which trajectory a row belongs to; keys read {task}_{sample}_{row}."""
    return key.rsplit("_", 1)[0]


def group_of(key: str) -> str:
    """Which task a row belongs to."""
    return key.rsplit("_", 2)[0]


def row_number(key: str) -> int:
    """The place of a row in its trajectory."""
    return int(key.rsplit("_", 1)[1])
