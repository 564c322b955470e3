"""Tokenization of observations: truncated, with a marker, with their images, and wrapped in a chat turn."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

from verl.utils.tokenizer import get_processor_token_id

from turnmill.core.observations import (
    INVALID_ACTION_NOTICE,
    MARKER,
    rendered_separator,
    separator_messages,
    split_separator,
    truncate_observation,
)
from turnmill.jobs.tool_agent import ToolAgent
from turnmill.rollout.tokens import num_runs
from turnmill.rollout.tool_agent.images import MARK, ImageTokenizer, open_image
from turnmill.rollout.verl_types import ChatTemplate, Processor, Tokenizer

_PLACEHOLDER_ATTRIBUTES = ("image_token_id", "video_token_id", "audio_token_id")


def placeholder_ids(processor: Processor | None) -> frozenset[int]:
    """Return the placeholder tokens of images, videos and sounds; a run of one of them represents one file."""
    ids = (getattr(processor, name, None) for name in _PLACEHOLDER_ATTRIBUTES)
    return frozenset(int(token) for token in ids if token is not None)


@dataclass(frozen=True, slots=True)
class Observation:
    """Tokens after a response, and the files of the images whose placeholders are among them."""

    ids: tuple[int, ...] = ()
    images: tuple[bytes, ...] = ()


class ObservationTokenizer:
    """Tokenizes observations for the context."""

    def __init__(self, tokenizer: Tokenizer, agent: ToolAgent, *, processor: Processor | None = None) -> None:
        self._tokenizer = tokenizer
        # A copy, as splitting special tokens changes the tokenizer's state, and other threads use it for prompts.
        self._text_tokenizer = copy.deepcopy(tokenizer)
        self._agent = agent
        self.placeholder_ids = placeholder_ids(processor)
        self.image_id = get_processor_token_id(processor, "image")
        """Placeholder token of images; None if the model takes text alone."""

        self._images = ImageTokenizer(processor)
        prefix, suffix = _chat_turn(tokenizer, agent) if agent.enable_mtrl else ("", "")
        self._turn_end = self.ids_of(agent.turn_end_token) if agent.enable_mtrl else ()
        self._prefix, self._suffix = self.ids_of(prefix), self.ids_of(suffix)

    def ids_of(self, text: str) -> tuple[int, ...]:
        """Tokenize a trusted text, which may contain special tokens."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False)) if text else ()

    def tokenize(
        self, text: str, *, valid: bool, response_ids: Sequence[int], images: Sequence[bytes] = ()
    ) -> Observation:
        """Return the tokens after a response: the observation, in a chat turn if the agent uses them.

        Images are in the places that the text marks, those without one before the text. Raises AgentLoopError for
        images that cannot be read, or that the model does not take.
        """
        if not self._agent.enable_mtrl:
            return self._body(text, images)
        notice = "" if valid else INVALID_ACTION_NOTICE
        ended = self._turn_end and tuple(response_ids[-len(self._turn_end) :]) == self._turn_end
        body = self._body(notice + text, images)
        return Observation((*(() if ended else self._turn_end), *self._prefix, *body.ids, *self._suffix), body.images)

    def _body(self, text: str, images: Sequence[bytes]) -> Observation:
        ids = self._body_ids(text, images)
        side = self._agent.truncate_obs_side
        truncated = truncate_observation(ids, self._agent.max_obs_length, side, self.placeholder_ids)
        if truncated.is_whole:
            return Observation(truncated.head, tuple(images))
        num_first, num_last = (num_runs(part, self.image_id) for part in (truncated.head, truncated.tail))
        kept = (*images[:num_first], *images[len(images) - num_last :])
        before, after = (self.ids_of(text) for text in MARKER[side])
        if side == "left":
            return Observation((*before, *truncated.tail), kept)
        return Observation((*truncated.head, *after, *truncated.tail), kept)

    def _body_ids(self, text: str, images: Sequence[bytes]) -> tuple[int, ...]:
        unmarked = max(0, len(images) - text.count(MARK))
        first, *rest = (MARK * unmarked + text).split(MARK, len(images))
        ids = self._text_ids(first)
        for file, following in zip(images, rest, strict=True):
            ids += self._images.tokens_of(open_image(file)) + self._text_ids(following)
        return ids

    def _text_ids(self, text: str) -> tuple[int, ...]:
        # The text of a tool is data: a special token in it must not end a turn.
        return tuple(self._text_tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])


def _chat_turn(tokenizer: Tokenizer, agent: ToolAgent) -> tuple[str, str]:
    """Return the text before and after an observation in a chat turn, without the end of the response's turn."""
    separator = agent.mtrl_sep if agent.mtrl_sep is not None else _separator(tokenizer, agent)
    return split_separator(separator, agent.turn_end_token, name="spec.agent.mtrlSep")


def _separator(template: ChatTemplate, agent: ToolAgent) -> str:
    """Return the chat template's text between a response and the next one, around a message of the role."""
    messages = separator_messages(agent.mtrl_role)
    return rendered_separator(template.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
