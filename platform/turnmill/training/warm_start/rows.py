"""Demonstrations in environments as token ids, rendered by the chat template that the trainer uses."""

from collections.abc import Container

import torch
from transformers import PreTrainedTokenizerFast

from turnmill.core.errors import SettingsError
from turnmill.environments import Environment
from turnmill.jobs.model import WarmStart
from turnmill.jobs.verlog_agent import MemorySettings
from turnmill.training.warm_start.cloning import Row
from turnmill.training.warm_start.demonstrations import MALFORMED_ACTIONS, Demonstration, demonstrate, response_text
from turnmill.training.warm_start.expert import Expert
from turnmill.training.warm_start.targets import target_distributions
from turnmill.training.warm_start.tokenizer import build_tokenizer, split_words

# The words of malformed actions; those of thoughts are in the expert's phrases.
_MALFORMED_RESPONSES = tuple(response_text("the", action) for action in MALFORMED_ACTIONS)


def build_rows(
    environment: Environment, expert: Expert, settings: WarmStart, remembers: MemorySettings
) -> tuple[PreTrainedTokenizerFast, list[Row]]:
    """Return a tokenizer for the expert's language, and its demonstrations in that tokenizer's ids."""
    turns = demonstrate(environment, expert, settings, remembers)
    tokenizer = build_tokenizer([*expert.phrases(), *_MALFORMED_RESPONSES])
    _refuse_unknown_words(turns, tokenizer.get_vocab(), environment.name)
    prompts = tokenizer.apply_chat_template(
        [list(turn.messages) for turn in turns], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    row_tokenizer = _RowTokenizer(tokenizer)
    return tokenizer, [row_tokenizer.row(tuple(prompt), turn) for prompt, turn in zip(prompts, turns, strict=True)]


class _RowTokenizer:
    """Tokenizes responses, with the target distribution of each token of the action."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self._ids: dict[str, tuple[int, ...]] = {}
        self._targets: dict[tuple[str, tuple[tuple[str, float], ...]], torch.Tensor] = {}

    def row(self, prompt_ids: tuple[int, ...], turn: Demonstration) -> Row:
        action_ids = self._action_ids(turn.action)
        response_ids = self._encode(response_text(turn.thought, "")) + action_ids
        key = (turn.action, tuple(turn.probabilities.items()))
        if key not in self._targets:
            probabilities = {self._action_ids(action): share for action, share in turn.probabilities.items()}
            self._targets[key] = target_distributions(action_ids, probabilities, vocabulary=len(self.tokenizer))
        return Row(prompt_ids, response_ids, self._targets[key])

    def _action_ids(self, action: str) -> tuple[int, ...]:
        return (*self._encode(f" {action}"), self.tokenizer.eos_token_id)

    def _encode(self, text: str) -> tuple[int, ...]:
        if text not in self._ids:
            self._ids[text] = tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return self._ids[text]


def _refuse_unknown_words(turns: list[Demonstration], known: Container[str], environment: str) -> None:
    texts = {text for turn in turns for text in (turn.response, *(message["content"] for message in turn.messages))}
    unknown = sorted({word for text in texts for word in split_words(text) if word not in known})
    if unknown:
        raise SettingsError(
            f"The expert of environment {environment!r} leaves words out of phrases(): {unknown[:10]}. "
            "The tokenizer of the warm start has only the words of phrases(): add a phrase with each."
        )
