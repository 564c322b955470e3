"""Steps computed from rows' tags against the same steps computed from their tokens."""

import random
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from transfer_queue import BatchMeta, KVBatchMeta
from verl.protocol import BatchData
from verl.single_controller.base.decorator import MAGIC_ATTR
from verl.trainer.ppo.v1 import trainer_base
from verl.utils import transferqueue_utils

from support.row_queue import RowQueue
from turnmill.core.trajectory import EpisodeSummary
from turnmill.jobs.trajectory_algorithms import Dapo, GigPo, Grpo, Rloo, TrajectoryAlgorithmSettings
from turnmill.rollout.queue_payload import decode, encode
from turnmill.rollout.row_tags import EPISODE, NUM_TURNS, SCORE, TRAINED_TOKENS, UNSAMPLED_TOKENS, tags_of
from turnmill.rollout.rows import episode_rows
from turnmill.rollout.token_integrity import pack_tokens
from turnmill.rollout.tokens import Row, Tokens
from turnmill.training import row_advantages
from turnmill.training.advantages.rows import mean_over_trajectories
from turnmill.training.algorithms import trajectory_algorithm_of
from turnmill.training.batches import ragged, trajectory
from turnmill.training.batches.diagnostics import advantage_spread
from turnmill.training.batches.row_metrics import metrics_of_tags
from turnmill.training.batches.trajectory import TrajectoryBatch, split, with_advantages
from turnmill.training.batches.trajectory_metrics import trajectory_metrics
from turnmill.training.row_advantages import fill_in_advantages
from turnmill.training.verl.workers import PolicyWorker

ALGORITHMS = [Grpo(), Grpo(baseline="step"), Grpo(normalise=False), Rloo(), Dapo(), GigPo()]
NAMES = ["grpo", "grpo over the step", "grpo without normalisation", "rloo", "dapo", "gigpo"]


class Queue(RowQueue):
    """The queue in memory, with columns as verl reads them."""

    def kv_batch_get(self, *, keys: Any, partition_id: str, select_fields: Any) -> Any:
        columns = super().kv_batch_get(keys=keys, partition_id=partition_id, select_fields=select_fields)
        return TensorDict(columns, batch_size=len(keys))


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    queue = Queue()
    monkeypatch.setattr(trajectory, "tq", queue)
    monkeypatch.setattr(ragged, "tq", queue)
    monkeypatch.setattr(trainer_base, "tq", queue)
    return queue


def fill(queue: Queue, seed: int, *, own_rewards: bool) -> KVBatchMeta:
    """Put a step's trajectories of one to three rows, with observations between responses, and some not trained on."""
    chance = random.Random(seed)
    for task in range(6):
        for sample in range(4):
            num_rows, reward = chance.randint(1, 3), float(chance.random() < 0.5)
            summary = EpisodeSummary(
                episode_id=f"t1-{task}-{sample}", reward=reward, stop_reason="completed", success=reward > 0,
                num_turns=num_rows, seconds={"generation": 1.0, "tools": 1.0, "loop": 0.5}, row_rewards=own_rewards,
                row_states=tuple(f"state{chance.randint(0, 1)}" for _ in range(num_rows)),
            )  # fmt: skip
            for row in range(num_rows):
                length = chance.randint(2, 9)
                is_trained = chance.random() > 0.1
                mask = [int(is_trained and chance.random() < 0.7) for _ in range(length)]
                score = float(chance.randint(0, 3)) if own_rewards else reward
                columns = {
                    "prompts": [0] * chance.randint(1, 5),
                    "responses": [0] * length,
                    "response_mask": mask,
                    "rm_scores": [0.0] * (length - 1) + [score],
                    "num_turns": [num_rows],
                }
                tags = {SCORE: score, TRAINED_TOKENS: sum(mask), NUM_TURNS: num_rows, EPISODE: encode(summary)}
                versions = {"min_global_steps": chance.randint(0, 1), "max_global_steps": chance.randint(1, 2)}
                queue.add(f"task{task}_{sample}_{row}", tags=tags | versions, **columns)
    return queue.meta()


@dataclass
class Step:
    """What is computed from a step's rows."""

    advantages: list[list[float]]
    """Advantage of each trained token."""

    means_R: torch.Tensor
    metrics: dict[str, float]
    outputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    """Advantages, returns and rewards as they are computed."""


