"""Reward functions of verl's and GRL's scripts: they get the batch of a step, and return a reward for each token.

Axes: R rows, G response tokens, L tokens of a row.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from verl import DataProto

from turnmill.core.errors import SettingsError
from turnmill.core.lookup import import_object
from turnmill.rollout.grl.episode_summary import GrlEpisodeSummary

Function = Callable[..., object]

REWARDS = "reward_tensor"
"""Name of the rewards if a function returns a mapping, as verl's reward managers do."""


@dataclass(frozen=True)
class RewardFunction:
    """A function of the user's own that decides the rewards."""

    place: str
    function: Function

    @classmethod
    def load(cls, path: str, field: str) -> "RewardFunction":
        """Import `package.module:name`. Raises SettingsError if there is no such function."""
        place = f"spec.agent.{field} ({path!r})"
        try:
            found = import_object(path)
        except ImportError as error:
            raise SettingsError(f"{place} cannot be imported: {error}. Give package.module:name.") from error
        if not callable(found):
            raise SettingsError(f"{place} is no function. Give package.module:name of one.")
        return cls(place, found)

    def rewards(self, batch: DataProto) -> Tensor:
        """Return the reward of each token but the first, shape (R, L - 1). Raises SettingsError for another shape."""
        takes = inspect.signature(self.function).parameters.values()
        named = any(each.name == "return_dict" or each.kind is each.VAR_KEYWORD for each in takes)
        found = self.function(batch, return_dict=True) if named else self.function(batch)
        if isinstance(found, Mapping):
            found = found.get(REWARDS)
        shape = tuple(batch.batch["responses"].shape)
        if not isinstance(found, Tensor) or tuple(found.shape) != shape:
            given = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise SettingsError(
                f"{self.place} returned {given}. Return a tensor of the shape of batch.batch['responses'], {shape}, or "
                f"a mapping with it as {REWARDS}."
            )
        return found.float()


@dataclass(frozen=True)
class Conversations:
    """The rows of a step, with the tokens of the prompt and of the response."""

    prompts_R: Sequence[Tensor]
    responses_R: Sequence[Tensor]
    masks_R: Sequence[Tensor]
    scores_R: Sequence[Mapping[int, float]]
    """Scores of the agents by response token."""

    summaries_R: Sequence[GrlEpisodeSummary]
    """Summary of each row's episode."""

    def batch(self, pad: int) -> DataProto:
        """Return the rows in GRL's columns: conversations padded on the left, rewards from the second token on."""
        rows = [torch.cat(parts) for parts in zip(self.prompts_R, self.responses_R, strict=True)]
        length = max(map(len, rows))
        ids_RL = torch.full((len(rows), length), pad, dtype=torch.long)
        attention_RL, loss_RL, scores_RL = torch.zeros_like(ids_RL), torch.zeros_like(ids_RL), torch.zeros(ids_RL.shape)
        for number, row in enumerate(rows):
            ids_RL[number, -len(row) :] = row
            attention_RL[number, -len(row) :] = 1
            begin = length - len(self.responses_R[number])
            loss_RL[number, begin:] = self.masks_R[number]
            for token, score in self.scores_R[number].items():
                scores_RL[number, begin + token] = score
        columns = {
            "input_ids": ids_RL,
            "attention_mask": attention_RL,
            "position_ids": attention_RL.cumsum(dim=-1),
            "responses": ids_RL[:, 1:],
            "loss_mask": loss_RL[:, 1:].bool(),
            "response_mask": loss_RL[:, 1:].bool(),
            "rm_scores": scores_RL[:, 1:],
        }
        others: dict[str, Sequence[object]] = {
            "env_ids": [summary.episode_id for summary in self.summaries_R],
            "group_ids": [summary.group for summary in self.summaries_R],
            "tags": [summary.tag for summary in self.summaries_R],
            "messages_list": [
                [{"role": role, "content": text} for role, text in summary.chat] for summary in self.summaries_R
            ],
        }
        return DataProto(
            batch=TensorDict(columns, batch_size=len(rows)),
            non_tensor_batch={name: _objects(values) for name, values in others.items()},
            meta_info={},
        )

    def by_response_token(self, rewards_RL: Tensor) -> list[dict[int, float]]:
        """Return rewards by response token; those of the prompt's tokens are at the first of them."""
        found: list[dict[int, float]] = []
        for rewards, response in zip(rewards_RL, self.responses_R, strict=True):
            begin = len(rewards) - len(response)
            of_row: dict[int, float] = {}
            for position in rewards.nonzero().flatten().tolist():
                token = max(0, position - begin)
                of_row[token] = of_row.get(token, 0.0) + float(rewards[position])
            found.append(of_row)
        return found


def _objects(values: Sequence[object]) -> "np.ndarray[tuple[int], np.dtype[np.object_]]":
    array = np.empty(len(values), dtype=object)
    array[:] = list(values)
    return array
