"""Context of an agent with tools, and its training rows."""

from collections.abc import Collection, Sequence

from turnmill.core.observations import step_back, step_forward
from turnmill.rollout.tokens import Row, Tokens, num_runs


class Context:
    """Prompt and later turns that the policy reads, with at most `budget` tokens after the prompt."""

    def __init__(
        self,
        prompt_ids: Sequence[int],
        *,
        budget: int,
        cut_side: str = "left",
        max_start: int | None = None,
        images: Sequence[object] = (),
        image_id: int | None = None,
        placeholders: Collection[int] = frozenset(),
    ) -> None:
        """Take the prompt with its images; `image_id` is their placeholder, and no run of `placeholders` is cut."""
        self.prompt_ids = tuple(prompt_ids)
        self._budget = budget
        self._cut_side = cut_side
        self._max_start = max_start
        self._turns: list[Tokens] = []
        self._ids = list(prompt_ids)
        self._prompt_images = tuple(images)
        self._turn_images: list[tuple[object, ...]] = []
        self._image_id = image_id
        self._placeholders = placeholders
        self._first_of_row = 0
        self._rows: list[Row] = []

    @property
    def ids(self) -> list[int]:
        """Tokens that the policy reads next, in the list to which later ones are added."""
        return self._ids

    @property
    def images(self) -> list[object]:
        """Images that the policy reads next."""
        return [*self._prompt_images, *(image for images in self._turn_images for image in images)]

    @property
    def room(self) -> int:
        """Number of tokens that still fit."""
        return self._budget - self.num_response_tokens

    @property
    def num_response_tokens(self) -> int:
        """Number of tokens after the prompt."""
        return len(self._ids) - len(self.prompt_ids)

    def begin_turn(self, tokens: Tokens) -> None:
        """Add the response of a new turn."""
        self._turns.append(tokens)
        self._turn_images.append(())
        self._ids.extend(tokens.ids)

    def add(self, tokens: Tokens, images: Sequence[object] = ()) -> None:
        """Add tokens, and the images among them, to the last turn."""
        if not self._turns:
            self.begin_turn(Tokens())
        self._turns[-1] += tokens
        self._turn_images[-1] += tuple(images)
        self._ids.extend(tokens.ids)

    def roll(self) -> None:
        """Close the row, then drop the oldest turns until half of the budget is free."""
        self._close_row()
        while self._turns and self.room < self._budget - self._budget // 2:
            dropped = self._turns.pop(0)
            self._turn_images.pop(0)
            # Another list: a client may still hold the one that it was given.
            start = len(self.prompt_ids)
            self._ids = self._ids[:start] + self._ids[start + len(dropped) :]
        self._first_of_row = len(self._turns)

    def rows(self) -> tuple[Row, ...]:
        """Return all rows, including the current one; each response token is trained on in one of them."""
        self._close_row()
        self._first_of_row = len(self._turns)
        return tuple(self._rows)

    def _close_row(self) -> None:
        read = Tokens.joined(self._turns[: self._first_of_row]).ids
        response = Tokens.joined(self._turns[self._first_of_row :])
        if not len(response):
            return
        prompt = [*self.prompt_ids, *read]
        room = self._budget - len(read)
        if len(response) > room and self._cut_side == "right":
            # The policy read the first tokens, so they stay in the row, but are no longer trained on.
            surplus = len(response) - room
            prompt, response = [*prompt, *response.ids[:surplus]], response[surplus:]
        response = response[: step_back(response.ids, room, self._placeholders)]
        start = 0 if self._max_start is None else max(0, len(prompt) - self._max_start)
        start = step_forward(prompt, start, self._placeholders)
        num_dropped = num_runs(prompt[:start], self._image_id)
        num_kept = num_runs([*prompt[start:], *response.ids], self._image_id)
        images = tuple(self.images[num_dropped : num_dropped + num_kept])
        self._rows.append(Row(tuple(prompt[start:]), response, images))
