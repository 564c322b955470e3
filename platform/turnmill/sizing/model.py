"""Sizes of a model, from its `config.json` alone: no weights are read, and no memory is taken.

Parameters are counted on torch's meta device. Activations come from two runs on fake tensors, with one layer and with
two: what a layer adds is the same for each.
"""

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnmill.core.errors import SettingsError, first_line

BF16, FLOAT32 = 2, 4
# Booleans, and the same in bfloat16 while a layer computes.
MASK_BYTES_PER_PAIR = 3


@dataclass(frozen=True, slots=True)
class Parameters:
    """Numbers of parameters."""

    total: int
    per_layer: int
    """Of a layer after the first, which may differ."""

    outside_layers: int
    """Embeddings, the last norm and the head."""


class Model:
    """A model's architecture, as policy or as critic."""

    def __init__(self, folder: Path) -> None:
        """Read the configuration. Raises SettingsError if there is none, or none of a language model."""
        from transformers import AutoConfig

        try:
            self.config: Any = AutoConfig.from_pretrained(folder)
            self.text: Any = self.config.get_text_config()
            self.num_layers = int(self.text.num_hidden_layers)
        except (OSError, ValueError, AttributeError) as error:
            raise SettingsError(
                f"spec.model.path: {str(folder)!r} has no config.json of a language model "
                f"({first_line(error)}). Run this command where the model is mounted."
            ) from error
        # Both take seconds with a large model, and every setting that is tried asks again.
        self._counts: dict[tuple[int, bool], int] = {}
        self._peaks: dict[tuple[int, int, bool], int] = {}

    @property
    def key_value_heads(self) -> int:
        """Heads of keys and values, which the GPUs of an engine divide among them."""
        return int(getattr(self.text, "num_key_value_heads", None) or self.text.num_attention_heads)

    @property
    def key_value_bytes(self) -> int:
        """Bytes of the engine's cache per token, in bfloat16."""
        heads = self.key_value_heads
        width = getattr(self.text, "head_dim", None) or self.text.hidden_size // self.text.num_attention_heads
        return int(2 * self.num_layers * heads * width * BF16)

    def parameters(self, *, is_critic: bool = False) -> Parameters:
        """Count the parameters of the policy, or of the critic with a head of one value in place of the tokens'."""
        one, two, total = (self._count(layers, is_critic=is_critic) for layers in (1, 2, self.num_layers))
        return Parameters(total, two - one, one - (two - one))

    def _count(self, layers: int, *, is_critic: bool) -> int:
        import torch

        if (key := (layers, is_critic)) not in self._counts:
            with torch.device("meta"):
                self._counts[key] = sum(each.numel() for each in self._build(layers, is_critic=is_critic).parameters())
        return self._counts[key]

    def activation_bytes(self, tokens: int, *, is_critic: bool = False, has_mask: bool = True) -> int:
        """Return the peak of what forward and backward of one packed micro-batch keep beside the parameters.

        Layers compute in bfloat16 with gradient checkpointing, log-probs and entropy in chunks. Gradients leave as soon
        as they are there, as FSDP reduces them. `has_mask` counts the mask that sdpa needs for packed rows.
        """
        first, second = (self._peak(layers, tokens, is_critic=is_critic) for layers in (1, 2))
        mask = 0 if has_mask else MASK_BYTES_PER_PAIR * tokens**2
        return first + (self.num_layers - 1) * (second - first) - mask

    def _peak(self, layers: int, tokens: int, *, is_critic: bool) -> int:
        if (key := (layers, tokens, is_critic)) not in self._peaks:
            self._peaks[key] = self._peak_bytes(layers, tokens, is_critic=is_critic)
        return self._peaks[key]

    def _peak_bytes(self, layers: int, tokens: int, *, is_critic: bool) -> int:
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.distributed._tools.mem_tracker import MemTracker
        from verl.utils.experimental.torch_functional import FusedLinearForPPO

        with _quiet(), FakeTensorMode():
            model = self._build(layers, is_critic=is_critic)
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            model.train()
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(_drop_gradient)
            held: int = sum(each.numel() * each.element_size() for each in model.parameters())
            tracker = MemTracker()
            tracker.track_external(model)
            with tracker:
                ids = torch.zeros(1, tokens, dtype=torch.long)
                # As verl passes packed rows: transformers makes their mask.
                arguments = {"position_ids": torch.arange(tokens)[None], "use_cache": False}
                if is_critic:
                    loss = model(input_ids=ids, **arguments).logits.float().sum()
                else:
                    hidden = model.get_decoder()(input_ids=ids, **arguments).last_hidden_state
                    log_probs, entropy = FusedLinearForPPO()(hidden, model.get_output_embeddings().weight, ids)
                    loss = log_probs.sum() + entropy.sum()
                loss.backward()
            peak = tracker.get_tracker_snapshot("peak")
        return sum(int(of_device["Total"]) for of_device in peak.values()) - held

    def _build(self, layers: int, *, is_critic: bool) -> Any:
        """Return the model with fewer layers, in bfloat16."""
        import torch
        from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

        config = copy.deepcopy(self.config)
        text = config.get_text_config()
        text.num_hidden_layers = layers
        if getattr(text, "layer_types", None):
            text.layer_types = (list(text.layer_types) * layers)[:layers]
        config.num_labels = 1
        kind = AutoModelForTokenClassification if is_critic else AutoModelForCausalLM
        return kind.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")


def _drop_gradient(parameter: Any) -> None:
    parameter.grad = None


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the tracker's warnings about modules that have ended."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