def compute(queue: Queue, rows: TrajectoryBatch, settings: TrajectoryAlgorithmSettings) -> Step:
    algorithm = trajectory_algorithm_of(settings)
    rewarded = rows.with_rewards(rows.scores_RG)
    advantages_RG, returns_RG = algorithm.advantages(rewarded)
    rows.write(advantages_RG, returns_RG, rows.scores_RG)
    penalties_R = algorithm.penalties(rows.response_lengths_R, 8)
    masks = [queue.rows[key]["response_mask"].bool() for key in rows.meta.keys]
    tokens = [
        torch.tensor(values)[mask].tolist() for values, mask in zip(rows.by_token(advantages_RG), masks, strict=True)
    ]
    return Step(
        tokens,
        mean_over_trajectories(advantages_RG, rewarded, rows.weights_RG),
        algorithm.metrics(rewarded, penalties_R)
        | advantage_spread(advantages_RG, rows.weights_RG)
        | trajectory_metrics(rows, split(rows.meta), at_once=4),
        (advantages_RG, returns_RG, rows.scores_RG),
    )


@pytest.mark.parametrize("own_rewards", [False, True])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("settings", ALGORITHMS, ids=NAMES)
def test_rows_by_tags_get_the_advantages_and_metrics_of_rows_with_tokens(queue, settings, seed, own_rewards):
    batch = fill(queue, seed, own_rewards=own_rewards)

    of_tokens = compute(queue, TrajectoryBatch.read(batch, with_reference=False), settings)
    of_tags = compute(queue, TrajectoryBatch.of_tags(batch), settings)

    assert any(map(any, of_tokens.advantages))
    for expected, found in zip(of_tokens.advantages, of_tags.advantages, strict=True):
        assert found == pytest.approx(expected, abs=1e-6)
    assert of_tags.means_R.tolist() == pytest.approx(of_tokens.means_R.tolist(), abs=1e-6)
    assert of_tags.metrics == pytest.approx(of_tokens.metrics, abs=1e-6)


def batch_meta(batch: KVBatchMeta) -> BatchMeta:
    """Return the batch without its tags, as verl sends it to workers."""
    return BatchMeta(list(range(len(batch.keys))), [batch.partition_id] * len(batch.keys))


@pytest.mark.parametrize("settings", ALGORITHMS, ids=NAMES)
def test_workers_fill_in_the_advantages_that_the_trainer_would_have_written(queue, settings, monkeypatch):
    monkeypatch.setattr(row_advantages, "places_of", batch_meta)
    batch = fill(queue, 5, own_rewards=False)
    compute(queue, TrajectoryBatch.read(batch, with_reference=False), settings)
    columns = queue.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["advantages", "response_mask"])
    rows = TrajectoryBatch.of_tags(batch)
    computed = compute(queue, rows, settings)

    class Worker:
        """A worker that gets its rows as verl's do: columns, and the batch's further information beside them."""

        def train(self, batch: BatchMeta) -> torch.Tensor:
            data = TensorDict({"response_mask": columns["response_mask"]}, batch_size=batch.size)
            for name, value in batch.extra_info.items():
                trainer_base.tu.assign_non_tensor_data(data, name, value)
            fill_in_advantages(data)
            return data["advantages"]

    (sent,) = row_advantages.to_workers(with_advantages(batch, rows.meta, *computed.outputs)).chunk(1)
    found = Worker().train(sent)

    expected = columns["advantages"].values() * columns["response_mask"].values()
    assert found.offsets().tolist() == columns["response_mask"].offsets().tolist()
    assert torch.allclose(found.values(), expected, atol=1e-6)


def test_rows_without_advantages_in_their_tags_keep_their_columns():
    data = TensorDict({"advantages": torch.ones(2, 3)}, batch_size=2)

    fill_in_advantages(data)

    assert data["advantages"].tolist() == torch.ones(2, 3).tolist()


def test_metrics_by_tags_are_those_that_verl_computes_from_tokens(queue):
    batch = fill(queue, 7, own_rewards=False)
    padding = {"is_padding": True, "prompt_len": 9, "response_len": 1, SCORE: 0.0, TRAINED_TOKENS: 0}
    queue.add("pad_0_0", tags=batch.tags[0] | padding, prompts=[0] * 9, responses=[0], response_mask=[0],
              rm_scores=[0.0], num_turns=[1])  # fmt: skip
    compute(queue, TrajectoryBatch.read(batch, with_reference=False), Grpo())
    zeros = torch.zeros(1)
    queue.rows["pad_0_0"] |= {"advantages": zeros, "returns": zeros, "token_level_rewards": zeros}
    rows = TrajectoryBatch.of_tags(batch)
    computed = compute(queue, rows, Grpo())
    whole = with_advantages(queue.meta(), rows.meta, *computed.outputs)
    timing = {"gen": 2.0, "update_actor": 3.0, "step": 10.0}
    for row in queue.rows.values():
        # Outside the mask verl's metrics read nothing.
        row["num_turns"] = row["num_turns"][0]
    expected: dict[str, Any] = {}
    verl = SimpleNamespace(
        config=trainer_base.OmegaConf.create({"actor_rollout_ref": {"rollout": {}, "model": {}}}),
        use_critic=False,
        _rollout_moe_lb_metrics_accumulator=None,
        _get_n_gpus_for_throughput=lambda: 2,
    )
    queue.kv_batch_get = with_number_of_turns(queue)
    trainer_base.PPOTrainer._compute_metrics(verl, whole, expected, timing, global_steps=3, epoch=1)

    found = metrics_of_tags(whole, timing, global_steps=3, epoch=1, num_gpus=2)

    assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)


