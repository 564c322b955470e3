"""Log-probs of the policy's engine, among the tokens that inference engines generate."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from transformers.modeling_outputs import CausalLMOutput
from verl.utils import tensordict_utils as tu

from turnmill.training.verl.fsdp_engines import PolicyEngine

VOCABULARY = 8
IMAGE, VIDEO = 6, 7


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(5, VOCABULARY, generator=torch.Generator().manual_seed(0))


def outputs(logits: torch.Tensor, processor: Any, *, packed: bool) -> Any:
    """Log-probs and entropies of two rows, of 3 and 2 tokens, at a temperature of 0.5."""
    engine = object.__new__(PolicyEngine)
    engine.model_config = SimpleNamespace(processor=processor)
    engine.engine_config = SimpleNamespace(entropy_checkpointing=False, entropy_from_logits_with_chunking=False)
    engine.use_ulysses_sp = False
    engine.compute_entropy_from_logits = lambda values: torch.distributions.Categorical(logits=values).entropy()
    ids = torch.nested.as_nested_tensor([torch.tensor([1, 2, 3]), torch.tensor([4, 5])], layout=torch.jagged)
    batch = TensorDict({"input_ids": ids}, batch_size=2)
    tu.assign_non_tensor(batch, use_remove_padding=packed, calculate_entropy=True)
    labels = torch.roll(ids.values(), -1)
    arguments = {"input_ids_rmpad_rolled": labels, "pad_size": 0}
    arguments |= {"temperature_rmpad": torch.full((5,), 0.5), "temperature": torch.full((2,), 0.5)}
    rows = logits[None] if packed else torch.nested.as_nested_tensor([logits[:3], logits[3:]]).to_padded_tensor(0.0)
    return engine.prepare_model_outputs(CausalLMOutput(logits=rows.clone()), arguments, batch, None)


@pytest.mark.parametrize("packed", [True, False])
def test_placeholders_of_images_and_videos_have_no_probability(logits, packed):
    processor = SimpleNamespace(image_token_id=IMAGE, video_token_id=VIDEO)
    generated = (logits[:, :IMAGE] / 0.5).log_softmax(-1)

    found = outputs(logits, processor, packed=packed)

    expected = generated.gather(1, torch.tensor([[2], [3], [4], [5], [1]]))[:, 0]
    torch.testing.assert_close(found["log_probs"].values(), expected)
    torch.testing.assert_close(found["entropy"].values(), -(generated.exp() * generated).sum(-1))


def test_all_tokens_of_a_model_for_text_have_one(logits):
    found = outputs(logits, None, packed=True)

    expected = (logits / 0.5).log_softmax(-1).gather(1, torch.tensor([[2], [3], [4], [5], [1]]))[:, 0]
    torch.testing.assert_close(found["log_probs"].values(), expected)
