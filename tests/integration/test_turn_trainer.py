"""Advantages and losses that the trainer of turns computes from a step's rows."""

import math
import random
import statistics
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.core_algos import get_kl_controller

from support.jobs import job
from support.models import model_without_weights
from support.row_queue import RowQueue
from turnmill.core.errors import RunFailedError
from turnmill.core.trajectory import SegmentMetadata, TurnMetadata
from turnmill.jobs import AgentTrainingJob
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog
from turnmill.rollout.queue_payload import TURN_METADATA, encode
from turnmill.training import rollout_correction
from turnmill.training.batches import ragged
from turnmill.training.batches import turn as turn_batch
from turnmill.training.trainers import turn as turn_trainer
from turnmill.training.trainers.base import RunTrainer
from turnmill.training.trainers.turn import TurnTrainer
from turnmill.training.verl.config import build_verl_config

MAX_RESPONSE_TOKENS = 4
TOKEN_GAMMA, TOKEN_LAMBDA, STEP_GAMMA, STEP_LAMBDA = 0.9, 0.8, 0.95, 0.7
FIRST_TOKEN_WEIGHT, VALUE_CLIP = 5.0, 0.25

# Response tokens of the turns of each segment.
LENGTHS = {"1e0": (3, 1, 4, 2), "1e1": (1, 4, 2, 3), "1e2": (2, 2, 1, 4)}
NUM_TURNS = 4
ENDS = {("1e0", 1), ("1e2", 0), ("1e2", 3)}
TRUNCATED = {("1e0", 1), ("1e1", 2)}

RATIOS = (0.4, 3.0, 1.1, 0.9)
"""Probability of each response token of a turn by the trainer, divided by the engine's."""

Place = tuple[str, int]
"""A segment, and a time in it; the bootstrap row follows the turns."""


@dataclass(frozen=True)
class Row:
    """A turn or a bootstrap row, and the models' outputs for its tokens."""

    num_prompt: int
    num_response: int
    score: float
    old_log_probs: list[float]
    ref_log_probs: list[float]
    predicted: list[float]
    """The critic's value at each token of prompt and response."""

    @property
    def values(self) -> list[float]:
        """The values before each response token, and after the last one if there is room."""
        first = self.num_prompt - 1
        return self.predicted[first : first + min(self.num_response + 1, MAX_RESPONSE_TOKENS)]

    def rewards(self, kl_coefficient: float) -> list[float]:
        """The score at the last response token, and the KL penalty at each of them."""
        log_probs = zip(self.old_log_probs, self.ref_log_probs, strict=True)
        rewards = [-kl_coefficient * (old - reference) for old, reference in log_probs]
        rewards[-1] += self.score
        return rewards


@dataclass
class TurnResults:
    """The expected results of a turn."""

    advantages: list[float]
    returns: list[float]
    slot_returns: list[float]
    token_level_rewards: list[float]


def rows_of_a_step() -> dict[Place, Row]:
    """Three segments of four turns, and their bootstrap rows."""
    numbers = random.Random(0)
    return {
        (segment, time): row(numbers, length)
        for segment, lengths in LENGTHS.items()
        for time, length in enumerate((*lengths, 1))
    }


def row(numbers: random.Random, num_response: int) -> Row:
    num_prompt = numbers.randint(1, 4)
    old, reference, predicted = (
        [numbers.uniform(-2, 2) for _ in range(count)]
        for count in (num_response, num_response, num_prompt + num_response)
    )
    return Row(num_prompt, num_response, numbers.uniform(-1, 1), old, reference, predicted)


def expected_results(rows: dict[Place, Row], kl_coefficient: float) -> dict[Place, TurnResults]:
    """Compute the expected results by a recursion from the last slot of each segment to the first."""
    found = {}
    for segment in LENGTHS:
        running, next_value = 0.0, rows[segment, NUM_TURNS].values[0]
        for time in reversed(range(NUM_TURNS)):
            turn = rows[segment, time]
            values, rewards = turn.values, turn.rewards(kl_coefficient)
            gamma, decay = STEP_GAMMA, STEP_GAMMA * STEP_LAMBDA
            if (segment, time) in ENDS:
                gamma = decay = 0.0
            advantages: list[float] = []
            for slot in reversed(range(len(values))):
                reward = rewards[slot] if slot < turn.num_response else 0.0
                running = reward + gamma * next_value - values[slot] + decay * running
                advantages.insert(0, running)
                next_value, gamma, decay = values[slot], TOKEN_GAMMA, TOKEN_GAMMA * TOKEN_LAMBDA
            returns = [advantage + value for advantage, value in zip(advantages, values, strict=True)]
            length = turn.num_response
            found[segment, time] = TurnResults(advantages[:length], returns[:length], returns, rewards)
    return found


