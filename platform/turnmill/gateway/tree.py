"""The tree of a trajectory: each generation continues the tokens of an earlier one, or begins a conversation."""

import itertools
from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from turnmill.gateway.messages import ReasoningPlace

TokenArray: TypeAlias = "array[int]"
"""Token ids as numbers of four bytes: copies of a long context touch no objects."""

NO_TOKENS: TokenArray = array("I")

BranchReason = Literal["", "sibling", "rewritten", "tools", "system", "conversation", "template"]
"""Why a generation does not continue the last one of its conversation: another answer to the same messages or other
messages after the same answer (`sibling`), a changed history (`rewritten`), other tools (`tools`), another system
prompt (`system`), another first message (`conversation`), or a template that cannot render what was added alone
(`template`)."""


@dataclass(frozen=True, slots=True)
class Opening:
    """Digests of what a conversation opens with."""

    tools: str
    system: str
    first: str


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation of the policy, and the tokens between its parent and it, which nobody sampled."""

    number: int
    parent: int | None
    given_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    asked: str
    """Key of the conversation before the answer."""

    answered: str
    """Key of the conversation with the answer."""

    opening: Opening
    reason: BranchReason = ""
    reasoning: ReasoningPlace = ""
    """Where the last reasoning is that the policy has in its context after this generation."""

    text: str = ""
    """Of a completion of plain text: all text, prompt and response."""

    pictures: tuple[str, ...] = ()
    """Digests of the pictures whose placeholders are among the tokens before it."""


@dataclass(frozen=True, slots=True)
class TreeRow:
    """A training row: what the policy had read, and the tokens after it with their mask and log-probs."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    mask: tuple[int, ...]
    log_probs: tuple[float, ...]
    generations: tuple[int, ...]
    """Numbers of the generations that are trained on in this row."""

    pictures: tuple[str, ...] = ()
    """Digests of the pictures whose placeholders are among the tokens, in order."""


class Tree:
    """All generations of a trajectory."""

    def __init__(self) -> None:
        self.generations: list[Generation] = []
        self._by_answer: dict[str, int] = {}
        self._by_question: dict[str, list[int]] = {}
        self._texts: list[int] = []
        self._parents: set[int] = set()
        self._last_context = (-1, NO_TOKENS)
        """The generation whose context was asked for last, and that context."""

    def add(self, generation: Generation) -> None:
        """Add the next generation."""
        assert generation.number == len(self.generations)
        self.generations.append(generation)
        if generation.parent is not None:
            self._parents.add(generation.parent)
        if generation.text:
            self._texts.append(generation.number)
        self._by_answer.setdefault(generation.answered, generation.number)
        self._by_question.setdefault(generation.asked, []).append(generation.number)

    # ---- finding the place of a request ----

    def continued_by(self, keys: Sequence[str]) -> tuple[int | None, int]:
        """Return the last generation that a conversation with these keys contains, and its messages up to there."""
        for length in range(len(keys) - 1, 0, -1):
            if (number := self._by_answer.get(keys[length])) is not None:
                return number, length
        return None, 0

    def continued_by_text(self, prompt: str) -> tuple[int | None, int]:
        """Return the generation whose text is the longest beginning of a prompt, and the length of that text."""
        fitting = [number for number in self._texts if prompt.startswith(self.generations[number].text)]
        if not fitting:
            return None, 0
        best = max(fitting, key=lambda number: (len(self.generations[number].text), -number))
        return best, len(self.generations[best].text)

    def answers_to(self, key: str) -> list[Generation]:
        """Return the generations that answer a conversation with this key."""
        return [self.generations[number] for number in self._by_question.get(key, ())]

    def branch_reason(self, parent: int | None, opening: Opening, *, rewritten: bool) -> BranchReason:
        """Return why a generation at this place branches; empty if it continues the last one, or is the first."""
        if parent is not None:
            if rewritten:
                return "rewritten"
            return "sibling" if parent in self._parents else ""
        openings = {generation.opening for generation in self.generations if generation.parent is None}
        if not openings:
            return ""
        if opening in openings:
            return "rewritten" if rewritten else "sibling"
        if opening.tools not in {other.tools for other in openings}:
            return "tools"
        if opening.system not in {other.system for other in openings}:
            return "system"
        return "conversation"

    # ---- tokens ----

    def path(self, number: int | None) -> list[Generation]:
        """Return the generations from the beginning of a conversation to one of them."""
        path = []
        while number is not None:
            path.append(self.generations[number])
            number = path[-1].parent
        return path[::-1]

    def context_ids(self, number: int | None) -> TokenArray:
        """Return all tokens up to the end of a generation, as an array that nobody changes."""
        if number is None:
            return NO_TOKENS
        # The last one is most often its parent: it is only added to.
        known, context = self._last_context
        added = []
        place: int | None = number
        while place is not None and place != known:
            added.append(self.generations[place])
            place = self.generations[place].parent
        parts = [part for generation in reversed(added) for part in (generation.given_ids, generation.response_ids)]
        context = (context if place is not None else NO_TOKENS) + array("I", itertools.chain(*parts))
        self._last_context = (number, context)
        return context

    def rows(self, served: Collection[int] | None = None) -> list[TreeRow]:
        """Return a row for each leaf; every sampled token is trained on in exactly one of them.

        With `served`, generations that are neither in it nor before one in it are left out.
        """
        kept = self._with_ancestors(range(len(self.generations)) if served is None else served)
        parents = {self.generations[number].parent for number in kept}
        trained: set[int] = set()
        rows = []
        for leaf in sorted(kept - parents):
            row = self._row(self.path(leaf), trained)
            trained.update(row.generations)
            rows.append(row)
        return rows

    def _with_ancestors(self, numbers: Iterable[int]) -> set[int]:
        return {generation.number for number in numbers for generation in self.path(number)}

    def _row(self, path: Sequence[Generation], trained: Collection[int]) -> TreeRow:
        first = next(place for place, generation in enumerate(path) if generation.number not in trained)
        prompt = [*self.context_ids(path[first].parent), *path[first].given_ids]
        ids: list[int] = []
        mask: list[int] = []
        log_probs: list[float] = []
        for place, generation in enumerate(path[first:]):
            if place:
                ids += generation.given_ids
                mask += [0] * len(generation.given_ids)
                log_probs += [0.0] * len(generation.given_ids)
            ids += generation.response_ids
            mask += [1] * len(generation.response_ids)
            log_probs += generation.log_probs or [0.0] * len(generation.response_ids)
        numbers = tuple(generation.number for generation in path[first:])
        pictures = tuple(digest for generation in path for digest in generation.pictures)
        return TreeRow(tuple(prompt), tuple(ids), tuple(mask), tuple(log_probs), numbers, pictures)
