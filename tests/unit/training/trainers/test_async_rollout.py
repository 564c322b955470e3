"""Which steps' rows an asynchronous trainer requests ahead."""

from types import SimpleNamespace

import pytest

from turnmill.training.trainers.async_rollout import AsyncRolloutMixin


class Trainer(AsyncRolloutMixin):
    """A trainer that notes for which steps it requests rows."""

    def __init__(self, *, first_step: int, max_staleness: int, steps: int) -> None:
        self.job = SimpleNamespace(spec=SimpleNamespace(training=SimpleNamespace(max_staleness=max_staleness)))
        self.global_steps, self.total_training_steps = first_step, steps
        self._last_requested_step = None
        self.requested: list[int] = []

    def on_sample_end(self) -> None:
        """Do nothing."""

    def on_step_end(self) -> None:
        """Do nothing."""

    def _add_batch_to_generate(self) -> None:
        self.requested.append(self.global_steps)

    def begin_step(self) -> list[int]:
        """Return the steps whose rows are requested when the next step begins."""
        self.requested = []
        self.prepare_step()
        self.global_steps += 1
        return self.requested


@pytest.mark.parametrize(
    ("first_step", "max_staleness", "expected"),
    [
        (1, 0, [[1], [2], [3], [4], [5]]),
        (1, 2, [[1, 2, 3], [4], [5], [], []]),
        (1, 9, [[1, 2, 3, 4, 5], [], [], [], []]),
        # A resumed run requests the rows of its own first step again.
        (4, 2, [[4, 5], []]),
    ],
)
def test_the_rows_of_each_step_are_requested_once_and_no_further_ahead_than_allowed(
    first_step, max_staleness, expected
):
    trainer = Trainer(first_step=first_step, max_staleness=max_staleness, steps=5)

    assert [trainer.begin_step() for _ in expected] == expected
    assert trainer.global_steps == 6
