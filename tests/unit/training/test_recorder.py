import pytest

from turnmill.jobs import AgentTrainingJob
from turnmill.observability.progress import read_progress
from turnmill.training.recorder import RunRecorder, StepLogger


def job(steps: int = 10) -> AgentTrainingJob:
    return AgentTrainingJob.model_validate(
        {
            "apiVersion": "turnmill.dev/v1alpha1",
            "kind": "AgentTrainingJob",
            "metadata": {"name": "recorded"},
            "spec": {
                "model": {"warmStart": {}},
                "agent": {},
                "environment": {"name": "babyai", "task": "goto", "count": 8},
                "training": {"steps": steps, "turnsPerStep": 64},
            },
        }
    )


@pytest.fixture
def recorder(tmp_path) -> RunRecorder:
    recorder = RunRecorder(job(), tmp_path)
    recorder.folder.create()
    return recorder


class Tracking:
    """A test double of verl's trackers that keeps what is logged."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict]] = []
        self.finished = False

    def log(self, data, step):
        self.logged.append((step, data))

    def finish(self):
        self.finished = True


def test_every_step_is_one_row_of_metrics_in_the_run_folder(recorder):
    recorder.begin_step(1)
    recorder.log_step(1, {"turnmill/success": 0.5, "note": "not a number"})
    recorder.log_step(2, {"turnmill/success": 0.75})

    rows = list(recorder.folder.read_metrics())

    assert [(row["step"], row["turnmill/success"]) for row in rows] == [(1, 0.5), (2, 0.75)]
    assert all("note" not in row for row in rows)


def test_resuming_after_the_last_step_reports_all_steps_as_done(recorder):
    with recorder.phase("starting"):
        pass

    recorder.resume_after(10)

    progress = read_progress(recorder.folder)
    assert progress is not None
    assert (progress.phase, progress.done, progress.total) == ("training", 10, 10)


def test_metrics_are_labelled_with_the_attempt(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNMILL_ATTEMPT", "2")

    registry = RunRecorder(job(), tmp_path).prometheus.registry

    labels = {"training_job": "recorded", "attempt": "2"}
    assert registry.get_sample_value("turnmill_attempt", labels) == 2


def test_progress_has_the_last_step_and_the_last_known_success(recorder):
    recorder.begin_step(4)
    recorder.log_step(4, {"turnmill/success": 0.5, "turnmill/reward_mean": 0.4})
    recorder.log_step(5, {"turnmill/reward_mean": 0.3, "turnmill/turns": 256})

    progress = read_progress(recorder.folder)

    assert progress is not None
    assert (progress.phase, progress.done, progress.total) == ("training", 5, 10)
    assert (progress.success, progress.reward) == (0.5, 0.3)
    assert progress.turns_per_second is not None
    assert progress.seconds_left is not None


def test_progress_shows_how_much_of_a_phase_is_done(recorder):
    with recorder.phase("critic warm-up", total=12):
        recorder.advance("critic warm-up", 5, {})

        progress = read_progress(recorder.folder)

    assert progress is not None
    assert (progress.phase, progress.done, progress.total) == ("critic warm-up", 5, 12)


def test_the_first_step_of_an_attempt_is_marked_once(recorder):
    for step in (7, 8):
        recorder.begin_step(step)
        recorder.log_step(step, {})

    assert [mark["event"] for mark in recorder.folder.read_marks()] == ["started", "first_step"]


def test_a_validation_before_the_first_step_has_its_own_row(recorder):
    recorder.log_validation(0, {"validation/success": 0.4})

    (row,) = recorder.folder.read_metrics()

    assert (row["step"], row["validation/success"]) == (0, 0.4)


def test_trackers_are_called_after_the_run_folder_is_written(recorder):
    tracking = Tracking()
    steps_when_called: list[int] = []
    logger = StepLogger(
        tracking, recorder, lambda: steps_when_called.extend(row["step"] for row in recorder.folder.read_metrics())
    )

    logger.log(data={"turnmill/success": 0.5}, step=1)
    logger.finish()

    assert steps_when_called == [1]
    assert tracking.logged == [(1, {"turnmill/success": 0.5})]
    assert tracking.finished


def test_metrics_are_written_when_a_tracker_fails(recorder):
    class Broken(Tracking):
        def log(self, data, step):
            raise ConnectionError("the tracker is gone")

    with pytest.raises(ConnectionError):
        StepLogger(Broken(), recorder, lambda: None).log(data={"turnmill/success": 0.5}, step=1)

    assert [row["step"] for row in recorder.folder.read_metrics()] == [1]
