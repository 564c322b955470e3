"""The batch of a step with groups of GRL's agents."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from support.gateway import bpe_tokenizer
from support.grl_jobs import grl_job
from support.row_queue import RowQueue
from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.trajectory_algorithms import Dapo, Grpo, Overlong
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog
from turnmill.rollout.grl.episode_summary import GrlEpisodeSummary
from turnmill.rollout.queue_payload import decode, encode
from turnmill.rollout.row_tags import EPISODE, SCORE, TRAINED_TOKENS
from turnmill.training.algorithms.dapo import DapoAlgorithm
from turnmill.training.algorithms.grpo import GrpoAlgorithm
from turnmill.training.batches import ragged
from turnmill.training.batches import trajectory as trajectory_batch
from turnmill.training.batches.trajectory import TrajectoryBatch
from turnmill.training.grl import trainer as grl_trainer
from turnmill.training.grl.trainer import GrlTrainer, GroupRows
from turnmill.training.row_advantages import ADVANTAGE, REWARD
from turnmill.training.trainers import trajectory as trajectory_trainer
from turnmill.training.trainers.base import RunTrainer


@pytest.fixture
def queue(monkeypatch) -> RowQueue:
    queue = RowQueue()
    monkeypatch.setattr(grl_trainer, "tq", queue)
    monkeypatch.setattr(trajectory_batch, "tq", queue)
    monkeypatch.setattr(ragged, "tq", queue)
    return queue


def trainer(*, with_critic: bool = False, **agent: Any) -> GrlTrainer:
    """Create a trainer without a run, with only what these tests need."""
    made = GrlTrainer.__new__(GrlTrainer)
    made.job = job(**agent)
    made.config = OmegaConf.create(
        {
            "algorithm": {"use_kl_in_reward": False, "rollout_correction": {"rollout_is": None, "rollout_rs": None}},
            "critic": {"enable": with_critic},
            "actor_rollout_ref": {"rollout": {}, "model": {}, "actor": {}},
            "trainer": {"nnodes": 1, "n_gpus_per_node": 1},
        }
    )
    return made


def job(**agent: Any) -> AgentTrainingJob:
    return grl_job(**{"rolloutFilterRatio": 0.5, **agent})


def add_episode(
    queue: RowQueue,
    group: int,
    member: int,
    *turns: float,
    penalties: tuple[float, ...] = (),
    generated: tuple[int, ...] = (),
) -> None:
    """Add an episode of one row, in which every turn has three tokens, the last two of them the response."""
    places = tuple((0, 3 * number + 2) for number in range(len(turns)))
    summary = GrlEpisodeSummary(
        episode_id=f"t1-{group}-{member}",
        reward=sum(turns),
        stop_reason="completed",
        success=True,
        num_turns=len(turns),
        metrics={"valid_action": 1.0},
        seconds={"generation": 1.0, "tools": 1.0, "loop": 1.0},
        group=group,
        tag="counter",
        turn_rewards=turns,
        turn_penalties=penalties or (0.0,) * len(turns),
        response_ends=places,
        response_lengths=(2,) * len(turns),
        generated_lengths=generated or (2,) * len(turns),
        agent_metrics={"counter/success": 1.0},
    )
    length = 3 * len(turns)
    queue.add(
        f"group{group}_{member}_0",
        responses=[0] * length,
        rm_scores=[0.0] * length,
        prompts=[0],
        response_mask=[1] * length,
        tags={EPISODE: encode(summary), SCORE: 0.0, TRAINED_TOKENS: length},
    )


def two_groups(queue: RowQueue) -> None:
    add_episode(queue, 0, 0, 1.0, 1.0)
    add_episode(queue, 0, 1, 2.0)
    add_episode(queue, 1, 0, 0.0, 9.0, penalties=(0.0, -0.5))
    add_episode(queue, 1, 1, 1.0)


def scores(queue: RowQueue) -> dict[str, list[float]]:
    return {key: row["rm_scores"].tolist() for key, row in queue.rows.items()}


def test_the_filter_keeps_the_groups_of_highest_variance_with_their_scores(queue):
    two_groups(queue)

    chosen = trainer(with_critic=True)._select_rows(queue.meta())

    assert chosen.keys == ["group1_0_0", "group1_1_0"]
    assert [tag[SCORE] for tag in chosen.tags] == [8.5, 1.0]
    assert scores(queue) == {"group1_0_0": [0, 0, 0, 0, 0, 8.5], "group1_1_0": [0, 0, 1]}


def test_each_turn_may_have_its_own_score(queue):
    two_groups(queue)

    trainer(with_critic=True, useTurnScores=True, rewardNormalization={"method": "mean"})._select_rows(queue.meta())

    # The mean of 9 and 1 is 5; each of the two turns of the first episode bears half of it.
    assert scores(queue) == {"group1_0_0": [0, 0, -2.5, 0, 0, 6.0], "group1_1_0": [0, 0, -4.0]}


@pytest.mark.feature("GRL", "a reward function of your own")
@pytest.mark.parametrize("with_critic", [True, False])
def test_a_function_of_the_users_own_decides_the_rewards_of_the_selected_groups(queue, with_critic):
    two_groups(queue)
    made = trainer(with_critic=with_critic, rewardFunction="support.reward_functions:length_of_conversation")
    made.tokenizer = bpe_tokenizer()

    chosen = made._select_rows(queue.meta())

    # A prompt of one token, and responses of six and three.
    assert [tag[SCORE] for tag in chosen.tags] == [7.0, 4.0]
    if with_critic:
        assert scores(queue) == {"group1_0_0": [0, 0, 0, 0, 0, 7.0], "group1_1_0": [0, 0, 4.0]}


@pytest.mark.feature("GRL", "a reward function of your own")
def test_a_function_of_the_users_own_gives_the_score_of_validations(queue):
    add_episode(queue, 0, 0, 1.0)
    add_episode(queue, 1, 0, 1.0, 1.0)
    made = trainer(
        validationAgentGroupNum=[2], validationRewardFunction="support.reward_functions:length_of_conversation"
    )
    made.tokenizer = bpe_tokenizer()

    metrics = made._measure_validation(queue.meta(), num_episodes=2)

    assert metrics["val-env/test_score/unknown"] == (4 + 7) / 2
    assert metrics["val-env/response_length"] == (2 + 4) / 2


def test_metrics_cover_all_episodes_of_the_step(queue):
    two_groups(queue)
    made = trainer()

    made._select_rows(queue.meta())

    assert made._step_metrics["turnmill/trajectories"] == 4
    assert made._step_metrics["train/counter/success"] == 1.0
    assert made._step_metrics["turnmill/reward_mean"] == pytest.approx((2 + 2 + 9 + 1) / 4)


def test_advantages_are_kept_by_turn(queue):
    add_episode(queue, 0, 0, 1.0, 1.0)
    rows = TrajectoryBatch.read(queue.meta(), with_reference=False)

    found = list(trainer()._turn_advantages(rows, torch.arange(6.0)[None]))

    assert [(episode, turn, values.tolist()) for episode, turn, values in found] == [
        ("t1-0-0", 0, [1.0, 2.0]),
        ("t1-0-0", 1, [4.0, 5.0]),
    ]


def test_an_advantage_of_a_whole_row_is_kept_for_each_token_of_its_turns(queue):
    add_episode(queue, 0, 0, 1.0, 1.0)
    rows = TrajectoryBatch.of_tags(trainer()._select_rows(queue.meta()))

    found = list(trainer()._turn_advantages(rows, torch.tensor([[0.5]])))

    assert rows.scores_RG.tolist() == [[2.0]]
    assert [values.tolist() for _, _, values in found] == [[0.5, 0.5], [0.5, 0.5]]


def test_scores_given_by_the_trainer_are_those_of_the_advantages(queue, monkeypatch, tmp_path):
    for group in range(2):
        add_episode(queue, group, 0, 0.0)
        add_episode(queue, group, 1, 4.0 + group)
    made = trainer(rolloutFilterRatio=1.0, rewardNormalization={"method": "mean"})
    made.global_steps, made.trajectory_log = 1, TrajectoryLog(RunFolder(tmp_path))
    made.trajectory_log.path.mkdir()
    monkeypatch.setattr(RunTrainer, "_balance_batch", lambda self, batch, metrics: batch)
    made._num_requested, made.algorithm = Counter(), GrpoAlgorithm(Grpo())
    made.train_dataset = GroupRows(made.job.spec.grl_agent.training_groups)
    metrics: dict[str, float] = {}

    batch = made._compute_advantage(made._balance_batch(queue.meta(), metrics), metrics)

    assert [tag[SCORE] for tag in batch.tags] == [-2.0, 2.0, -2.5, 2.5]
    assert [tag[ADVANTAGE] > 0 for tag in batch.tags] == [False, True, False, True]
    assert [tag[SCORE] for tag in queue.meta().tags] == [0.0] * 4


def test_a_long_conversation_of_short_responses_has_no_length_penalty(queue, monkeypatch, tmp_path):
    add_episode(queue, 0, 0, 1.0, 1.0, 1.0)
    add_episode(queue, 0, 1, 1.0, 1.0, 1.0, generated=(6, 2, 8))

    metrics, batch = advantages_of_dapo(queue, monkeypatch, tmp_path, limit=8, tokens=4)

    # The limit of a response is 8 tokens, and each conversation has 9. Six of 8 are half of the penalty, 8 all of it.
    assert [tag[REWARD] for tag in batch.tags] == [3.0, 3.0 - 0.5 - 1.0]
    assert [tag[ADVANTAGE] > 0 for tag in batch.tags] == [True, False]
    assert metrics["turnmill/overlong_ratio"] == 0.5


def test_a_response_is_penalized_in_the_row_that_it_is_in(queue):
    add_episode(queue, 0, 0, 1.0, 1.0, 1.0, generated=(8, 2, 6))
    summary = decode(queue.tags["group0_0_0"][EPISODE], GrlEpisodeSummary)
    in_two_rows = encode(replace(summary, response_ends=((0, 2), (1, 2), (1, 5))))
    queue.tags["group0_0_1"] = queue.tags["group0_0_0"] | {EPISODE: in_two_rows}
    queue.rows["group0_0_1"] = queue.rows["group0_0_0"]
    made = trainer(maxResponseLength=8)
    made.algorithm = DapoAlgorithm(Dapo(overlong=Overlong(tokens=4, penalty=1.0)))

    assert made._length_penalties(TrajectoryBatch.of_tags(queue.meta())).tolist() == [-1.0, -0.5]


def advantages_of_dapo(
    queue: RowQueue, monkeypatch: pytest.MonkeyPatch, folder: Path, *, limit: int, tokens: int
) -> tuple[dict[str, float], KVBatchMeta]:
    """Return the metrics and the batch of a step with DAPO's length penalty of 1."""
    made = trainer(rolloutFilterRatio=1.0, maxResponseLength=limit, rewardNormalization={"method": "identity"})
    made.global_steps, made.trajectory_log = 1, TrajectoryLog(RunFolder(folder))
    made.trajectory_log.path.mkdir()
    monkeypatch.setattr(RunTrainer, "_balance_batch", lambda self, batch, metrics: batch)
    made._num_requested = Counter()
    made.algorithm = DapoAlgorithm(Dapo(overlong=Overlong(tokens=tokens, penalty=1.0)))
    made.train_dataset = GroupRows(made.job.spec.grl_agent.training_groups)
    metrics: dict[str, float] = {}
    batch = made._compute_advantage(made._balance_batch(queue.meta(), metrics), metrics)
    return metrics | made._described.result(), batch


