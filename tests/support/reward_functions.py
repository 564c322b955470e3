"""Reward functions in the form of verl's and GRL's scripts."""

import torch
from torch import Tensor
from verl import DataProto

seen: list[DataProto] = []
"""Batches that functions got in this process."""


def length_of_conversation(batch: DataProto) -> Tensor:
    """Reward the last token with the number of tokens of the conversation."""
    seen.append(batch)
    rewards = torch.zeros(batch.batch["responses"].shape)
    rewards[:, -1] = batch.batch["attention_mask"].sum(dim=-1).float()
    return rewards


def twice_the_agents(batch: DataProto, return_dict: bool = False) -> Tensor | dict[str, Tensor]:
    """Return the agents' own scores times two, in the form of a reward manager."""
    rewards = 2 * batch.batch["rm_scores"]
    return {"reward_tensor": rewards} if return_dict else rewards


def wrong_shape(batch: DataProto) -> Tensor:
    """Return a reward for each conversation instead of each token."""
    return torch.zeros(len(batch))
