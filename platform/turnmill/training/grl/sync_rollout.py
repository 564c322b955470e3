"""GRL's rollout as a class: agents in this process, asked turn by turn through any object that generates sequences.

Runs play agents with the agent loop, token by token and in processes of their own. This class is for scripts that call
GRL's methods themselves, such as tests of an agent with a scripted policy.

Axes: B conversations, L tokens.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from verl import DataProto

from turnmill.core.errors import SettingsError
from turnmill.environments.grl.agent_adapter import agent_of
from turnmill.environments.grl.base_agent import BaseAgent, EnvOutput
from turnmill.environments.grl.final_state import RolloutState
from turnmill.jobs.grl_agent import GrlAgent
from turnmill.training.grl.config import Configuration, agent_settings
from turnmill.training.grl.scores import GroupSelection, Scores

DONE_PROMPT = "Please respond."
"""Prompt of an agent whose episode is over: a batch has a row for each agent."""

TURN_STARTS, TURN_ENDS = "<|im_start|>", "<|im_end|>"
FIRST_RESPONSE = 3
"""Number of the turn of the first response: system and user come before."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class Generator(Protocol):
    """GRL's worker group of the policy, or anything in its place."""

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        """Return a batch with `responses` for one with `input_ids`."""


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """What scores are computed from."""

    group: int
    tag: str
    turn_rewards: tuple[float, ...]
    turn_penalties: tuple[float, ...]

    @classmethod
    def of(cls, state: RolloutState) -> "PlayedEpisode":
        """Read an agent's summary, which has one penalty for all turns: the last bears it."""
        rewards = tuple(float(turn["reward"]) for turn in state["history"])
        if not rewards:
            raise RuntimeError("An agent has played no turn: call rollout first.")
        penalties = (*(0.0,) * (len(rewards) - 1), float(state["penalty"]))
        return cls(state["group_id"], state["tag"], rewards, penalties)


