from collections.abc import Iterator

import pytest
import torch

from turnmill.core.errors import SettingsError
from turnmill.environments import Environment, StepResult, create
from turnmill.jobs.model import WarmStart
from turnmill.jobs.verlog_agent import MemorySettings
from turnmill.training.warm_start.demonstrations import demonstrate
from turnmill.training.warm_start.expert import expert_of
from turnmill.training.warm_start.rows import build_rows, next_token_distributions

SETTINGS = WarmStart(turns=40)


class Corridor(Environment):
    name = "corridor"
    actions = ("left", "right")
    default_action = "left"

    def reset(self, seed: int) -> str:
        return "a corridor"

    def step(self, action: str) -> StepResult:
        return StepResult("its end", terminated=True)

    def instruction_prompt(self) -> str:
        return "goal: walk"


class Guide:
    def advise(self, last_action: str | None) -> str | None:
        return "right"

    def thought(self) -> str:
        return "on"

    def phrases(self) -> Iterator[str]:
        yield from ("goal: walk", "a", "on", " left", " right")


def test_rows_match_the_chat_template():
    environment = create("babyai", "GoToObj", 16)
    turns = demonstrate(environment, expert_of(environment), SETTINGS, MemorySettings())

    tokenizer, rows = build_rows(environment, expert_of(environment), SETTINGS, MemorySettings())

    for turn, row in zip(turns, rows, strict=True):
        prompt = tokenizer.apply_chat_template(list(turn.messages), add_generation_prompt=True, tokenize=False)
        assert tokenizer.decode(row.prompt_ids) == prompt
        assert tokenizer.decode(row.answer_ids) == turn.answer + tokenizer.eos_token
        assert tuple(tokenizer(turn.answer, add_special_tokens=False)["input_ids"]) == row.answer_ids[:-1]


def test_the_targets_of_an_action_are_conditional_on_its_preceding_tokens():
    turn_left, turn_right, drop = (1, 2, 0), (1, 3, 0), (4, 0)

    targets = next_token_distributions(turn_left, {turn_left: 0.2, turn_right: 0.6, drop: 0.2}, vocabulary=5)

    expected = [[0, 0.8, 0, 0, 0.2], [0, 0, 0.25, 0.75, 0], [1, 0, 0, 0, 0]]
    torch.testing.assert_close(targets, torch.tensor(expected))


def test_the_second_digit_has_the_distribution_that_follows_the_first():
    targets = next_token_distributions((1, 2, 9), {(1, 2): 0.3, (1, 3): 0.1, (4, 2): 0.6}, vocabulary=10)

    assert targets[0].tolist() == pytest.approx([0, 0.4, 0, 0, 0.6, 0, 0, 0, 0, 0])
    assert targets[1].tolist() == pytest.approx([0, 0, 0.75, 0.25, 0, 0, 0, 0, 0, 0])
    # Beyond the distribution, the token itself.
    assert targets[2].tolist() == [0] * 9 + [1]


def test_a_response_without_a_distribution_is_imitated_token_by_token():
    targets = next_token_distributions((3, 1), {}, vocabulary=4)

    assert targets.tolist() == [[0, 0, 0, 1], [0, 1, 0, 0]]


def test_a_word_missing_from_the_phrases_of_the_expert_is_refused():
    with pytest.raises(SettingsError, match=r"corridor.*leaves words out of phrases.*' corridor'"):
        build_rows(Corridor(None, 4, None), Guide(), SETTINGS, MemorySettings())


def test_an_environment_without_an_expert_is_refused():
    with pytest.raises(SettingsError, match=r"'corridor' has no expert.*Give model\.path"):
        expert_of(Corridor(None, 4, None))
