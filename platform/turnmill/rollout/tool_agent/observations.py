"""What an observation looks like in the context: cut to its limit, marked, and wrapped as a turn of the chat."""

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from turnmill.core.errors import SettingsError
from turnmill.jobs.tool_agent import ToolAgent

MARKER = {"left": ("(truncated)...", ""), "right": ("", "...(truncated)"), "middle": ("...(truncated)...",) * 2}
INVALID_ACTION_NOTICE = "\nYour action is not valid, please check the format and try again."
_BEFORE, _INSIDE, _AFTER = "3c1f-before", "{obs}", "3c1f-after"
_PLACEHOLDER_ATTRIBUTES = ("image_token_id", "video_token_id", "audio_token_id")


@dataclass(frozen=True, slots=True)
class Cut:
    """What is kept of a sequence: a beginning, an end, or both."""

    head: tuple[int, ...]
    tail: tuple[int, ...]
    whole: bool


def cut_observation(ids: Sequence[int], limit: int, side: str, uncuttable: Collection[int] = frozenset()) -> Cut:
    """At most `limit` tokens of an observation; a run of one of the `uncuttable` ids stays whole or goes whole."""
    if len(ids) <= limit:
        return Cut(tuple(ids), (), whole=True)
    in_front, behind = {"left": (0, limit), "right": (limit, 0), "middle": (limit // 2, limit - limit // 2)}[side]
    end = _step_back(ids, in_front, uncuttable)
    start = _step_forward(ids, len(ids) - behind, uncuttable)
    return Cut(tuple(ids[:end]), tuple(ids[start:]), whole=False)


def _step_back(ids: Sequence[int], position: int, uncuttable: Collection[int]) -> int:
    while 0 < position < len(ids) and ids[position] in uncuttable and ids[position - 1] == ids[position]:
        position -= 1
    return position


def _step_forward(ids: Sequence[int], position: int, uncuttable: Collection[int]) -> int:
    while 0 < position < len(ids) and ids[position] in uncuttable and ids[position - 1] == ids[position]:
        position += 1
    return position


def placeholder_ids(processor: Any) -> frozenset[int]:
    """The tokens that stand for pictures, films and sounds: a run of them belongs to one."""
    found = (getattr(processor, name, None) for name in _PLACEHOLDER_ATTRIBUTES)
    return frozenset(int(token) for token in found if token is not None)


class ObservationTokenizer:
    """Tokenizes observations as the context takes them."""

    def __init__(self, tokenizer: Any, agent: ToolAgent, *, processor: Any = None) -> None:
        self._tokenizer = tokenizer
        # Reading special tokens as text is a state of the tokenizer, and others render prompts with theirs meanwhile.
        self._text_tokenizer = copy.deepcopy(tokenizer)
        self._agent = agent
        self._uncuttable = placeholder_ids(processor)
        prefix, suffix = _chat_turn(tokenizer, agent) if agent.enable_mtrl else ("", "")
        self._turn_end = self.ids_of(agent.turn_end_token) if agent.enable_mtrl else ()
        self._prefix, self._suffix = self.ids_of(prefix), self.ids_of(suffix)

    def ids_of(self, text: str) -> tuple[int, ...]:
        """The tokens of a text of ours, in which special tokens are meant as such."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False)) if text else ()

    def tokenize(self, text: str, *, valid: bool, response_ids: Sequence[int]) -> tuple[int, ...]:
        """The tokens that follow a response: the observation, in a chat turn where the agent wants one."""
        if not self._agent.enable_mtrl:
            return self._body(text)
        notice = "" if valid else INVALID_ACTION_NOTICE
        ended = self._turn_end and tuple(response_ids[-len(self._turn_end) :]) == self._turn_end
        return (*(() if ended else self._turn_end), *self._prefix, *self._body(notice + text), *self._suffix)

    def _body(self, text: str) -> tuple[int, ...]:
        # What a tool says is data: a special token in it would end turns that nobody ended.
        ids = self._text_tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        side = self._agent.truncate_obs_side
        cut = cut_observation(ids, self._agent.max_obs_length, side, self._uncuttable)
        if cut.whole:
            return cut.head
        before, after = (self.ids_of(text) for text in MARKER[side])
        if side == "left":
            return (*before, *cut.tail)
        return (*cut.head, *after, *cut.tail)


def _chat_turn(tokenizer: Any, agent: ToolAgent) -> tuple[str, str]:
    """What stands before and after an observation that is a turn, the end of the response left out."""
    template = agent.mtrl_sep if agent.mtrl_sep is not None else _separator(tokenizer.apply_chat_template, agent)
    prefix, found, suffix = template.removeprefix(agent.turn_end_token).partition(_INSIDE)
    if not found:
        raise SettingsError(
            f"spec.agent.mtrlSep: {agent.mtrl_sep!r} does not say where the observation goes. Put {{obs}} there."
        )
    return prefix, suffix


def _separator(render: Callable[..., Any], agent: ToolAgent) -> str:
    """What the model's template puts between a response and the next one, around a message of the role."""
    messages = [
        {"role": "user", "content": _BEFORE},
        {"role": "assistant", "content": _AFTER},
        {"role": agent.mtrl_role, "content": _INSIDE},
    ]
    text = str(render(messages, add_generation_prompt=True, tokenize=False))
    return text.rpartition(_AFTER)[2]
