"""Gradients of one step's loss on one or several ranks; processes that are spawned import it from here."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from support.fsdp_ranks import VOCABULARY, build_engine, process_group
from turnmill.jobs import load_job

PROMPTS = (5, 3, 9, 4, 12, 6, 2, 7)
RESPONSES = (8, 1, 16, 5, 11, 16, 3, 9)
MAX_RESPONSE_TOKENS = max(RESPONSES)
# Several micro-batches on every rank, and others than on another number of ranks.
MICRO_BATCH_TOKENS = 40

EXAMPLES = Path(__file__).parents[2] / "manifests" / "examples"
POLICIES = {
    "turn_ppo": "babyai-goto-cpu",
    **dict.fromkeys(
        ("ppo", "grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "dapo", "gigpo"),
        "babyai-goto-gigpo-cpu",
    ),
}
"""An example for each algorithm; the agent of the second one plays turns, as GiGPO needs them."""

POLICY_LOSSES = {
    **dict.fromkeys(POLICIES, ""),
    "grpo by trajectory": ", lossAverage: trajectory",
    "dapo by trajectory": ", lossAverage: trajectory",
}
"""Settings of the algorithm for each loss that is tested; its name begins with the algorithm's."""

CRITICS = ("turn_ppo", "ppo")


LAYOUTS = {
    1: ((False, "fp32"), (True, "fp32")),
    2: ((False, "fp32"), (True, "fp32"), (True, "bf16")),
    4: ((True, "fp32"),),
}
"""Whether rows are packed, and the type of the computation, by the number of ranks."""


def save_gradients(rank: int, folder: Path, ranks: int) -> None:
    """Write the whole gradients of each loss in each layout to files, by loss and parameter."""
    losses = {"language_model": dict(_policy_losses(folder)), "value_model": dict(_critic_losses(folder))}
    with process_group(rank, ranks, folder / f"group-{ranks}"):
        for packed, dtype in LAYOUTS[ranks]:
            found: dict[str, dict[str, Tensor]] = {}
            for kind, named in losses.items():
                engine = build_engine(kind, folder, packed=packed, dtype=dtype)
                for name, loss in named.items():
                    found[f"{kind}: {name}"] = _gradients(engine, _batch(rank, ranks, packed=packed), loss)
            if rank == 0:
                torch.save(found, folder / file_name(ranks, packed, dtype))


def _gradients(engine: Any, batch: Any, loss: Callable[..., Any]) -> dict[str, Tensor]:
    with engine.train_mode():
        engine.optimizer_zero_grad()
        engine.forward_backward_batch(batch, loss)
        found = {
            name: _whole(parameter.grad)
            for name, parameter in engine.module.named_parameters()
            if parameter.grad is not None
        }
        engine.optimizer_zero_grad()
    return found


def file_name(ranks: int, packed: bool, dtype: str) -> str:
    """Return the name of the file with the gradients."""
    return f"gradients-{ranks}-{packed}-{dtype}.pt"


def _whole(gradient: Any) -> Tensor:
    whole: Tensor = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return whole.detach().clone()


def _config(model: Path, algorithm: str, settings: str = "") -> Any:
    from turnmill.training.verl.config import build_verl_config

    section = f"spec.algorithm={{type: {algorithm}, entropyCoefficient: 0.01{settings}}}"
    settings_of_job = load_job(EXAMPLES / f"{POLICIES[algorithm]}.yaml", [section])
    return build_verl_config(settings_of_job, model=model, run_dir=model / "run", device="cpu")


def _policy_losses(model: Path) -> Iterator[tuple[str, Callable[..., Any]]]:
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.utils.losses import ppo_loss

    for name, settings in POLICY_LOSSES.items():
        algorithm = name.split()[0]
        yield (
            name,
            partial(ppo_loss, omega_conf_to_dataclass(_config(model, algorithm, settings).actor_rollout_ref.actor)),
        )


def _critic_losses(model: Path) -> Iterator[tuple[str, Callable[..., Any]]]:
    from verl.utils.config import omega_conf_to_dataclass

    from turnmill.training.critic_loss import trajectory_value_loss, turn_value_loss

    settings = {name: omega_conf_to_dataclass(_config(model, name).critic) for name in CRITICS}
    yield (
        "turn_ppo",
        partial(turn_value_loss, settings["turn_ppo"], first_token_weight=2.0, max_response_tokens=MAX_RESPONSE_TOKENS),
    )
    yield "ppo", partial(trajectory_value_loss, settings["ppo"])


def _batch(rank: int, ranks: int, *, packed: bool) -> Any:
    """Return a rank's share of the step's rows, whose contents depend on the row alone."""
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    rows = [_row(number) for number in range(len(PROMPTS))][rank::ranks]

    def column(name: str) -> Tensor:
        return torch.nested.as_nested_tensor([row[name] for row in rows], layout=torch.jagged)

    data = TensorDict({name: column(name) for name in rows[0]}, batch_size=[len(rows)])
    tu.assign_non_tensor(
        data,
        temperature=1.0,
        use_remove_padding=packed,
        use_dynamic_bsz=True,
        max_token_len_per_gpu=MICRO_BATCH_TOKENS,
        calculate_entropy=True,
        use_fused_kernels=False,
        pad_token_id=0,
        global_batch_size=len(PROMPTS),
        compute_loss=True,
        return_model_output=False,
    )
    return data


def _row(number: int) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(number)
    prompt, length = PROMPTS[number], RESPONSES[number]
    tokens = torch.randint(3, VOCABULARY, (prompt + length,), generator=random)
    mask = torch.ones(length, dtype=torch.long)
    if length > 4:
        # An observation amid the response.
        mask[2:4] = 0
    # One slot more than tokens where there is room for it.
    slots = min(length + 1, MAX_RESPONSE_TOKENS)
    return {
        "input_ids": tokens,
        "position_ids": torch.arange(prompt + length),
        "prompts": tokens[:prompt],
        "responses": tokens[prompt:],
        "loss_mask": mask,
        "response_mask": mask,
        # About those of a model that has learned nothing, so that some ratios are clipped.
        "old_log_probs": -4.5 + 0.3 * torch.randn(length, generator=random),
        "advantages": torch.randn(length, generator=random),
        "rollout_is_weights": torch.rand(length, generator=random) + 0.5,
        "values": torch.randn(length, generator=random),
        "returns": torch.randn(length, generator=random),
        "slot_values": torch.randn(slots, generator=random),
        "slot_returns": torch.randn(slots, generator=random),
    }