def whiten(found: dict[Place, TurnResults]) -> None:
    """Bring the advantages of all response tokens to mean 0 and variance 1."""
    advantages = [advantage for learned in found.values() for advantage in learned.advantages]
    mean, deviation = statistics.mean(advantages), statistics.stdev(advantages)
    for learned in found.values():
        learned.advantages = [(advantage - mean) / deviation for advantage in learned.advantages]


def key_of(place: Place) -> str:
    return f"{place[0]}_0_{place[1]}"


def add(queue: RowQueue, rows: dict[Place, Row], *, with_reference: bool) -> None:
    """Add the rows as a rollout does, in no order; bootstrap rows have no log-probs."""
    for place in random.Random(1).sample(list(rows), len(rows)):
        row, is_turn = rows[place], place[1] < NUM_TURNS
        fields = {
            "prompts": torch.zeros(row.num_prompt, dtype=torch.long),
            "responses": torch.zeros(row.num_response, dtype=torch.long),
            "response_mask": torch.full((row.num_response,), int(is_turn)),
            TURN_METADATA: encode(metadata(place)),
        }
        if is_turn:
            fields |= {"rm_scores": doubles([0.0] * (row.num_response - 1) + [row.score])}
            fields |= {"old_log_probs": doubles(row.old_log_probs)}
            # A ratio of the trainer's and the engine's probabilities for each token.
            fields |= {
                "rollout_log_probs": doubles([x - math.log(r) for x, r in zip(row.old_log_probs, RATIOS, strict=False)])
            }
        if is_turn and with_reference:
            fields |= {"ref_log_prob": doubles(row.ref_log_probs)}
        queue.add(key_of(place), **fields)


def metadata(place: Place) -> TurnMetadata | SegmentMetadata:
    if place[1] == NUM_TURNS:
        return SegmentMetadata()
    return TurnMetadata(done=place in ENDS, truncated=place in TRUNCATED)


