import pytest

from turnmill.environments.base import VALIDATION_SEEDS
from turnmill.rollout.generation import sampling_seed
from turnmill.rollout.verlog.slot import MAX_SEED, EpisodePlan

RUN_SEEDS = (0, 1, 17, MAX_SEED)


def test_training_and_validation_never_play_the_same_episode():
    training = {EpisodePlan.training(run, slot).seed(n) for run in RUN_SEEDS for slot in range(40) for n in range(50)}
    validation = {EpisodePlan.validation(run, slot).seed(0) for run in RUN_SEEDS for slot in range(2000)}

    assert training.isdisjoint(validation)
    assert max(validation) < VALIDATION_SEEDS <= min(training)
    assert max(training) < MAX_SEED


@pytest.mark.parametrize("run_seed", RUN_SEEDS)
def test_all_episodes_of_a_validation_have_different_seeds(run_seed):
    seeds = [EpisodePlan.validation(run_seed, slot).seed(0) for slot in range(2000)]

    assert len(set(seeds)) == len(seeds)


def test_a_repeated_validation_episode_has_the_same_seed():
    plan = EpisodePlan.validation(3, 8)

    assert plan.seed(0) == plan.seed(1)


def test_training_episodes_have_different_seeds_by_run_slot_and_number():
    seeds = [EpisodePlan.training(run, slot).seed(n) for run in (0, 1) for slot in range(20) for n in range(20)]

    # 800 random seeds out of 2**31 rarely collide, and these runs have fixed seeds.
    assert len(set(seeds)) == len(seeds)


def test_a_run_with_the_same_seed_plays_the_same_episodes():
    assert [EpisodePlan.training(4, 2).seed(n) for n in range(5)] == [
        EpisodePlan.training(4, 2).seed(n) for n in range(5)
    ]


def test_the_environment_is_prepared_for_the_next_episode_of_a_training_alone():
    training, validation = EpisodePlan.training(4, 2), EpisodePlan.validation(4, 2)

    assert [training.next_seed(n) for n in range(5)] == [training.seed(n) for n in range(1, 6)]
    assert validation.next_seed(0) is None


def test_every_turn_has_its_own_sampling_seed_in_the_range_of_engines():
    seeds = {
        sampling_seed(0, stream, slot, turn)
        for stream in ("training", "validation")
        for slot in range(8)
        for turn in range(64)
    }

    assert len(seeds) == 2 * 8 * 64
    assert all(0 <= seed < 2**31 for seed in seeds)