def with_number_of_turns(queue: Queue) -> Any:
    """Return `kv_batch_get` with the column of verl's turns, which is no nested tensor."""
    read = queue.kv_batch_get

    def get(keys: Any, partition_id: str, select_fields: Any) -> Any:
        names = [name for name in select_fields if name in queue.rows[keys[0]] and name != "num_turns"]
        data = read(keys=keys, partition_id=partition_id, select_fields=names)
        data["num_turns"] = torch.stack([queue.rows[key]["num_turns"] for key in keys])
        return data

    return get


def test_an_episode_tags_its_rows_with_what_the_trainer_needs():
    first = Row((1,), Tokens.sampled([5, 6], None) + Tokens.given([7]))
    second = Row((1,), Tokens.sampled([9], None))
    summary = EpisodeSummary(
        episode_id="t", reward=0.1, stop_reason="completed", success=True, num_turns=2,
        sampled_tokens=pack_tokens([5, 6, 8]),
    )  # fmt: skip

    one, other = tags_of(episode_rows([first, second], summary))

    score = torch.tensor(0.1).item()
    assert one == {SCORE: score, TRAINED_TOKENS: 2, NUM_TURNS: 2}
    assert (other[SCORE], other[TRAINED_TOKENS], other[UNSAMPLED_TOKENS]) == (score, 1, 1)
    assert decode(other[EPISODE], EpisodeSummary) == replace(summary, sampled_tokens=b"")


def test_all_rows_of_an_episode_are_tagged_with_the_reward_of_its_last():
    rows = episode_rows(
        [Row((1,), Tokens.sampled([token], None)) for token in (5, 6, 7)],
        EpisodeSummary(episode_id="t", reward=0.5, stop_reason="completed", success=True, num_turns=3),
    )
    rows[0].reward_score = 0.25

    assert [tags[SCORE] for tags in tags_of(rows)] == [0.5] * 3


def test_each_worker_of_the_policy_trains_on_the_advantages_of_its_part_of_the_rows(monkeypatch):
    mask = torch.nested.as_nested_tensor([torch.tensor([1, 0, 1]), torch.tensor([1, 1])], layout=torch.jagged)

    def read(meta: BatchMeta) -> TensorDict:
        data = TensorDict({"response_mask": mask}, batch_size=2)
        for name, value in meta.extra_info.items():
            trainer_base.tu.assign_non_tensor_data(data, name, value)
        return data

    trained: list[TensorDict] = []
    monkeypatch.setattr(transferqueue_utils, "TQ_INITIALIZED", True)
    monkeypatch.setattr(transferqueue_utils, "_meta_to_realdata", read)
    monkeypatch.setattr(row_advantages, "places_of", batch_meta)
    monkeypatch.setattr(PolicyWorker, "query_collect_info", lambda worker, mesh: True)
    worker = object.__new__(PolicyWorker)
    worker.enable_routing_replay = False
    worker.actor = SimpleNamespace(train_mini_batch=lambda data: trained.append(data))
    tags = [{"advantage": advantage, "seq_len": 4} for advantage in (7.0, 8.0, 0.5, -1.0)]
    keys = [f"a_{number}_0" for number in range(4)]

    sent = row_advantages.to_workers(KVBatchMeta(keys=keys, tags=tags, partition_id="train"))
    for part in BatchData(sent).chunk(2):
        worker.update_actor(part)

    assert hasattr(PolicyWorker.update_actor, MAGIC_ATTR)
    found = [[row.tolist() for row in data["advantages"].unbind()] for data in trained]
    assert found == [[[7.0, 0.0, 7.0], [8.0, 8.0]], [[0.5, 0.0, 0.5], [-1.0, -1.0]]]