def doubles(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


class Critic:
    """A critic that writes its predictions into the rows when its result is awaited."""

    def __init__(self, queue: RowQueue, rows: dict[Place, Row]) -> None:
        self.queue = queue
        self.predicted = {key_of(place): doubles(row.predicted) for place, row in rows.items()}
        self.loss: Any = None

    def infer_batch(self, batch: KVBatchMeta) -> SimpleNamespace:
        return SimpleNamespace(futures=[partial(self._predict, batch.keys)])

    def set_loss_fn(self, loss: Any) -> None:
        self.loss = loss

    def _predict(self, keys: list[str]) -> None:
        for key in keys:
            self.queue.rows[key]["values"] = self.predicted[key]


class TrainerWithSetup(RunTrainer):
    """A trainer whose set-up stands for verl's."""

    def _setup(self) -> None:
        self.critic_wg.set_loss_fn("verl's own")


class TurnTrainerWithoutRun(TurnTrainer, TrainerWithSetup):
    """A trainer with only what the batch of a step needs."""

    def __init__(self, settings: AgentTrainingJob, config: DictConfig, critic: Critic, run_dir: Path) -> None:
        self.job, self.config, self.critic_wg, self.run_dir = settings, config, critic, run_dir
        self.kl_ctrl_in_reward = get_kl_controller(config.algorithm.kl_ctrl)
        self.global_steps, self._episodes, self._failures = 1, 0.0, 0.0
        folder = RunFolder(run_dir)
        folder.create()
        self.trajectory_log = TrajectoryLog(folder)


@pytest.fixture
def queue(monkeypatch) -> RowQueue:
    queue = RowQueue()
    monkeypatch.setattr(turn_trainer, "tq", queue)
    monkeypatch.setattr(turn_batch, "tq", queue)
    monkeypatch.setattr(ragged, "tq", queue)
    monkeypatch.setattr(rollout_correction, "tq", queue)
    monkeypatch.setattr(turn_trainer, "ray", SimpleNamespace(get=lambda futures: [wait() for wait in futures]))
    return queue


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return model_without_weights(tmp_path_factory.mktemp("model"))


@pytest.fixture
def new_trainer(queue, model, tmp_path):
    """Create a trainer for the rows of a step, with settings of the algorithm."""

    def make(**algorithm: Any) -> TurnTrainerWithoutRun:
        discounts = {
            "tokenGamma": TOKEN_GAMMA,
            "tokenLambda": TOKEN_LAMBDA,
            "stepGamma": STEP_GAMMA,
            "stepLambda": STEP_LAMBDA,
        }
        settings = AgentTrainingJob.model_validate(
            job(
                agent__maxResponseTokens=MAX_RESPONSE_TOKENS,
                environment__count=len(LENGTHS),
                training__turnsPerStep=NUM_TURNS * len(LENGTHS),
                algorithm={"minibatchTurns": NUM_TURNS * len(LENGTHS)} | discounts | algorithm,
            )
        )
        config = build_verl_config(settings, model=model, run_dir=tmp_path, device="cpu")
        return TurnTrainerWithoutRun(settings, config, Critic(queue, rows_of_a_step()), tmp_path)

    return make


@pytest.mark.feature("Verlog", "a row per turn, in the order of time")
@pytest.mark.feature("Verlog", "GAE with two discounts")
@pytest.mark.feature("Verlog", "the end of an episode")
@pytest.mark.feature("Verlog", "whitening")
@pytest.mark.feature("Verlog", "KL in the reward")
@pytest.mark.parametrize("whitens", [False, True])
@pytest.mark.parametrize("kl_coefficient", [0.0, 0.2])
def test_advantages_and_returns_of_turns_follow_the_recursion_over_their_segment(
    queue, new_trainer, kl_coefficient, whitens
):
    rows = rows_of_a_step()
    add(queue, rows, with_reference=kl_coefficient > 0)
    trainer, metrics = new_trainer(kl={"coefficient": kl_coefficient}, whiten=whitens), {}

    trainer._compute_advantage(trainer._compute_values(queue.meta(), metrics), metrics)

    expected = expected_results(rows, kl_coefficient)
    if whitens:
        whiten(expected)
    for place, learned in expected.items():
        for name, numbers in vars(learned).items():
            assert queue.rows[key_of(place)][name].tolist() == pytest.approx(numbers, abs=1e-6), (place, name)


@pytest.mark.feature("Verlog", "bootstrap rows without an action")
def test_values_are_placed_before_each_response_token_and_after_the_last_if_there_is_room(queue, new_trainer):
    rows = rows_of_a_step()
    add(queue, rows, with_reference=False)

    new_trainer()._compute_values(queue.meta(), {})

    for place, row in rows.items():
        assert queue.rows[key_of(place)]["slot_values"].tolist() == row.values
        assert queue.rows[key_of(place)]["values"].tolist() == row.values[: row.num_response]


@pytest.mark.feature("Verlog", "bootstrap rows without an action")
def test_bootstrap_rows_and_padding_are_not_learned_from(queue, new_trainer):
    rows = rows_of_a_step()
    add(queue, rows, with_reference=False)
    trainer, batch, metrics = new_trainer(kl={"coefficient": 0}), queue.meta(), {}
    trainer._compute_values(batch, metrics)
    batch.keys.insert(5, "filler_0_0")
    batch.tags.insert(5, {"is_padding": True})

    trainer._compute_advantage(batch, metrics)

    learned_from = {key for key, row in queue.rows.items() if "advantages" in row}
    assert learned_from == {key_of(place) for place in rows if place[1] < NUM_TURNS}
    assert metrics["turnmill/turns"] == NUM_TURNS * len(LENGTHS)


def test_a_step_without_the_rows_of_every_segment_ends_the_run_with_the_failure_of_the_rollout(queue, new_trainer):
    add(queue, rows_of_a_step(), with_reference=False)
    trainer, batch = new_trainer(), queue.meta()

    trainer._require_all_segments(batch)
    del batch.keys[-1], batch.tags[-1]
    with pytest.raises(RunFailedError, match="Step 1 got 14 rows of 15: agent loops ended early"):
        trainer._require_all_segments(batch)

    RunFolder(trainer.run_dir).write_failure(RunFailedError("The environment is gone.", "environment"))
    with pytest.raises(RunFailedError, match=r"The environment is gone\."):
        trainer._require_all_segments(batch)


@pytest.mark.parametrize(
    ("level", "weights"),
    [("token", [(0.4, 2.0, 1.1, 0.9)] * 4), ("sequence", [(0.4,) * 4, (1.2,) * 4, (1.32,) * 4, (1.188,) * 4])],
)
def test_every_turn_is_a_row_of_off_policy_correction(queue, new_trainer, level, weights):
    rows = rows_of_a_step()
    add(queue, rows, with_reference=False)
    trainer = new_trainer(kl={"coefficient": 0}, rolloutCorrection={"importanceSampling": level, "rejection": "token"})

    trainer._compute_advantage(trainer._compute_values(queue.meta(), {}), {})

    for place, row in rows.items():
        stored = queue.rows[key_of(place)]
        if place[1] == NUM_TURNS:
            assert "rollout_is_weights" not in stored
            continue
        n = row.num_response
        assert stored["rollout_is_weights"].tolist() == pytest.approx(weights[n - 1][:n], rel=1e-5)
        assert stored["response_mask"].tolist() == [0, 0, 1, 1][:n]


def test_rejection_does_not_change_advantages(queue, new_trainer):
    rows = rows_of_a_step()
    add(queue, rows, with_reference=False)
    trainer = new_trainer(kl={"coefficient": 0}, whiten=False, rolloutCorrection={"rejection": "token"})

    trainer._compute_advantage(trainer._compute_values(queue.meta(), {}), {})

    for place, learned in expected_results(rows, 0.0).items():
        assert queue.rows[key_of(place)]["advantages"].tolist() == pytest.approx(learned.advantages, abs=1e-6)


def test_the_critic_warm_up_corrects_nothing(queue, new_trainer):
    add(queue, rows_of_a_step(), with_reference=False)
    trainer = new_trainer(
        kl={"coefficient": 0}, rolloutCorrection={"importanceSampling": "token", "rejection": "token"}
    )
    trainer.global_steps = 0

    trainer._compute_advantage(trainer._compute_values(queue.meta(), {}), {})

    turns = [row for row in queue.rows.values() if "old_log_probs" in row]
    assert all("rollout_is_weights" not in row and bool(row["response_mask"].all()) for row in turns)


@pytest.mark.feature("Verlog", "weight of the first value")
@pytest.mark.feature("Verlog", "clipping of values")
def test_the_critic_learns_with_the_weight_and_the_clip_range_of_the_job(new_trainer):
    trainer = new_trainer(firstTokenValueWeight=FIRST_TOKEN_WEIGHT, valueClip=VALUE_CLIP)

    trainer._setup()

    # A turn of one token, with two slots, and one of full length: of its four slots the first is wrong.
    data = {
        "prompts": nested([0.0] * 2, [0.0]),
        "responses": nested([0.0], [0.0] * MAX_RESPONSE_TOKENS),
        "slot_values": nested([0.0, 1.0], [0.0] * MAX_RESPONSE_TOKENS),
        "slot_returns": nested([3.0, 2.0], [2.0, 0.0, 0.0, 0.0]),
        "batch_num_slots": 2 + MAX_RESPONSE_TOKENS,
        "global_batch_size": 2,
        "dp_size": 1,
    }
    predicted = nested([9.0, 2.0, 1.0], [0.0] * (1 + MAX_RESPONSE_TOKENS))
    loss, _ = trainer.critic_wg.loss(model_output={"values": predicted}, data=data, dp_group=None)
    # The first value moved from 0 to 2 and is clipped to VALUE_CLIP.
    errors = FIRST_TOKEN_WEIGHT * (3.0 - VALUE_CLIP) ** 2 + 1.0 + FIRST_TOKEN_WEIGHT * 2.0**2
    assert loss.item() == pytest.approx(0.5 * errors / (2 + MAX_RESPONSE_TOKENS), rel=1e-6)


def nested(*rows: list[float]) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)
