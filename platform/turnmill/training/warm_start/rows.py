"""Demonstrations as token ids, rendered by the chat template that the trainer uses."""

from collections.abc import Container, Mapping

import torch
from transformers import PreTrainedTokenizerFast

from turnmill.core.errors import SettingsError
from turnmill.environments import Environment
from turnmill.jobs.model import WarmStart
from turnmill.jobs.verlog_agent import MemorySettings
from turnmill.training.warm_start.cloning import Row
from turnmill.training.warm_start.demonstrations import MALFORMED_ACTIONS, Demonstration, answer_text, demonstrate
from turnmill.training.warm_start.expert import Expert
from turnmill.training.warm_start.tokenizer import build_tokenizer, split_words

# One sentence is enough to place every malformed action: the thoughts are the expert's to spell.
_ANSWERS = tuple(answer_text("the", action) for action in MALFORMED_ACTIONS)


def build_rows(
    environment: Environment, expert: Expert, settings: WarmStart, remembers: MemorySettings
) -> tuple[PreTrainedTokenizerFast, list[Row]]:
    """A tokenizer for the expert's language, and its demonstrations in that tokenizer's ids."""
    shown = demonstrate(environment, expert, settings, remembers)
    tokenizer = build_tokenizer([*expert.phrases(), *_ANSWERS])
    _refuse_unknown_words(shown, tokenizer.get_vocab(), environment.name)
    prompts = tokenizer.apply_chat_template(
        [list(turn.messages) for turn in shown], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    tokenize = _AnswerTokenizer(tokenizer)
    return tokenizer, [tokenize.row(tuple(prompt), turn) for prompt, turn in zip(prompts, shown, strict=True)]


class _AnswerTokenizer:
    """Tokenizes answers, with the target distribution of each token of the action.

    The model is told the whole distribution that the spoken action was drawn from: the mean gradient is the same,
    the noise in it far smaller, and what a run learns from depends much less on chance.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self._ids: dict[str, tuple[int, ...]] = {}
        self._targets: dict[tuple[str, tuple[tuple[str, float], ...]], torch.Tensor] = {}

    def row(self, prompt_ids: tuple[int, ...], turn: Demonstration) -> Row:
        action_ids = self._action_ids(turn.spoken)
        answer_ids = self._encode(answer_text(turn.thought, "")) + action_ids
        key = (turn.spoken, tuple(turn.chances.items()))
        if key not in self._targets:
            chances = {self._action_ids(action): chance for action, chance in turn.chances.items()}
            self._targets[key] = next_token_distributions(action_ids, chances, vocabulary=len(self.tokenizer))
        return Row(prompt_ids, answer_ids, self._targets[key])

    def _action_ids(self, action: str) -> tuple[int, ...]:
        return (*self._encode(f" {action}"), self.tokenizer.eos_token_id)

    def _encode(self, text: str) -> tuple[int, ...]:
        if text not in self._ids:
            self._ids[text] = tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return self._ids[text]


def next_token_distributions(
    spoken: tuple[int, ...], chances: Mapping[tuple[int, ...], float], *, vocabulary: int
) -> torch.Tensor:
    """Return the distribution of each token given those before it, of shape (tokens of `spoken`, vocabulary).

    Tokens after the end of every response that was chosen from are certain.
    """
    targets = torch.nn.functional.one_hot(torch.tensor(spoken), vocabulary).float()
    for position in range(len(spoken)):
        chosen = torch.zeros(vocabulary)
        for ids, chance in chances.items():
            if len(ids) > position and ids[:position] == spoken[:position]:
                chosen[ids[position]] += chance
        if not chosen.any():
            break
        targets[position] = chosen / chosen.sum()
    return targets


def _refuse_unknown_words(shown: list[Demonstration], known: Container[str], environment: str) -> None:
    texts = {text for turn in shown for text in (turn.answer, *(message["content"] for message in turn.messages))}
    unknown = sorted({word for text in texts for word in split_words(text) if word not in known})
    if unknown:
        raise SettingsError(
            f"The expert of environment {environment!r} leaves words out of phrases(): {unknown[:10]}. "
            "A model without a word never sees it: add a phrase for each."
        )
