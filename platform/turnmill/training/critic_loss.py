"""Losses of the critic, over turns and over trajectories, computed in float32 whatever the critic returns.

Axes: R rows, S value slots (the response tokens and one after the last).
"""

from collections.abc import Mapping

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.utils.metric import AggregationType, Metric
from verl.workers.config import CriticConfig
from verl.workers.utils.losses import value_loss

from turnmill.training.advantages.precision import at_least_float32


def slots_per_row(response_lengths: Tensor, max_response_tokens: int) -> Tensor:
    """Return the number of value slots of each row: one more than response tokens, if there is room for it."""
    return torch.clamp(response_lengths + 1, max=max_response_tokens)


def split_slots(values: Tensor, prompt_lengths: Tensor, num_slots: Tensor) -> list[Tensor]:
    """Return the slots of each row from the values of all its tokens; `values` is nested, one sequence per row."""
    sequences = values.unbind()
    return [
        sequence[prompt - 1 : prompt - 1 + slots]
        for sequence, prompt, slots in zip(sequences, prompt_lengths.tolist(), num_slots.tolist(), strict=True)
    ]


def clipped_value_loss(predicted: Tensor, values: Tensor, returns: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Return the squared error of each slot, and whether clipping increased it (PPO's value clipping)."""
    clipped = values + (predicted - values).clamp(-clip, clip)
    plain_error, clipped_error = (predicted - returns) ** 2, (clipped - returns) ** 2
    return torch.maximum(plain_error, clipped_error), clipped_error > plain_error


def turn_value_loss(
    config: CriticConfig,
    model_output: Mapping[str, Tensor],
    data: TensorDict,
    dp_group: object = None,
    *,
    first_token_weight: float,
    max_response_tokens: int,
) -> tuple[Tensor, dict[str, float | Metric]]:
    """Return verl's value loss over turns and its metrics; each turn has one more slot than tokens.

    The first slot of a turn has the weight `first_token_weight`. The sum is divided by the number of live slots of the
    whole mini-batch, so that it does not depend on micro-batches.
    """
    prompt_lengths = data["prompts"].offsets().diff()
    response_lengths = data["responses"].offsets().diff()
    num_slots = slots_per_row(response_lengths, max_response_tokens)
    predicted = at_least_float32(_as_sequences(model_output["values"], data))
    predicted_RS = _pad(split_slots(predicted, prompt_lengths, num_slots))
    values_RS, returns_RS = (
        at_least_float32(data[name].to_padded_tensor(0.0)) for name in ("slot_values", "slot_returns")
    )
    width = predicted_RS.shape[1]
    live_RS = torch.arange(width, device=predicted_RS.device) < num_slots[:, None]

    errors_RS, clipped_RS = clipped_value_loss(
        predicted_RS, values_RS[:, :width], returns_RS[:, :width], config.cliprange_value
    )
    weights_RS = live_RS.to(errors_RS.dtype)
    weights_RS[:, 0] *= first_token_weight
    loss = 0.5 * (errors_RS * weights_RS).sum() / data["batch_num_slots"] * data["dp_size"]
    return loss, {
        "critic/vf_loss": Metric(value=loss, aggregation=AggregationType.SUM),
        "critic/vf_clipfrac": clipped_RS[live_RS].float().mean().item(),
        "critic/vpred_mean": predicted_RS[live_RS].mean().item(),
    }


def trajectory_value_loss(
    config: CriticConfig, model_output: Mapping[str, Tensor], data: TensorDict, dp_group: object = None
) -> tuple[Tensor, dict[str, float | Metric]]:
    """Return verl's value loss over whole trajectories and its metrics."""
    wider = data.copy()
    for name in ("values", "returns"):
        wider[name] = at_least_float32(data[name])
    predicted = {"values": at_least_float32(model_output["values"])}
    found: tuple[Tensor, dict[str, float | Metric]] = value_loss(config, predicted, wider, dp_group)
    return found


def _as_sequences(values: Tensor, data: TensorDict) -> Tensor:
    if values.is_nested:
        return values
    return torch.nested.nested_tensor_from_jagged(values, offsets=data["input_ids"].offsets())


def _pad(rows: list[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
