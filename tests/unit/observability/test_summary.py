import os
from pathlib import Path
from typing import Any

import pytest

from turnmill.observability import json_lines
from turnmill.observability.proportions import wilson_interval
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.summary import PhaseTimes, phase_times, summarise


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.logs.mkdir(parents=True)
    return folder


def mark(folder: RunFolder, event: str, time: float, **fields: Any) -> None:
    json_lines.append(folder.marks, [{"event": event, "time": time, **fields}])


def beat_at(folder: RunFolder, time: float) -> None:
    folder.heartbeat.touch()
    os.utime(folder.heartbeat, (time, time))


def test_success_is_that_of_the_first_and_the_last_validation(folder: RunFolder):
    folder.append_metrics(0, {"validation/success": 0.4})
    folder.append_metrics(1, {"turnmill/success": 0.5})
    folder.append_metrics(2, {"turnmill/success": 0.6, "validation/success": 0.7})
    folder.append_metrics(3, {"turnmill/success": 0.7, "validation/success": 0.9})

    summary = summarise(folder.path)

    assert (summary["success_first"], summary["success_final"], summary["steps"]) == (0.4, 0.9, 3)


def test_final_success_is_unknown_before_a_second_validation(folder: RunFolder):
    folder.append_metrics(0, {"validation/success": 0.4})

    assert summarise(folder.path)["success_final"] is None


def test_the_success_of_a_validation_has_its_wilson_interval(folder: RunFolder):
    folder.append_metrics(0, {"validation/success": 0.25, "validation/episodes": 64.0})
    folder.append_metrics(2, {"validation/success": 1.0, "validation/episodes": 64.0})

    summary = summarise(folder.path)

    assert summary["success_first_interval"] == pytest.approx(wilson_interval(16, 64))
    assert summary["success_final_interval"] == pytest.approx(wilson_interval(64, 64))
    assert (summary["success_first_episodes"], summary["success_final_episodes"]) == (64, 64)


def test_success_of_an_unknown_number_of_episodes_has_no_interval(folder: RunFolder):
    folder.append_metrics(0, {"validation/success": 0.4})

    summary = summarise(folder.path)

    assert (summary["success_first"], summary["success_first_interval"]) == (0.4, None)
    assert summary["success_first_episodes"] is None


def test_turns_episodes_and_failures_are_summed(folder: RunFolder):
    for step in (1, 2):
        folder.append_metrics(
            step,
            {
                "turnmill/turns": 64,
                "turnmill/episodes/completed": 5,
                "turnmill/episodes/failed": 1,
                "turnmill/failures/EnvironmentDied": 1,
            },
        )

    summary = summarise(folder.path)

    assert (summary["turns"], summary["episodes"], summary["failures"]) == (128, 12, {"EnvironmentDied": 2})


def test_the_duration_of_an_ended_run_is_from_its_start_to_its_end(folder: RunFolder):
    mark(folder, "started", 100.0, previous_beat=None)
    mark(folder, "first_step", 140.0)
    mark(folder, "ended", 400.0)
    beat_at(folder, 390.0)

    summary = summarise(folder.path)

    assert (summary["seconds_total"], summary["seconds_to_first_step"]) == (300.0, 40.0)


def test_the_pause_before_a_resume_is_not_counted(folder: RunFolder):
    mark(folder, "started", 100.0, previous_beat=None)
    mark(folder, "first_step", 150.0)
    mark(folder, "started", 10_000.0, previous_beat=200.0)
    mark(folder, "first_step", 10_020.0)
    beat_at(folder, 10_050.0)

    summary = summarise(folder.path)

    assert (summary["seconds_total"], summary["seconds_to_first_step"], summary["attempts"]) == (150.0, 50.0, 2)


def test_an_attempt_that_never_reached_a_step_does_not_delay_the_first_one(folder: RunFolder):
    mark(folder, "started", 100.0, previous_beat=None)
    mark(folder, "started", 500.0, previous_beat=110.0)
    mark(folder, "first_step", 530.0)

    assert summarise(folder.path)["seconds_to_first_step"] == 30.0


def test_the_summary_of_an_empty_folder_is_empty(folder: RunFolder):
    summary = summarise(folder.path)

    assert (summary["seconds_total"], summary["seconds_to_first_step"], summary["steps"]) == (None, None, 0)
    assert (summary["success_first"], summary["overhead_share"], summary["attempts"]) == (None, None, 0)


def test_the_summary_names_the_versions(folder: RunFolder):
    assert {"turnmill", "verl", "vllm", "ray", "torch", "transformers", "python"} == set(
        summarise(folder.path)["versions"]
    )


def test_overhead_is_time_spent_neither_generating_nor_learning():
    rows = [
        {"timing_s/step": 10.0, "timing_s/gen": 5.0, "timing_s/update_actor": 3.0, "timing_s/update_weights": 1.0},
        {"timing_s/step": 10.0, "timing_s/gen": 6.0, "timing_s/update_actor": 3.0, "timing_s/testing": 50.0},
    ]

    times = phase_times(rows)

    assert times.overhead_share == pytest.approx(0.15)
    assert times.unnamed == pytest.approx(2.0)


def test_overlapping_phases_give_no_negative_overhead():
    times = PhaseTimes(10.0, {"gen": 9.0, "update_actor": 4.0})

    assert (times.overhead_share, times.unnamed) == (0.0, 0.0)
