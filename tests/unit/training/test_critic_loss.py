from types import SimpleNamespace

import pytest
import torch

from turnmill.training.critic_loss import clipped_value_loss, slots_per_row, split_slots, turn_value_loss

CONFIG = SimpleNamespace(cliprange_value=0.5)
MAX_RESPONSE_TOKENS = 4


def nested(rows: list[list[float]]) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


def test_a_row_has_one_slot_more_than_tokens_up_to_the_response_limit():
    assert slots_per_row(torch.tensor([1, 3, 4]), max_response_tokens=4).tolist() == [2, 4, 4]


@pytest.mark.feature("Verlog", "bootstrap rows without an action")
def test_the_first_slot_is_the_value_of_the_prompt():
    # Prompts of 2 and 1 tokens, responses of 2 and 3.
    values = nested([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]])

    first, second = split_slots(values, torch.tensor([2, 1]), torch.tensor([3, 3]))

    assert first.tolist() == [2, 3, 4]
    assert second.tolist() == [5, 6, 7]


@pytest.mark.feature("Verlog", "clipping of values")
@pytest.mark.parametrize(
    ("predicted", "value", "target", "loss", "is_clipped"),
    [
        # Within the clip range the clipped prediction is the prediction.
        (1.3, 1.0, 2.0, 0.7**2, False),
        # Moved 1.0 towards the target, twice the clip range: the clipped error has no gradient.
        (2.0, 1.0, 3.0, 1.5**2, True),
        # Moved away from the target: the plain error is larger and keeps its gradient.
        (0.0, 1.0, 3.0, 3.0**2, False),
    ],
)
def test_the_value_loss_is_the_larger_of_plain_and_clipped_error(predicted, value, target, loss, is_clipped):
    errors, clipped = clipped_value_loss(*(torch.tensor([x]) for x in (predicted, value, target)), clip=0.5)

    assert errors.item() == pytest.approx(loss)
    assert clipped.item() is is_clipped


