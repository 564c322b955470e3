import math
import random
from dataclasses import replace

import pytest
import torch

from turnmill.core.errors import RunFailedError
from turnmill.jobs.model import WarmStart
from turnmill.training.warm_start.cloning import Row, answer_loss, build_model, clone, least_loss
from turnmill.training.warm_start.tokenizer import END_ID

VOCABULARY = 12
SETTINGS = WarmStart(gradient_steps=8, batch_size=4, hidden_size=16, max_loss=10.0)


def row(prompt_length: int, answer: tuple[int, ...]) -> Row:
    draw = random.Random(prompt_length)
    prompt = tuple(draw.randrange(6, VOCABULARY) for _ in range(prompt_length))
    return Row(prompt, (*answer, END_ID), torch.eye(VOCABULARY)[[answer[-1], END_ID]])


ROWS = [row(length, (6 + length % 6, 7)) for length in range(2, 9)]


def clone_model(settings: WarmStart):
    model = build_model(VOCABULARY, settings)
    steps: list[tuple[int, int, float]] = []
    loss = clone(model, ROWS, settings, lambda *progress: steps.append(progress))
    return model, loss, steps


def test_the_loss_of_a_batch_is_the_mean_over_its_answer_tokens():
    model = build_model(VOCABULARY, SETTINGS)
    batch = [row(3, (6, 7)), row(9, (8, 9, 10))]

    alone = [answer_loss(model, [one]) * len(one.answer_ids) for one in batch]

    torch.testing.assert_close(answer_loss(model, batch), sum(alone) / 7)


def test_equal_settings_give_equal_weights():
    first, second = clone_model(SETTINGS)[0].state_dict(), clone_model(SETTINGS)[0].state_dict()

    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_loss_falls_and_every_step_is_reported():
    _, loss, steps = clone_model(SETTINGS.model_copy(update={"gradient_steps": 60}))

    assert loss == steps[-1][2] < steps[0][2]
    assert [done for done, _, _ in steps] == list(range(1, len(steps) + 1))
    assert steps[-1][0] == steps[-1][1]


def test_a_loss_that_stays_high_is_refused_after_additional_steps():
    steps: list[int] = []
    settings = SETTINGS.model_copy(update={"max_loss": 1e-6})

    with pytest.raises(RunFailedError, match=r"loss \d\.\d+ after 12 gradient steps.*maxLoss.*gradientSteps=16") as it:
        clone(build_model(VOCABULARY, settings), ROWS, settings, lambda done, *_: steps.append(done))

    assert it.value.cause == "warm_start"
    assert steps[-1] == 12


def test_a_max_loss_that_no_imitation_reaches_is_refused_before_the_first_step():
    steps: list[int] = []
    settings = SETTINGS.model_copy(update={"max_loss": 0.2})
    # Three tokens, the first of which is certain; of the two others each is drawn from two, and from one.
    undecided = torch.zeros(2, VOCABULARY)
    undecided[0, 6:8] = 0.5
    undecided[1, END_ID] = 1
    rows = [replace(ROWS[0], action_targets=undecided)]

    assert least_loss(rows) == pytest.approx(math.log(2) / 3)
    with pytest.raises(RunFailedError, match=r"maxLoss: 0\.2 is below 0\.231.*Set it to 0\.29.*actionNoise") as it:
        clone(build_model(VOCABULARY, settings), rows, settings, lambda done, *_: steps.append(done))

    assert it.value.cause == "warm_start"
    assert steps == []


def test_cloning_restores_the_number_of_threads():
    threads = torch.get_num_threads()

    clone_model(SETTINGS)

    assert torch.get_num_threads() == threads


def test_building_a_model_does_not_change_the_global_random_state():
    torch.manual_seed(7)
    expected = torch.rand(1)

    torch.manual_seed(7)
    build_model(VOCABULARY, SETTINGS)

    assert torch.equal(torch.rand(1), expected)
