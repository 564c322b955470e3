"""Tokens for the page: text, log-prob, advantage and response mask."""

import codecs
import json
import math
from collections.abc import Iterable, Sequence
from itertools import cycle
from pathlib import Path
from typing import TypedDict

from turnmill.observability.trajectory_log import TurnRecord

_CONTROL = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {127: 0x2421}


def printable(text: str) -> str:
    """Return a text with control characters made visible and lone surrogates replaced."""
    return text.translate(_CONTROL).encode("utf-8", errors="replace").decode()


class Vocabulary:
    """Text of each token id; if the run has none, token ids are shown instead."""

    def __init__(self, pieces: Sequence[str | list[int]] = ()) -> None:
        self._pieces = pieces

    @classmethod
    def read(cls, path: Path) -> "Vocabulary":
        """Read a run's vocabulary; empty if there is none."""
        try:
            return cls(json.loads(path.read_bytes()))
        except (OSError, ValueError):
            return cls()

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the text that each token adds; a character split over several tokens belongs to the last of them."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        return [printable(self._text(token, decoder)) for token in ids]

    def _text(self, token: int, decoder: codecs.IncrementalDecoder) -> str:
        if not 0 <= token < len(self._pieces):
            return f"‹{token}›"
        piece = self._pieces[token]
        return decoder.decode(bytes(piece) if isinstance(piece, list) else piece.encode("utf-8", errors="replace"))


def expand_mask(mask: Sequence[int], num_response: int, num_observation: int) -> list[int]:
    """Expand the run lengths of a mask to 1 or 0 per token of the response and then of the observation."""
    if not mask:
        return [1] * num_response + [0] * num_observation
    flags = [flag for flag, length in zip(cycle((1, 0)), mask, strict=False) for _ in range(length)]
    return (flags + [0] * (num_response + num_observation))[: num_response + num_observation]


class TokenColumns(TypedDict):
    """Tokens of a turn, column by column, as read by the page's script."""

    ids: list[int]
    texts: list[str] | None
    num_response: int
    """Number of response tokens; the others belong to the observation."""
    log_probs: list[float | None]
    advantages: list[float | None]
    mask: list[int]


def token_columns(
    turn: TurnRecord, vocabulary: Vocabulary, advantages: Sequence[float | None] | float | None, *, trained: bool
) -> TokenColumns:
    """Return the tokens of a turn: those of the response, then those of the observation."""
    num_response, num_observation = len(turn.response_ids), len(turn.observation_ids)
    ids = [*turn.response_ids, *turn.observation_ids]
    mask = expand_mask(turn.mask, num_response, num_observation) if trained else [0] * len(ids)
    if isinstance(advantages, float):
        advantages = [advantages if flag else None for flag in mask]
    return {
        "ids": ids,
        "texts": vocabulary.decode(ids) if vocabulary else None,
        "num_response": num_response,
        "log_probs": [round(value, 4) if math.isfinite(value) else None for value in turn.log_probs],
        "advantages": list(advantages or ()),
        "mask": mask,
    }
