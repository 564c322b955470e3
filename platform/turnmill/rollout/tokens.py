"""Token sequences with response mask and log-probs, and training rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain


@dataclass(frozen=True, slots=True)
class Tokens:
    """A sequence of tokens, each with its response mask and the log-prob with which it was sampled."""

    ids: tuple[int, ...] = ()
    mask: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()

    @classmethod
    def sampled(cls, ids: Sequence[int], log_probs: Sequence[float] | None) -> "Tokens":
        """Return the tokens of a response."""
        return cls(tuple(ids), (1,) * len(ids), tuple(log_probs) if log_probs else (0.0,) * len(ids))

    @classmethod
    def given(cls, ids: Sequence[int], *, masked: bool = True) -> "Tokens":
        """Return tokens that were not sampled, such as an observation."""
        return cls(tuple(ids), (0 if masked else 1,) * len(ids), (0.0,) * len(ids))

    @classmethod
    def joined(cls, parts: "Iterable[Tokens]") -> "Tokens":
        """Return all tokens of several sequences."""
        parts = tuple(parts)
        ids, mask, log_probs = (
            tuple(chain.from_iterable(getattr(part, name) for part in parts)) for name in ("ids", "mask", "log_probs")
        )
        return cls(ids, mask, log_probs)

    def __add__(self, other: "Tokens") -> "Tokens":
        return Tokens(self.ids + other.ids, self.mask + other.mask, self.log_probs + other.log_probs)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, part: slice) -> "Tokens":
        return Tokens(self.ids[part], self.mask[part], self.log_probs[part])


@dataclass(frozen=True, slots=True)
class Row:
    """A training row: prompt and response."""

    prompt_ids: tuple[int, ...]
    response: Tokens
    images: tuple[object, ...] = ()
    """Images whose placeholders are among the tokens, in their order."""


def num_runs(ids: Sequence[int], token: int | None) -> int:
    """Return the number of runs of a placeholder token, each of which represents one image."""
    return sum(1 for before, at in zip([None, *ids], ids, strict=False) if at == token != before)
