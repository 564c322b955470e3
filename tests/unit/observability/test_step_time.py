import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turnmill.observability.step_time import PARTS, split_step_time

TIMES = {
    "timing_s/step": 20.0,
    "timing_s/gen": 11.0,
    "timing_s/release_rollout": 1.0,
    "timing_s/old_log_prob": 1.0,
    "timing_s/update_actor": 4.0,
    "timing_s/update_weights": 2.0,
    "timing_s/save_checkpoint": 0.5,
    "timing_s/testing": 30.0,
}
ROLLOUT = {
    "turnmill/rollout_slots": 4.0,
    "turnmill/rollout_seconds/generation": 12.0,
    "turnmill/rollout_seconds/tools": 8.0,
    "turnmill/rollout_seconds/loop": 4.0,
}


def test_the_wait_for_turns_is_split_by_the_work_of_trajectories():
    parts = split_step_time(TIMES | ROLLOUT)

    assert parts == pytest.approx(
        {
            "generation": 3.0,
            "tools": 2.0,
            "loop": 1.0,
            "stragglers": 4.0,
            "weight_sync": 3.0,
            "learning": 5.0,
            "checkpoint": 0.5,
            "other": 1.5,
        }
    )


def test_work_done_before_the_wait_is_not_counted():
    parts = split_step_time(TIMES | ROLLOUT | {"turnmill/rollout_slots": 1.0})

    assert [parts[part] for part in ("generation", "tools", "loop", "stragglers")] == pytest.approx(
        [5.0, 10 / 3, 5 / 3, 0.0]
    )


def test_a_wait_without_measurements_counts_as_other():
    assert split_step_time(TIMES)["other"] == pytest.approx(11.5)


seconds = st.floats(0, 1e4)


@example({"timing_s/gen": 1.0, "turnmill/rollout_slots": 5e-324, "turnmill/rollout_seconds/loop": 5e-324})
@given(st.fixed_dictionaries({}, optional=dict.fromkeys((*TIMES, *ROLLOUT), seconds)))
def test_the_parts_sum_to_the_step_and_none_is_negative(metrics):
    parts = split_step_time(metrics)

    assert tuple(sorted(parts)) == tuple(sorted(PARTS))
    assert sum(parts.values()) == pytest.approx(metrics.get("timing_s/step", 0.0))
    assert all(value >= 0 for value in parts.values())


def test_rounding_errors_make_no_part_negative():
    metrics = {
        "timing_s/step": 1.3080832569976337,
        "timing_s/gen": 0.20848514400131535,
        "timing_s/release_rollout": 0.031195248004223686,
        "turnmill/rollout_slots": 4.0,
        "turnmill/rollout_seconds/generation": 9.135528499005886,
        "turnmill/rollout_seconds/tools": 0.5730979049985763,
        "turnmill/rollout_seconds/loop": 1.164170465002826,
    }

    assert min(split_step_time(metrics).values()) == 0.0