def test_groups_are_the_rows_of_the_data_set():
    agents = [{"name": name, "agentType": "support.agents:Counter"} for name in "ab"]
    groups = GroupRows(grl_job(*agents, agentGroupNum=[1, 2], agentGroupSize=[4, 3]).spec.grl_agent.training_groups)

    assert [(groups[n]["index"], groups[n]["__rollout_n__"]) for n in range(4)] == [(0, 4), (1, 3), (2, 3), (3, 4)]


@pytest.mark.parametrize(("with_critic", "source"), [(True, "tokens"), (False, "tags")])
def test_metrics_come_from_the_tags_of_rows_unless_their_tokens_are_read(queue, monkeypatch, with_critic, source):
    two_groups(queue)
    made = trainer(with_critic=with_critic)
    made.algorithm = GrpoAlgorithm(Grpo())
    made.global_steps, made.total_training_steps = 1, 2
    monkeypatch.setattr(PPOTrainer, "_compute_metrics", lambda self, batch, metrics: metrics.update(source="tokens"))
    monkeypatch.setattr(trajectory_trainer, "metrics_of_tags", lambda batch, num_gpus: {"source": "tags"})
    monkeypatch.setattr(trajectory_trainer, "clear", lambda batch: None)
    monkeypatch.setattr(made, "_get_n_gpus_for_throughput", lambda: 1, raising=False)
    metrics: dict[str, Any] = {}

    made._compute_metrics(queue.meta(), metrics)

    assert metrics == {"source": source}
