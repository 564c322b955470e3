"""Demonstrations as token ids, spelled by the chat template that the trainer uses."""

from transformers import PreTrainedTokenizerFast

from turnmill.environments import Environment
from turnmill.jobs.model import WarmStart
from turnmill.training.warm_start.cloning import Row
from turnmill.training.warm_start.demonstrations import MALFORMED_ACTIONS, answer_text, demonstrate
from turnmill.training.warm_start.expert import Expert
from turnmill.training.warm_start.tokenizer import build_tokenizer


def build_rows(
    environment: Environment, expert: Expert, settings: WarmStart
) -> tuple[PreTrainedTokenizerFast, list[Row]]:
    """A tokenizer for the expert's language, and its demonstrations in that tokenizer's ids."""
    shown = demonstrate(environment, expert, settings)
    answers = [turn.answer for turn in shown]
    answer_form = [answer_text(phrase, action) for phrase in ("the",) for action in MALFORMED_ACTIONS]
    tokenizer = build_tokenizer([*expert.phrases(), *answer_form])
    prompts = tokenizer.apply_chat_template(
        [list(turn.messages) for turn in shown], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    answer_ids = tokenizer(answers, add_special_tokens=False)["input_ids"]
    return tokenizer, [Row(tuple(p), (*a, tokenizer.eos_token_id)) for p, a in zip(prompts, answer_ids, strict=True)]
