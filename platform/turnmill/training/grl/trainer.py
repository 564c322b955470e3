"""verl's trainer for groups of GRL's agents: scores normalized among groups, and a filter of groups.

Axes: K trajectories.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
import transfer_queue as tq
from omegaconf import DictConfig
from torch import Tensor
from transfer_queue import KVBatchMeta

from turnmill.jobs.grl_agent import AgentGroup
from turnmill.observability.advantage_log import TokenAdvantages
from turnmill.rollout.grl.episode_summary import GrlEpisodeSummary
from turnmill.rollout.grl.worker import GROUP_SIZE
from turnmill.rollout.row_tags import SCORE
from turnmill.training.advantages.index import TrajectoryIndex
from turnmill.training.batches.ragged import put_ragged
from turnmill.training.batches.trajectory import TrajectoryBatch, read_summaries, split
from turnmill.training.batches.trajectory_metrics import validation_metrics
from turnmill.training.dataset import response_lengths, select
from turnmill.training.grl.metrics import TEST_SCORE, environment_metrics, step_metrics
from turnmill.training.grl.reward_function import Conversations, RewardFunction
from turnmill.training.grl.scores import GroupSelection, Scores, place_scores, scores_of_tokens
from turnmill.training.trainers.async_rollout import ColocateAsync, SeparateAsync
from turnmill.training.trainers.sync import Sync
from turnmill.training.trainers.trajectory import Estimate, TrajectoryTrainer
from turnmill.training.verl.types import Metrics, Row


class GroupRows:
    """Data set with a row for each group of a step or of a validation, repeated without end."""

    def __init__(self, groups: Sequence[AgentGroup]) -> None:
        self._groups = groups

    def __getitem__(self, position: int) -> Row:
        return {"raw_prompt": [], "index": position, "agent_name": "grl", GROUP_SIZE: self.size(position)}

    def size(self, position: int) -> int:
        """Return the number of trajectories in the group of a row."""
        return self._groups[position % len(self._groups)].size


class GrlTrainer(TrajectoryTrainer):
    """Trains on groups of agents, with normalized scores, and only on the groups that a filter selects."""

    def __init__(self, config: DictConfig) -> None:
        super().__init__(config)
        self._step_metrics: dict[str, float] = {}

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        self.train_dataset = GroupRows(self.job.spec.grl_agent.training_groups)

    def _num_trajectories(self, num_tasks: int) -> int:
        return sum(self.train_dataset.size(position) for position in range(num_tasks))

    def _select_rows(self, survivors: KVBatchMeta) -> KVBatchMeta:
        """Compute the scores of trajectories, and return the rows of the groups that the filter selects."""
        agent = self.job.spec.grl_agent
        episodes = read_summaries(survivors, GrlEpisodeSummary)
        scores = Scores.of(episodes, agent.reward_normalization)
        selection = GroupSelection.of(
            scores.filtered_K,
            [episode.group for episode in episodes],
            ratio=agent.rollout_filter_ratio,
            kind=agent.rollout_filter_type,
        )
        lengths_R = response_lengths(survivors)
        rows = TrajectoryIndex.of(survivors.keys, lengths_R)
        places = place_scores(
            scores.turns_K, episodes, rows.rows_K, by_turn=agent.use_turn_scores, lengths_R=rows.lengths_R
        )
        for tag, of_row in zip(survivors.tags, places, strict=True):
            tag[SCORE] = sum(of_row.values())
        if self._reads_tokens:
            put_ragged(survivors, {"rm_scores": scores_of_tokens(places, lengths_R)}, lengths_R)
        by_key = dict(zip(survivors.keys, places, strict=True))
        self._step_metrics = {
            **selection.metrics,
            **step_metrics(episodes, max_response_tokens=agent.max_response_length),
        }
        kept = self._keep(survivors, episodes, rows, selection)
        if agent.reward_function is not None:
            self._reward(kept, [by_key[key] for key in kept.keys], agent.reward_function)
        return kept

    def _reward(self, kept: KVBatchMeta, places: Sequence[Mapping[int, float]], path: str) -> None:
        """Replace the scores of rows by the rewards of the user's function."""
        rows = self._conversations(kept, places)
        function = RewardFunction.load(path, "rewardFunction")
        rewards = rows.by_response_token(function.rewards(rows.batch(self._padding)))
        for tag, of_row in zip(kept.tags, rewards, strict=True):
            tag[SCORE] = sum(of_row.values())
        if self._reads_tokens:
            lengths_R = response_lengths(kept)
            put_ragged(kept, {"rm_scores": scores_of_tokens(rewards, lengths_R)}, lengths_R)

    @property
    def _padding(self) -> int:
        return int(self.tokenizer.pad_token_id or self.tokenizer.eos_token_id or 0)

    def _conversations(self, batch: KVBatchMeta, places: Sequence[Mapping[int, float]]) -> Conversations:
        fields = ["prompts", "responses", "response_mask"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        prompts, responses, masks = (list(data[name].unbind()) for name in fields)
        index = TrajectoryIndex.of(batch.keys, response_lengths(batch))
        summaries: dict[int, GrlEpisodeSummary] = {}
        for summary, rows in zip(read_summaries(batch, GrlEpisodeSummary), index.rows_K, strict=True):
            summaries |= dict.fromkeys(rows, summary)
        return Conversations(prompts, responses, masks, places, [summaries[row] for row in range(len(batch.keys))])

    def _keep(
        self,
        survivors: KVBatchMeta,
        episodes: Sequence[GrlEpisodeSummary],
        rows: TrajectoryIndex,
        selection: GroupSelection,
    ) -> KVBatchMeta:
        kept = [False] * len(survivors.keys)
        for episode, rows_of_it in zip(episodes, rows.rows_K, strict=True):
            for row in rows_of_it:
                kept[row] = episode.group in selection.kept
        dropped = select(survivors, [not keep for keep in kept])
        if dropped.keys:
            tq.kv_clear(keys=dropped.keys, partition_id=dropped.partition_id)
        return select(survivors, kept)

    def _describe(self, found: Estimate) -> Metrics:
        # Metrics of all episodes, including those that are not trained on.
        return super()._describe(found) | self._step_metrics

    def _length_penalties(self, rows: TrajectoryBatch) -> Tensor:
        """Return the sum of the penalties of each row's responses: the limit is that of a response, not of a row."""
        index = TrajectoryIndex.of(rows.meta.keys, rows.response_lengths_R)
        row_of_response: list[int] = []
        lengths: list[int] = []
        for summary, rows_of_it in zip(read_summaries(rows.meta, GrlEpisodeSummary), index.rows_K, strict=True):
            row_of_response.extend(rows_of_it[row] for row, _ in summary.response_ends)
            lengths.extend(summary.generated_lengths)
        penalties = self.algorithm.penalties(torch.tensor(lengths), self.job.spec.agent.response_token_limit)
        of_rows_R = penalties.new_zeros(len(rows.meta.keys))
        return of_rows_R.index_add_(0, torch.tensor(row_of_response), penalties)

    def _turn_advantages(self, rows: TrajectoryBatch, advantages_RG: Tensor) -> Iterator[TokenAdvantages]:
        """Yield the advantages of each response's tokens."""
        advantages_R = list(rows.by_token(advantages_RG))
        index = TrajectoryIndex.of(rows.meta.keys, rows.response_lengths_R)
        summaries = read_summaries(rows.meta, GrlEpisodeSummary)
        for summary, rows_of_it in zip(summaries, index.rows_K, strict=True):
            for place in summary.responses:
                of_row = advantages_R[rows_of_it[place.row]]
                yield summary.episode_id, place.turn, of_row[place.end + 1 - place.num_tokens : place.end + 1]

    def _validation_rows(self) -> list[Row]:
        """Return every group of a validation, once for each repetition."""
        agent = self.job.spec.grl_agent
        groups = GroupRows(agent.validation_groups)
        return [groups[position] for position in range(agent.validation_steps * len(agent.validation_groups))]

    def _measure_validation(self, batch: KVBatchMeta, *, num_episodes: int) -> dict[str, float]:
        agent = self.job.spec.grl_agent
        parts = split(batch)
        self._require_all_trajectories(
            parts, agent.validation_steps * sum(group.size for group in agent.validation_groups)
        )
        parts.require_few_failures(self.job.spec.training.max_failed_ratio, "Validation")
        summaries = read_summaries(parts.survivors, GrlEpisodeSummary)
        metrics = validation_metrics(summaries, num_failed=len(parts.failed.keys)) | environment_metrics(summaries)
        if agent.validation_reward_function is not None:
            rows = self._conversations(parts.survivors, [{} for _ in parts.survivors.keys])
            function = RewardFunction.load(agent.validation_reward_function, "validationRewardFunction")
            rewards_RL = function.rewards(rows.batch(self._padding))
            metrics[TEST_SCORE] = float(rewards_RL.sum()) / len(summaries)
        return metrics


class GrlTrainerSync(GrlTrainer, Sync):
    """Alternates rollout and learning on the same devices."""


class GrlTrainerColocateAsync(GrlTrainer, ColocateAsync):
    """Overlaps rollout and learning on the same devices."""


class GrlTrainerSeparateAsync(GrlTrainer, SeparateAsync):
    """Overlaps rollout and learning on separate devices."""
