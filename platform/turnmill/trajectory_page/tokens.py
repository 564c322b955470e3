"""Tokens as a page shows them: their texts, how likely they were, what they were worth and whether they are learned."""

import codecs
import json
import math
from collections.abc import Iterable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from turnmill.observability.trajectory_log import TurnRecord

_CONTROL = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {127: 0x2421}


def printable(text: str) -> str:
    """The text with what a browser would not show made visible, and without halves of characters."""
    return text.translate(_CONTROL).encode("utf-8", errors="replace").decode()


class Vocabulary:
    """What each token says; where a run keeps none, tokens are shown by their numbers."""

    def __init__(self, pieces: Sequence[str | list[int]] = ()) -> None:
        self._pieces = pieces

    @classmethod
    def read(cls, path: Path) -> "Vocabulary":
        """The one that a run keeps."""
        try:
            return cls(json.loads(path.read_bytes()))
        except (OSError, ValueError):
            return cls()

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def texts(self, ids: Iterable[int]) -> list[str]:
        """What each token adds; of a character in several tokens, the last one has it and the others nothing."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        return [printable(self._text(token, decoder)) for token in ids]

    def _text(self, token: int, decoder: codecs.IncrementalDecoder) -> str:
        if not 0 <= token < len(self._pieces):
            return f"‹{token}›"
        piece = self._pieces[token]
        return decoder.decode(bytes(piece) if isinstance(piece, list) else piece.encode("utf-8", errors="replace"))


def learned(mask: Sequence[int], said: int, observed: int) -> list[int]:
    """1 for every token that is learned from, first of the response and then of the observation."""
    if not mask:
        return [1] * said + [0] * observed
    flags = [flag for flag, length in zip(cycle((1, 0)), mask, strict=False) for _ in range(length)]
    return (flags + [0] * (said + observed))[: said + observed]


def columns(
    turn: TurnRecord, vocabulary: Vocabulary, advantages: Sequence[float | None] | float | None, *, trained: bool
) -> dict[str, Any]:
    """The tokens of a turn, column by column: those of the response, then those of the observation."""
    said, observed = len(turn.response_ids), len(turn.observation_ids)
    ids = [*turn.response_ids, *turn.observation_ids]
    mask = learned(turn.mask, said, observed) if trained else [0] * len(ids)
    worth: list[float | None] = []
    if isinstance(advantages, float):
        worth = [advantages if flag else None for flag in mask]
    elif advantages is not None:
        worth = list(advantages)
    return {
        "ids": ids,
        "texts": vocabulary.texts(ids) if vocabulary else None,
        "said": said,
        "log_probs": [round(value, 4) if math.isfinite(value) else None for value in turn.log_probs],
        "advantages": worth,
        "learned": mask,
    }
