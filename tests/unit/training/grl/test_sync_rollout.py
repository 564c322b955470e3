"""GRL's rollout as a class, with a scripted policy in place of a worker group."""

from typing import Any

import pytest
import torch
from verl import DataProto

from support.agents import DocumentedAgent, response_text
from support.gateway import bpe_tokenizer
from turnmill.core.errors import SettingsError
from turnmill.grl import SyncMultiTurnRollout

TAKEN = "support.agents:Counter"


class ScriptedWorkers:
    """Answers the prompts of agents that still play with the next texts of a script, one for each agent."""

    def __init__(self, *turns: list[str]) -> None:
        self.turns = list(turns)
        self.prompts: list[list[str]] = []

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        """Return the tokens of the next texts."""
        ids, mask = prompts.batch["input_ids"], prompts.batch["attention_mask"]
        self.prompts.append([bpe_tokenizer().decode(row[seen.bool()]) for row, seen in zip(ids, mask, strict=True)])
        texts = self.turns.pop(0)
        rows = [bpe_tokenizer().encode(text, add_special_tokens=False) for text in texts]
        width = max(map(len, rows))
        end = bpe_tokenizer().eos_token_id
        return DataProto.from_dict({"responses": torch.tensor([[*row, *[end] * (width - len(row))] for row in rows])})


def config(agent_type: str = TAKEN, size: int = 2, **rollout: Any) -> dict[str, Any]:
    return {
        "data": {"max_prompt_length": 600, "max_response_length": 50},
        "rollout": {
            "training": ["counter"], "agent_group_num": [2], "agent_group_size": [size],
            "validation": ["counter"], "validation_agent_group_num": [1], "validation_agent_group_size": [1],
            "validation_seed": 7, "rollout_filter_ratio": 0.5, **rollout,
        },
        "counter": {"agent_type": agent_type, "agent_config": {"max_turns": 2, "max_actions_all_turns": 4}},
    }  # fmt: skip


def rollout_of(*turns: list[str], validation: bool = False, **settings: Any) -> SyncMultiTurnRollout:
    return SyncMultiTurnRollout(ScriptedWorkers(*turns), config(**settings), bpe_tokenizer(), validation=validation)


def answers(*actions: str) -> list[str]:
    return [response_text(action) for action in actions]


@pytest.mark.feature("GRL", "methods of its rollout")
def test_agents_play_in_turns_until_all_are_done():
    rollout = rollout_of(answers("1", "3", "2", "fly"), answers("3", "-", "1", "2"))

    rollout.rollout()

    assert (rollout.total_agent_num, rollout.total_group_num, rollout.max_turns, rollout.step_cnt) == (4, 2, 2, 2)
    assert rollout.done_mask.tolist() == [True] * 4
    first, second = rollout.actor_wg.prompts
    assert all(prompt.endswith("<|im_start|>assistant\n<think>") for prompt in first)
    # Agents of a group begin in the same state, those of another in the next.
    seeds = [int(prompt.split("of seed ")[1].split()[0]) for prompt in first]
    assert [seed - seeds[0] for seed in seeds] == [0, 0, 1, 1]
    assert second[1] == "Please respond."
    states = rollout._collect_final_rollout_states()
    assert [(state["env_id"], state["group_id"], state["penalty"]) for state in states] == [
        (0, 0, 0.0), (1, 0, 0.0), (2, 1, 0.0), (3, 1, -0.1),
    ]  # fmt: skip
    assert [turn["reward"] for turn in states[0]["history"]] == [1.0, 3.0]
    assert states[0]["history"][0]["llm_raw_response"] == response_text("1")


@pytest.mark.feature("GRL", "methods of its rollout")
def test_the_batch_of_an_update_has_grls_columns_and_the_filter_selects_groups():
    rollout = rollout_of(answers("1", "3", "2", "2"), answers("3", "-", "1", "1"))
    rollout.rollout()

    batch = rollout.build_ppo_batch(rollout._collect_final_rollout_states())
    kept, metrics = rollout.filter_rollout(batch)

    ids, responses = batch.batch["input_ids"], batch.batch["responses"]
    assert torch.equal(responses, ids[:, 1:])
    assert batch.batch["rm_scores"].sum(dim=-1).tolist() == [4.0, 3.0, 3.0, 3.0]
    assert batch.batch["rm_scores"][:, -1].tolist() == [4.0, 3.0, 3.0, 3.0]
    learned = bpe_tokenizer().decode(responses[0][batch.batch["loss_mask"][0]])
    assert "Count to 3." in learned
    assert "You count." not in learned
    assert list(batch.non_tensor_batch["group_ids"]) == [0, 0, 1, 1]
    assert batch.non_tensor_batch["messages_list"][1][-1]["content"] == "<think>hm</think><answer>3</answer>"
    assert batch.meta_info["metrics"]["counter/success"] == 0.5
    assert batch.meta_info["metrics"]["response_length"] > 0
    assert list(kept.non_tensor_batch["env_ids"]) == [0, 1]
    assert (metrics["rollout/in_group_max"], metrics["rollout/chosen_in_group_max"]) == (3.5, 4.0)


def test_scores_of_turns_are_at_their_ends():
    rollout = rollout_of(answers("1", "3", "2", "2"), answers("3", "-", "1", "1"), use_turn_scores=True)
    rollout.rollout()

    batch = rollout.build_ppo_batch(rollout._collect_final_rollout_states())

    scores, responses = batch.batch["rm_scores"][0], batch.batch["responses"][0]
    assert scores[scores != 0].tolist() == [1.0, 3.0]
    assert set(responses[scores != 0].tolist()) == {bpe_tokenizer().convert_tokens_to_ids("<|im_end|>")}


def test_a_validation_begins_with_its_seed_and_reset_with_another():
    rollout = rollout_of(validation=True)

    rollout.reset()
    validation = rollout.env_outs
    rollout.reset(seed=40)

    assert [output.state for output in validation or ()] == ["at 0 of seed 7"]
    assert [output.state for output in rollout.env_outs or ()] == ["at 0 of seed 40"]


def test_methods_are_refused_before_episodes_have_begun():
    rollout = rollout_of()

    with pytest.raises(RuntimeError, match="call reset or rollout first"):
        rollout.get_batch_env_outputs(DataProto.from_dict({"responses": torch.zeros(4, 1, dtype=torch.long)}))
    rollout.reset()
    with pytest.raises(RuntimeError, match="has played no turn"):
        rollout.build_ppo_batch(rollout._collect_final_rollout_states())


def test_a_prompt_that_is_too_long_loses_its_beginning_or_is_an_error():
    long = rollout_of()
    long.settings = long.settings.model_copy(update={"max_prompt_length": 40})
    long.reset()

    assert long.get_batch_llm_prompts(long.env_outs or []).batch["attention_mask"].sum(dim=-1).tolist() == [40] * 4
    long.settings = long.settings.model_copy(update={"truncation": "error"})
    with pytest.raises(SettingsError, match=r"data\.max_prompt_length \(40\): a prompt has"):
        long.get_batch_llm_prompts(long.env_outs or [])


def test_plain_agents_play_as_well():
    path = f"{DocumentedAgent.__module__}:{DocumentedAgent.__qualname__}"
    rollout = rollout_of(["next", "no"], ["next", "next"], agent_type=path, size=1)
    # Without the tag that the prompt ends with, as the class expects whole responses.
    rollout.rollout()

    states = rollout._collect_final_rollout_states()

    assert [state["penalty"] for state in states] == [0.0, -0.5]
    assert [len(state["history"]) for state in states] == [2, 2]
    rollout.close()
