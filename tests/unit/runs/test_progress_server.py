import json
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from support.jobs import job
from turnmill.core.errors import SettingsError
from turnmill.jobs import parse_job
from turnmill.observability.progress import Progress, write_progress
from turnmill.observability.run_folder import RunFolder
from turnmill.runs.preparation import rewind
from turnmill.runs.progress_server import ProgressServer, progress_of
from turnmill.training import checkpoints
from turnmill.training.checkpoints import RunState


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    return folder


def serving(folder: RunFolder) -> ProgressServer:
    return ProgressServer(folder, steps=20, run="/runs/team-a/job-01234567", attempt=2)


def append_step(folder: RunFolder, step: int, **metrics: float) -> None:
    episodes = {"turnmill/episodes/completed": 6.0, "turnmill/episodes/failed": 2.0}
    folder.append_metrics(step, {"timing_s/step": 4.0, "turnmill/reward_mean": 0.5, **episodes, **metrics})


def get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
        return response.read().decode()


def test_a_run_that_has_just_started_is_at_step_0(folder: RunFolder):
    assert progress_of(folder, steps=20) == {"phase": "starting", "step": 0, "steps": 20}


def test_progress_counts_damaged_checkpoints(folder: RunFolder):
    for step in (1, 2):
        checkpoint = checkpoints.folder_of(folder.checkpoints, step)
        checkpoint.mkdir()
        (checkpoint / "weights").touch()
        checkpoints.complete(folder.checkpoints, RunState(step, slots=(), kl_coefficient=0.0), keep=2)
    (checkpoint / "weights").unlink()

    rewind(folder, parse_job(job()))

    assert progress_of(folder, steps=20) == {
        "phase": "starting", "step": 0, "steps": 20, "checkpointStep": 1, "damagedCheckpoints": 1,
    }  # fmt: skip


def test_progress_is_told_beside_a_checkpoint_whose_marker_is_damaged(folder: RunFolder):
    for step in (1, 2):
        checkpoints.folder_of(folder.checkpoints, step).mkdir()
        checkpoints.complete(folder.checkpoints, RunState(step, slots=(), kl_coefficient=0.0), keep=2)
    (checkpoint_marker := checkpoints.folder_of(folder.checkpoints, 2) / checkpoints.MARKER).write_text("{")

    assert progress_of(folder, steps=20)["checkpointStep"] == 1
    assert checkpoint_marker.exists()


def test_progress_has_the_last_step_and_the_newest_checkpoint(folder: RunFolder):
    append_step(folder, 1)
    append_step(folder, 2, **{"turnmill/reward_mean": 0.75, "turnmill/success": 0.7})
    folder.append_metrics(2, {"validation/success": 0.8})
    checkpoints.folder_of(folder.checkpoints, 1).mkdir()
    checkpoints.complete(folder.checkpoints, RunState(1, slots=(), kl_coefficient=0.0), keep=2)
    write_progress(folder, Progress(phase="training", done=2, total=20))

    assert progress_of(folder, steps=20) == {
        "phase": "training",
        "step": 2,
        "steps": 20,
        "success": 0.7,
        "rewardMean": 0.75,
        "rolloutsPerSecond": 2.0,
        "infraFailedRatio": 0.25,
        "checkpointStep": 1,
    }


def test_progress_and_metrics_of_the_trainer_are_served_together(folder: RunFolder):
    trainer = serving(folder)
    with trainer.serve(0) as other, serving(folder).serve(0) as port:
        assert get(port, "/metrics") == ""
        # Another progress server stands in for the trainer's metrics.
        (folder.path / "metrics_url").write_text(f"http://127.0.0.1:{other}/progress\n")

        assert json.loads(get(port, "/metrics")) == json.loads(get(port, "/progress"))


def test_progress_tells_of_which_attempt_it_is(folder: RunFolder):
    with serving(folder).serve(0) as port:
        progress = json.loads(get(port, "/progress"))

    assert (progress["run"], progress["attempt"]) == ("/runs/team-a/job-01234567", 2)


def test_other_paths_are_not_found(folder: RunFolder):
    with (
        serving(folder).serve(0) as port,
        pytest.raises(urllib.error.HTTPError, match="404"),
    ):
        get(port, "/")


def test_the_server_stops_after_the_final_phase_has_been_read(folder: RunFolder):
    server = serving(folder)
    with server.serve(0) as port:
        ending = threading.Thread(target=server.end, args=("complete",), kwargs={"wait_seconds": 60})
        ending.start()
        while json.loads(get(port, "/progress"))["phase"] != "complete":
            pass
        ending.join(timeout=10)

        assert not ending.is_alive()


def test_a_metrics_port_in_use_is_refused(folder: RunFolder):
    with (
        serving(folder).serve(0) as port,
        pytest.raises(SettingsError, match=rf"TURNMILL_METRICS_PORT \({port}\) cannot be served"),
        serving(folder).serve(port),
    ):
        pass