class Rows:
    """Rows with random predictions, values and returns of a critic."""

    def __init__(self, prompts: list[int], responses: list[int], seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.prompts, self.responses = prompts, responses
        self.slots = [min(length + 1, MAX_RESPONSE_TOKENS) for length in responses]
        lengths = [p + r for p, r in zip(prompts, responses, strict=True)]
        self.predicted = [torch.randn(n, generator=generator) for n in lengths]
        self.values = [torch.randn(n, generator=generator) for n in self.slots]
        self.returns = [torch.randn(n, generator=generator) for n in self.slots]

    def loss(self, picked: list[int], *, first_token_weight: float = 3.0, dp_size: int = 1) -> torch.Tensor:
        """Return the loss of the picked rows, as a part of the mini-batch of all rows."""
        data = {
            "prompts": self._pick([torch.zeros(n) for n in self.prompts], picked),
            "responses": self._pick([torch.zeros(n) for n in self.responses], picked),
            "input_ids": self._pick([torch.zeros(len(x)) for x in self.predicted], picked),
            "slot_values": self._pick(self.values, picked),
            "slot_returns": self._pick(self.returns, picked),
            "batch_num_slots": sum(self.slots),
            "dp_size": dp_size,
        }
        output = {"values": self._pick(self.predicted, picked)}
        loss, _ = turn_value_loss(
            CONFIG,
            output,
            data,
            first_token_weight=first_token_weight,
            max_response_tokens=MAX_RESPONSE_TOKENS,
        )
        return loss

    def expected_loss(self, first_token_weight: float) -> float:
        total = 0.0
        for prompt, predicted, values, returns in zip(
            self.prompts, self.predicted, self.values, self.returns, strict=True
        ):
            for slot, (value, target) in enumerate(zip(values.tolist(), returns.tolist(), strict=True)):
                prediction = predicted[prompt - 1 + slot].item()
                clipped = min(max(prediction, value - 0.5), value + 0.5)
                error = max((prediction - target) ** 2, (clipped - target) ** 2)
                total += error * (first_token_weight if slot == 0 else 1)
        return 0.5 * total / sum(self.slots)

    def masked_mean_loss(self, first_token_weight: float) -> float:
        """Return Verlog's loss: half of the mean over a mask, on rows padded to the longest prompt and response."""
        width = max(self.prompts) + MAX_RESPONSE_TOKENS
        attention, predicted, values, returns = (torch.zeros(len(self.prompts), width) for _ in range(4))
        for row, (prompt, response) in enumerate(zip(self.prompts, self.responses, strict=True)):
            start = max(self.prompts) - prompt
            attention[row, start : start + prompt + response] = 1
            predicted[row, start : start + prompt + response] = self.predicted[row]
            first = start + prompt - 1
            values[row, first : first + self.slots[row]] = self.values[row]
            returns[row, first : first + self.slots[row]] = self.returns[row]
        slots = slice(-MAX_RESPONSE_TOKENS - 1, -1)
        mask, predicted, values, returns = (x[:, slots] for x in (attention, predicted, values, returns))
        clipped = torch.clamp(predicted, values - 0.5, values + 0.5)
        errors = torch.maximum((predicted - returns) ** 2, (clipped - returns) ** 2)
        errors[:, 0] *= first_token_weight
        return 0.5 * float((errors * mask).sum() / mask.sum())

    @staticmethod
    def _pick(rows: list[torch.Tensor], picked: list[int]) -> torch.Tensor:
        return torch.nested.as_nested_tensor([rows[i] for i in picked], layout=torch.jagged)


@pytest.mark.feature("Verlog", "weight of the first value")
@pytest.mark.parametrize("first_token_weight", [1.0, 3.0])
def test_the_loss_equals_its_formula(first_token_weight):
    rows = Rows(prompts=[2, 1, 3], responses=[1, 3, 2])

    loss = rows.loss([0, 1, 2], first_token_weight=first_token_weight)

    assert loss.item() == pytest.approx(rows.expected_loss(first_token_weight), rel=1e-5)


@pytest.mark.feature("Verlog", "clipping of values")
@pytest.mark.parametrize("responses", [[1, 3, 2], [MAX_RESPONSE_TOKENS, 3, MAX_RESPONSE_TOKENS]])
def test_the_loss_equals_the_masked_mean_of_verlog(responses):
    rows = Rows(prompts=[2, 1, 3], responses=responses)

    assert rows.loss([0, 1, 2]).item() == pytest.approx(rows.masked_mean_loss(3.0), rel=1e-5)


def test_a_response_of_full_length_has_no_extra_slot():
    rows = Rows(prompts=[2, 1], responses=[MAX_RESPONSE_TOKENS, 1])

    loss = rows.loss([0, 1])

    assert loss.item() == pytest.approx(rows.expected_loss(3.0), rel=1e-5)


def test_the_loss_does_not_depend_on_how_a_mini_batch_is_split():
    rows = Rows(prompts=[2, 1, 3, 2], responses=[1, 3, 2, 4])

    together = rows.loss([0, 1, 2, 3])
    apart = rows.loss([3]) + rows.loss([0, 2]) + rows.loss([1])

    assert together.item() == pytest.approx(apart.item(), rel=1e-5)


def test_the_mean_over_data_parallel_processes_is_the_loss_of_all_rows():
    rows = Rows(prompts=[2, 1], responses=[1, 3])

    averaged = (rows.loss([0], dp_size=2) + rows.loss([1], dp_size=2)) / 2

    assert averaged.item() == pytest.approx(rows.loss([0, 1]).item(), rel=1e-5)


def test_values_of_packed_rows_are_split_by_the_lengths_of_their_inputs():
    rows = Rows(prompts=[2, 1], responses=[1, 3])
    data = {
        "prompts": nested([[0.0] * 2, [0.0]]),
        "responses": nested([[0.0], [0.0] * 3]),
        "input_ids": nested([[0.0] * 3, [0.0] * 4]),
        "slot_values": torch.nested.as_nested_tensor(rows.values, layout=torch.jagged),
        "slot_returns": torch.nested.as_nested_tensor(rows.returns, layout=torch.jagged),
        "batch_num_slots": sum(rows.slots),
        "dp_size": 1,
    }

    loss, metrics = turn_value_loss(
        CONFIG, {"values": torch.cat(rows.predicted)}, data, first_token_weight=3.0, max_response_tokens=4
    )

    assert loss.item() == pytest.approx(rows.expected_loss(3.0), rel=1e-5)
    assert metrics["critic/vf_loss"].aggregate() == pytest.approx(loss.item())
