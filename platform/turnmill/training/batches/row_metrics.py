"""verl's metrics of a step, from its rows' tags.

Axes: R rows.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.protocol import DataProto
from verl.trainer.ppo.metric_utils import compute_data_metrics, compute_throughout_metrics, compute_timing_metrics

from turnmill.rollout.row_tags import NUM_TURNS, SCORE, TRAINED_TOKENS
from turnmill.training.dataset import LENGTHS, tag_columns
from turnmill.training.row_advantages import ADVANTAGE, RETURN, REWARD
from turnmill.training.verl.types import Metrics

_VERSIONS = ("min_global_steps", "max_global_steps")
_COLUMNS = (SCORE, REWARD, ADVANTAGE, RETURN, TRAINED_TOKENS, NUM_TURNS, *LENGTHS, *_VERSIONS)


def metrics_of_tags(
    batch: KVBatchMeta, timing_raw: Mapping[str, float], global_steps: int, epoch: int, *, num_gpus: int
) -> Metrics:
    """Return what `PPOTrainer._compute_metrics` does for rows whose tokens share an advantage, without the tokens."""
    columns = dict(zip(_COLUMNS, tag_columns(batch, *_COLUMNS), strict=True))
    everything = without_padding = _data(columns)
    if any(is_padding := [tag.get("is_padding", False) for tag in batch.tags]):
        is_row_R = ~torch.tensor(is_padding)
        columns = {name: column_R[is_row_R] for name, column_R in columns.items()}
        without_padding = _data(columns, like=everything)
    metrics: Metrics = {"training/global_step": global_steps, "training/epoch": epoch}
    metrics |= compute_data_metrics(batch=without_padding, use_critic=False)
    trained_R = columns[TRAINED_TOKENS].float()
    for name, tag in (("advantages", ADVANTAGE), ("returns", RETURN)):
        metrics[f"critic/{name}/mean"] = (columns[tag].float() * trained_R).sum().div(trained_R.sum()).item()
    metrics |= compute_timing_metrics(batch=everything, timing_raw=timing_raw)
    metrics |= compute_throughout_metrics(batch=everything, timing_raw=timing_raw, n_gpus=num_gpus)
    metrics |= _spread("training/num_turns", columns[NUM_TURNS].float())
    oldest_R, newest_R = (columns[name].float() for name in _VERSIONS)
    off_policy = "training/off_policy/trajectory"
    return (
        metrics
        | _spread(f"{off_policy}_spans", newest_R - oldest_R + 1)
        | _spread(f"{off_policy}_staleness", global_steps - 1 - newest_R)
        | _spread(f"{off_policy}_staleness_worst", global_steps - 1 - oldest_R)
    )


def _data(columns: Mapping[str, Tensor], like: DataProto | None = None) -> DataProto:
    """Return rows as verl's metrics want them, with one position per row.

    `like` has the width of prompts and responses, of which verl reads no more than that; they take no memory.
    """
    prompts_R, responses_R = (columns[name].long() for name in LENGTHS)
    widths = [int(prompts_R.max()), int(responses_R.max())]
    if like is not None:
        widths = [like.batch[name].shape[1] for name in ("prompts", "responses")]
    tensors = {
        "token_level_scores": columns[SCORE].float()[:, None],
        "token_level_rewards": columns[REWARD].float()[:, None],
        "advantages": columns[ADVANTAGE].float()[:, None],
        "returns": columns[RETURN].float()[:, None],
        "response_mask": (columns[TRAINED_TOKENS] > 0)[:, None],
        "prompt_length": prompts_R.float(),
        "response_length": responses_R.float(),
        **{
            name: torch.zeros(1, dtype=torch.int8).expand(len(prompts_R), width)
            for name, width in zip(("prompts", "responses"), widths, strict=True)
        },
    }
    data = DataProto.from_dict(tensors=tensors, meta_info={"global_token_num": (prompts_R + responses_R).tolist()})
    data.non_tensor_batch["__num_turns__"] = columns[NUM_TURNS].int().numpy()
    return data


def _spread(name: str, values_R: Tensor) -> Metrics:
    return {
        f"{name}/mean": values_R.mean().item(),
        f"{name}/max": values_R.max().item(),
        f"{name}/min": values_R.min().item(),
    }
