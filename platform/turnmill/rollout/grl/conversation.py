"""Tokens of a conversation as the policy read and sampled them, in training rows."""

from collections.abc import Sequence

from turnmill.rollout.tokens import Row, Tokens


class Conversation:
    """Context of an episode; a new row begins when the conversation is truncated or tokenized again."""

    def __init__(self, *, learn_all: bool = False) -> None:
        """Start an empty conversation; `learn_all` puts tokens that were not sampled into the loss, too."""
        self._learn_all = learn_all
        self._closed: list[Row] = []
        self._prompt: tuple[int, ...] = ()
        self._response = Tokens()
        self.response_ends: list[tuple[int, int]] = []
        """Row and response token at which each turn's response ends."""

        self.response_lengths: list[int] = []
        """Number of tokens of each turn's response."""

    @property
    def ids(self) -> list[int]:
        """Tokens that the policy reads next."""
        return [*self._prompt, *self._response.ids]

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows with a response; the last one ends with its last response."""
        row, end = self.response_ends[-1] if self.response_ends else (-1, -1)
        if row < len(self._closed):
            return tuple(self._closed)
        return (*self._closed, Row(self._prompt, self._response[: end + 1]))

    def begin(self, ids: Sequence[int], *, given: int | None = None) -> None:
        """Begin a row with these tokens as its prompt, or only the first `given` of them with `learn_all`.

        The other tokens are then trained on.
        """
        self._closed = list(self.rows)
        cut = given if given is not None and self._learn_all else len(ids)
        self._prompt = tuple(ids[:cut])
        self._response = Tokens.given(ids[cut:], masked=False)

    def append_response(self, tokens: Tokens) -> None:
        """Append a response."""
        self._response += tokens
        self.response_ends.append((len(self._closed), len(self._response) - 1))
        self.response_lengths.append(len(tokens))

    def append_context(self, ids: Sequence[int]) -> None:
        """Append tokens that were not sampled, such as an observation."""
        self._response += Tokens.given(ids, masked=not self._learn_all)

    def cut(self, limit: int) -> None:
        """Begin a row with the last `limit` tokens as its prompt."""
        self.begin(self.ids[-limit:])
