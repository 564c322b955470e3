"""Which steps' rows an asynchronous trainer requests ahead, and when its engines get its weights."""

from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from turnmill.training.checkpoints import RunState
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


class HandingOver(Trainer):
    """A trainer that notes which steps' weights its engines get."""

    on_step_end = AsyncRolloutMixin.on_step_end

    def __init__(self, *, step: int, pending: RunState | None, test_freq: int) -> None:
        super().__init__(first_step=step, max_staleness=1, steps=5)
        self.config = OmegaConf.create({"trainer": {"test_freq": test_freq}})
        self._pending_checkpoint = pending
        self._step_to_hand_over = None
        self.handed_over: list[int] = []

    def _hand_over_weights(self) -> None:
        self.handed_over.append(self.global_steps)


SAVED = RunState(step=3, slots=(), kl_coefficient=0.0)


def test_engines_get_weights_once_their_checkpoint_is_complete():
    """A turn of a policy that no attempt can begin with would be played again, with its effects."""
    trainer = HandingOver(step=3, pending=SAVED, test_freq=-1)

    trainer.on_step_end()

    assert trainer.handed_over == []
    trainer.global_steps, trainer._pending_checkpoint = 4, None
    trainer.on_step_begin()
    assert trainer.handed_over == [3]
    assert trainer.global_steps == 4
    trainer.on_step_begin()
    assert trainer.handed_over == [3]


@pytest.mark.parametrize(
    ("step", "pending", "test_freq"), [(3, None, -1), (3, SAVED, 3), (5, SAVED, -1)], ids=["none", "validation", "last"]
)
def test_engines_get_weights_at_once_without_a_checkpoint_for_a_validation_and_in_the_end(step, pending, test_freq):
    trainer = HandingOver(step=step, pending=pending, test_freq=test_freq)

    trainer.on_step_end()

    assert trainer.handed_over == [step]
