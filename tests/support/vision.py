"""A tiny vision model with random weights, and a scripted policy with its log-probs."""

from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast, Qwen2VLConfig, Qwen2VLForConditionalGeneration
from transformers.models.qwen2_vl import Qwen2VLImageProcessorPil, Qwen2VLModel, Qwen2VLProcessor
from verl.workers.rollout.replica import TokenOutput

from turnmill.testing.policies import ScriptedPolicy, character_tokenizer

MARKS = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")
SIDE = 56
"""Width and height of images in pixels, which become four tokens."""


class _ImageProcessor(Qwen2VLProcessor):
    """A processor without the video processor, which needs torchvision."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        """Accept a missing processor."""
        return None if argument is None else super().check_argument_for_proper_class(argument_name, argument)


@dataclass(frozen=True)
class VisionModel:
    """Qwen2-VL's architecture, processor and tokens, small enough for a test."""

    tokenizer: PreTrainedTokenizerFast
    processor: Any
    config: Qwen2VLConfig
    network: Any

    def policy(self, script: Any) -> "VisionPolicy":
        """Return a policy that generates the script with the log-probs of this model."""
        return VisionPolicy(self, script)

    def log_probs(self, prompt_ids: list[int], response_ids: list[int], **inputs: Any) -> list[float]:
        """Return the response's log-probs after the prompt and the images of `inputs`."""
        ids = torch.tensor([[*prompt_ids, *response_ids]])
        if "position_ids" not in inputs:
            inputs["mm_token_type_ids"] = (ids == self.config.image_token_id).int()
        with torch.no_grad():
            logits = self.network(input_ids=ids, attention_mask=torch.ones_like(ids), **inputs).logits[0].double()
        first = len(prompt_ids)
        chosen = logits[first - 1 : -1].log_softmax(-1).gather(1, ids[0, first:, None])
        return [float(value) for value in chosen[:, 0]]


class VisionPolicy(ScriptedPolicy):
    """A policy that takes images themselves and not their tokens, as an inference engine does."""

    def __init__(self, model: VisionModel, script: Any) -> None:
        super().__init__(model.tokenizer, script)
        self.model = model
        self.images: list[int] = []

    async def generate(self, request_id: str, *, image_data: Any = None, **request: Any) -> TokenOutput:
        """Return the next response of the script; `images` records the number of images."""
        output = await super().generate(request_id, **request)
        images = list(image_data or ())
        self.images.append(len(images))
        features = self.model.processor.image_processor(images, return_tensors="pt") if images else {}
        output.log_probs = self.model.log_probs(request["prompt_ids"], output.token_ids, **features)
        return output


def tiny_vision_model() -> VisionModel:
    """Return a new tiny model."""
    tokenizer = character_tokenizer()
    tokenizer.add_tokens([AddedToken(mark, special=True) for mark in MARKS], special_tokens=True)
    begin, image, end, video = tokenizer.convert_tokens_to_ids(list(MARKS))
    config = Qwen2VLConfig(
        text_config={
            "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
            # vLLM has no attention on CPUs for heads of 16.
            "num_attention_heads": 2, "num_key_value_heads": 2,
            "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 6, 6]},
        },
        vision_config={"depth": 1, "embed_dim": 64, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 1},
        vision_start_token_id=begin, image_token_id=image, vision_end_token_id=end, video_token_id=video,
        architectures=["Qwen2VLForConditionalGeneration"], tie_word_embeddings=False,
    )  # fmt: skip
    images = Qwen2VLImageProcessorPil(min_pixels=SIDE * SIDE, max_pixels=SIDE * SIDE)
    processor = _ImageProcessor(image_processor=images, tokenizer=tokenizer, video_processor=None)
    # verl does the same when it loads a processor.
    processor.config = config
    for name in ("get_rope_index", "get_vision_position_ids"):
        setattr(processor, name, MethodType(getattr(Qwen2VLModel, name), processor))
    torch.manual_seed(0)
    return VisionModel(tokenizer, processor, config, Qwen2VLForConditionalGeneration(config).eval())


def save_vision_model(folder: Path, template: str) -> None:
    """Save a tiny model for a run; its processor needs torchvision."""
    from transformers import Qwen2VLImageProcessor, Qwen2VLVideoProcessor

    model = tiny_vision_model()
    model.tokenizer.chat_template = template
    images = Qwen2VLImageProcessor(min_pixels=SIDE * SIDE, max_pixels=SIDE * SIDE)
    model.network.save_pretrained(folder)
    Qwen2VLProcessor(images, model.tokenizer, Qwen2VLVideoProcessor(), chat_template=template).save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