class SyncMultiTurnRollout:
    """Plays all agents of a step, or of a validation, in turns that wait for the slowest."""

    def __init__(
        self,
        actor_rollout_wg: Generator,
        cfg: Configuration,
        tokenizer: PreTrainedTokenizerBase,
        processor: object = None,
        validation: bool = False,
    ) -> None:
        """Create the agents of a configuration of GRL's, or of a job; `reset` or `rollout` begins their episodes."""
        self.actor_wg, self.cfg, self.tokenizer, self.processor = actor_rollout_wg, cfg, tokenizer, processor
        self.validation = validation
        self.settings: GrlAgent = agent_settings(cfg)
        self.groups = self.settings.validation_groups if validation else self.settings.training_groups
        self.agents: list[BaseAgent] = []
        for group in self.groups:
            for _ in range(group.size):
                self.agents.append(agent_of(group.agent, group.number, len(self.agents)))
        self.max_turns = max(group.agent.agent_config.max_turns for group in self.groups)
        self.total_group_num, self.total_agent_num = len(self.groups), len(self.agents)
        self.done_mask = torch.zeros(self.total_agent_num, dtype=torch.bool)
        self.env_outs: list[EnvOutput] | None = None
        self.step_cnt = 0

    # ---- episodes ----

    def reset(self, seed: int | None = None) -> None:
        """Begin an episode of each agent, with a seed per group: if left out a random one, or that of validations."""
        if seed is None:
            seed = (
                self.settings.validation_seed if self.validation else int(np.random.default_rng().integers(1_000_000))
            )
        self.env_outs = [agent.reset(seed + agent.group_id) for agent in self.agents]
        self.done_mask = torch.zeros(self.total_agent_num, dtype=torch.bool)
        self.step_cnt = 0

    def rollout(self) -> None:
        """Play an episode of each agent."""
        self.reset()
        for _ in range(self.max_turns):
            if bool(self.done_mask.all()):
                break
            prompts = self.get_batch_llm_prompts(self._outputs())
            self.get_batch_env_outputs(self.generate_sequences(prompts))
            self.step_cnt += 1

    def get_batch_llm_prompts(self, env_outputs: Sequence[EnvOutput]) -> DataProto:
        """Return the tokenized prompt of each agent's next response, padded on the left to `maxPromptLength`."""
        texts = self._each(self._prompt, list(enumerate(env_outputs)), self.settings.num_prompt_threads)
        rows = self._each(self._tokenize, texts, self.settings.num_prompt_threads)
        length = self.settings.max_prompt_length
        ids_BL, mask_BL = self._padded(rows, length)
        return _batch(
            {
                "input_ids": ids_BL,
                "attention_mask": mask_BL,
                "position_ids": (mask_BL.cumsum(dim=-1) - 1).clamp(min=0),
                "responses": ids_BL[:, 1:],
            }
        )

    def generate_sequences(self, lm_inputs: DataProto) -> DataProto:
        """Have the policy respond to prompts."""
        return self.actor_wg.generate_sequences(lm_inputs)

    def get_batch_env_outputs(self, lm_outputs: DataProto) -> list[EnvOutput]:
        """Pass each response to its agent; return the outputs, of finished agents their last one."""
        outputs = self._outputs()
        texts = self.tokenizer.batch_decode(lm_outputs.batch["responses"], skip_special_tokens=True)

        def act(item: tuple[int, str]) -> EnvOutput:
            number, text = item
            return outputs[number] if self.done_mask[number] else self.agents[number].get_env_outputs(text)

        self.env_outs = self._each(act, list(enumerate(texts)), self.settings.num_env_threads)
        # Also by the agent's own limits of turns and actions.
        done = [output.done or agent.done for output, agent in zip(self.env_outs, self.agents, strict=True)]
        self.done_mask = torch.tensor(done, dtype=torch.bool)
        return list(self.env_outs)

    def close(self) -> None:
        """Close all agents."""
        for agent in self.agents:
            agent.close()

    # ---- the batch of a step ----

    def _collect_final_rollout_states(self) -> list[RolloutState]:
        """Return the summary of each agent's episode."""
        return [agent.get_final_rollout_states() for agent in self.agents]

    def build_ppo_batch(self, rollout_states: Sequence[RolloutState]) -> DataProto:
        """Return the conversations with mask and scores, normalized and with penalties, for an update by PPO."""
        self._outputs()
        played = [PlayedEpisode.of(state) for state in rollout_states]
        chats = [agent.get_messages() for agent in self.agents]
        texts = [self.tokenizer.apply_chat_template(chat, tokenize=False) for chat in chats]
        rows = [self._ids(str(text)) for text in texts]
        ids_BL, mask_BL = self._padded(rows, max(map(len, rows)))
        scores = Scores.of(played, self.settings.reward_normalization)
        loss_mask_BL, scores_BL, responses_BL = self.get_masks_and_scores(
            ids_BL, [turns.tolist() for turns in scores.turns_K], use_turn_scores=self.settings.use_turn_scores
        )
        batch = _batch(
            {
                "input_ids": ids_BL,
                "attention_mask": mask_BL,
                "position_ids": mask_BL.cumsum(dim=-1),
                "responses": ids_BL[:, 1:],
                "loss_mask": loss_mask_BL,
                "rm_scores": scores_BL,
            }
        )
        batch.non_tensor_batch = {
            "env_ids": np.array([state["env_id"] for state in rollout_states], dtype=object),
            "group_ids": np.array([state["group_id"] for state in rollout_states], dtype=object),
            "messages_list": _objects(chats),
        }
        lengths_B = responses_BL.sum(dim=-1).float()
        batch.meta_info = {"metrics": self._metrics(rollout_states) | {"response_length": float(lengths_B.mean())}}
        return batch

    def get_masks_and_scores(
        self, input_ids: Tensor, all_scores: Sequence[Sequence[float]] | None = None, use_turn_scores: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return loss mask and scores of all tokens but the first, and the mask of responses, by the template's marks.

        The loss covers everything after the system message. A score is at the end of its turn, or the sum at the last
        token.
        """
        start, end = self._mark(TURN_STARTS), self._mark(TURN_ENDS)
        turns_BL = (input_ids == start).long().cumsum(dim=-1)
        responses_BL = (turns_BL % 2 == 1) & (turns_BL >= FIRST_RESPONSE)
        scores_BL = torch.zeros(input_ids.shape, dtype=torch.float32)
        for row, scores in enumerate(all_scores or ()):
            if not use_turn_scores:
                scores_BL[row, -1] = sum(scores)
                continue
            for turn, score in enumerate(scores):
                scores_BL[row, (input_ids[row] == end) & (turns_BL[row] == FIRST_RESPONSE + 2 * turn)] = score
        return (turns_BL > 1)[:, :-1], scores_BL[:, 1:], responses_BL

    def filter_rollout(self, rollout_batch: DataProto) -> tuple[DataProto, dict[str, float]]:
        """Return the rows of the groups that the filter selects, and the filter's metrics."""
        groups = [int(group) for group in rollout_batch.non_tensor_batch["group_ids"]]
        selection = GroupSelection.of(
            rollout_batch.batch["rm_scores"].sum(dim=-1),
            groups,
            ratio=self.settings.rollout_filter_ratio,
            kind=self.settings.rollout_filter_type,
        )
        kept = np.array([group in selection.kept for group in groups])
        return rollout_batch.select_idxs(kept), dict(selection.metrics)

    # ---- parts ----

    def _outputs(self) -> list[EnvOutput]:
        if self.env_outs is None:
            raise RuntimeError("The agents have no episodes: call reset or rollout first.")
        return self.env_outs

    def _prompt(self, item: tuple[int, EnvOutput]) -> str:
        number, output = item
        if self.done_mask[number]:
            return DONE_PROMPT
        agent = self.agents[number]
        chat = agent.get_llm_prompts(output)
        text = self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        return f"{text}{agent.prefix}"

    def _tokenize(self, text: str) -> list[int]:
        ids, limit = self._ids(text), self.settings.max_prompt_length
        if len(ids) > limit and self.settings.truncation == "error":
            raise SettingsError(f"data.max_prompt_length ({limit}): a prompt has {len(ids)} tokens. Raise it.")
        return ids[-limit:]

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _mark(self, text: str) -> int:
        ids = self._ids(text)
        if len(ids) != 1:
            raise SettingsError(f"The tokenizer has no token {text}, by which turns are told apart. Use one of ChatML.")
        return ids[0]

    def _padded(self, rows: Sequence[Sequence[int]], length: int) -> tuple[Tensor, Tensor]:
        """Return rows padded on the left, and their attention mask."""
        pad = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.tokenizer.eos_token_id
        ids_BL = torch.full((len(rows), length), int(pad), dtype=torch.long)
        mask_BL = torch.zeros_like(ids_BL)
        for number, row in enumerate(rows):
            if row:
                ids_BL[number, -len(row) :] = torch.tensor(row)
                mask_BL[number, -len(row) :] = 1
        return ids_BL, mask_BL

    def _metrics(self, states: Sequence[RolloutState]) -> dict[str, float]:
        """Return the agents' metrics, each divided by the number of agents of its kind."""
        sums: dict[str, float] = {}
        tags = [str(state["tag"]) for state in states]
        for state in states:
            for name, value in state["metrics"].items():
                sums[name] = sums.get(name, 0.0) + float(value) / tags.count(str(state["tag"]))
        return sums

    @staticmethod
    def _each(function: Callable[[Item], Result], items: Sequence[Item], threads: int) -> list[Result]:
        with ThreadPoolExecutor(threads or min(32, os.cpu_count() or 1)) as executor:
            return list(executor.map(function, items))


def _batch(columns: Mapping[str, Tensor]) -> DataProto:
    size = len(next(iter(columns.values())))
    return DataProto(batch=TensorDict(dict(columns), batch_size=size), non_tensor_batch={}, meta_info={})


def _objects(items: Sequence[object]) -> npt.NDArray[np.object_]:
    """Return an array of objects of any lengths."""
    array = np.empty(len(items), dtype=object)
    array[:] = list(items)
    return array
