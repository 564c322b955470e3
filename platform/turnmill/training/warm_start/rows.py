"""Demonstrations as token ids, spelled by the chat template that the trainer uses."""

from collections.abc import Container

from transformers import PreTrainedTokenizerFast

from turnmill.core.errors import SettingsError
from turnmill.environments import Environment
from turnmill.jobs.model import WarmStart
from turnmill.training.warm_start.cloning import Row
from turnmill.training.warm_start.demonstrations import MALFORMED_ACTIONS, Demonstration, answer_text, demonstrate
from turnmill.training.warm_start.expert import Expert
from turnmill.training.warm_start.tokenizer import build_tokenizer, split_words

# One sentence is enough to place every malformed action: the thoughts are the expert's to spell.
_ANSWERS = tuple(answer_text("the", action) for action in MALFORMED_ACTIONS)


def build_rows(
    environment: Environment, expert: Expert, settings: WarmStart
) -> tuple[PreTrainedTokenizerFast, list[Row]]:
    """A tokenizer for the expert's language, and its demonstrations in that tokenizer's ids."""
    shown = demonstrate(environment, expert, settings)
    tokenizer = build_tokenizer([*expert.phrases(), *_ANSWERS])
    _refuse_unknown_words(shown, tokenizer.get_vocab(), environment.name)
    prompts = tokenizer.apply_chat_template(
        [list(turn.messages) for turn in shown], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    answers = tokenizer([turn.answer for turn in shown], add_special_tokens=False)["input_ids"]
    return tokenizer, [
        Row(tuple(prompt), (*answer, tokenizer.eos_token_id)) for prompt, answer in zip(prompts, answers, strict=True)
    ]


def _refuse_unknown_words(shown: list[Demonstration], known: Container[str], environment: str) -> None:
    texts = {text for turn in shown for text in (turn.answer, *(message["content"] for message in turn.messages))}
    unknown = sorted({word for text in texts for word in split_words(text) if word not in known})
    if unknown:
        raise SettingsError(
            f"The expert of environment {environment!r} leaves words out of phrases(): {unknown[:10]}. "
            "A model without a word never sees it: add a phrase for each."
        )
