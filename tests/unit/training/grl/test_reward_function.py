"""Reward functions of the user's own."""

import pytest
import torch

from turnmill.core.errors import SettingsError
from turnmill.rollout.grl.episode_summary import GrlEpisodeSummary
from turnmill.training.agent_kinds.grl import function_problems
from turnmill.training.grl.reward_function import Conversations, RewardFunction

MODULE = "support.reward_functions"


def conversations() -> Conversations:
    def summary(group: int) -> GrlEpisodeSummary:
        return GrlEpisodeSummary(
            episode_id=f"t1-{group}-0", reward=1.0, stop_reason="completed", success=True, num_turns=1,
            metrics={}, seconds={}, group=group, tag="counter", turn_rewards=(1.0,), turn_penalties=(0.0,),
            response_ends=((0, 1),), chat=(("user", "Count."), ("assistant", "1")),
        )  # fmt: skip

    return Conversations(
        prompts_R=[torch.tensor([5, 6]), torch.tensor([7])],
        responses_R=[torch.tensor([1, 2, 3]), torch.tensor([4, 4])],
        masks_R=[torch.tensor([1, 0, 1]), torch.tensor([1, 1])],
        scores_R=[{2: 0.5}, {0: 1.0, 1: 2.0}],
        summaries_R=[summary(0), summary(3)],
    )


@pytest.mark.feature("GRL", "a reward function of your own")
def test_the_batch_has_conversations_masks_scores_and_messages():
    batch = conversations().batch(pad=9)

    assert batch.batch["input_ids"].tolist() == [[5, 6, 1, 2, 3], [9, 9, 7, 4, 4]]
    assert batch.batch["responses"].tolist() == [[6, 1, 2, 3], [9, 7, 4, 4]]
    assert batch.batch["attention_mask"].sum(dim=-1).tolist() == [5, 3]
    assert batch.batch["loss_mask"].int().tolist() == [[0, 1, 0, 1], [0, 0, 1, 1]]
    assert batch.batch["rm_scores"].tolist() == [[0, 0, 0, 0.5], [0, 0, 1, 2]]
    assert list(batch.non_tensor_batch["group_ids"]) == [0, 3]
    assert batch.non_tensor_batch["messages_list"][1][-1] == {"role": "assistant", "content": "1"}


def test_rewards_are_placed_on_the_tokens_of_the_response():
    rewards_RL = torch.tensor([[0.0, 0, 0, 4], [1, 2, 3, 0]])

    # The second row has no token for the first reward: it goes to the first token of the response.
    assert conversations().by_response_token(rewards_RL) == [{2: 4.0}, {0: 6.0}]


@pytest.mark.feature("GRL", "a reward function of your own")
@pytest.mark.parametrize(("name", "sums"), [("length_of_conversation", [5.0, 3.0]), ("twice_the_agents", [1.0, 6.0])])
def test_a_function_may_return_rewards_or_the_mapping_of_a_reward_manager(name, sums):
    function = RewardFunction.load(f"{MODULE}:{name}", "rewardFunction")

    assert function.rewards(conversations().batch(pad=9)).sum(dim=-1).tolist() == sums


def test_rewards_of_another_shape_are_refused():
    function = RewardFunction.load(f"{MODULE}:wrong_shape", "rewardFunction")

    with pytest.raises(
        SettingsError, match=r"rewardFunction \('support.*'\) returned \(2,\)\. Return a tensor .* \(2, 4\)"
    ):
        function.rewards(conversations().batch(pad=9))


@pytest.mark.parametrize(
    ("path", "rule"), [(f"{MODULE}:nothing", "cannot be imported"), (f"{MODULE}:seen", "is no function")]
)
def test_a_function_that_does_not_exist_is_found_before_the_run(path, rule):
    values = {"spec.agent.rewardFunction": path, "spec.agent.validationRewardFunction": None}

    with pytest.raises(SettingsError, match=rule):
        RewardFunction.load(path, "rewardFunction")
    (problem,) = function_problems(values)
    assert problem.path == "spec.agent.rewardFunction"
    assert rule in str(problem)
