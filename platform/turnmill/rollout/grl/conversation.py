"""The tokens of a conversation as they were read and sampled, in rows to learn from."""

from collections.abc import Sequence

from turnmill.rollout.tokens import Row, Tokens


class Conversation:
    """One row grows until the conversation is cut or begun anew; every response ends at a known place."""

    def __init__(self, *, learn_all: bool = False) -> None:
        """`learn_all`: what nobody sampled is learned from too."""
        self._learn_all = learn_all
        self._closed: list[Row] = []
        self._prompt: tuple[int, ...] = ()
        self._response = Tokens()
        self.places: list[tuple[int, int]] = []
        """Row and response token with which each turn ends."""

        self.lengths: list[int] = []
        """Tokens of each turn's response."""

    @property
    def ids(self) -> list[int]:
        """The tokens that the policy reads next."""
        return [*self._prompt, *self._response.ids]

    @property
    def rows(self) -> tuple[Row, ...]:
        """Every row with a response in it, up to its last one: what came after it nobody has answered."""
        row, end = self.places[-1] if self.places else (-1, -1)
        if row < len(self._closed):
            return tuple(self._closed)
        return (*self._closed, Row(self._prompt, self._response[: end + 1]))

    def begin(self, ids: Sequence[int], *, given: int | None = None) -> None:
        """Begin a row that has these tokens as its prompt; with `given`, the first so many of them.

        The others are learned from, where all is.
        """
        self._closed = list(self.rows)
        cut = given if given is not None and self._learn_all else len(ids)
        self._prompt = tuple(ids[:cut])
        self._response = Tokens.given(ids[cut:], masked=False)

    def say(self, tokens: Tokens) -> None:
        """Add a response."""
        self._response += tokens
        self.places.append((len(self._closed), len(self._response) - 1))
        self.lengths.append(len(tokens))

    def hear(self, ids: Sequence[int]) -> None:
        """Add what nobody sampled."""
        self._response += Tokens.given(ids, masked=not self._learn_all)

    def cut(self, limit: int) -> None:
        """Go on with the last `limit` tokens alone, in a row of their own."""
        self.begin(self.ids[-limit:])
