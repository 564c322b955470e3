import json
from pathlib import Path

from turnmill.observability.progress import Progress, read_progress, write_progress
from turnmill.observability.run_folder import RunFolder


def test_progress_is_read_as_it_was_written(tmp_path: Path):
    folder = RunFolder(tmp_path)
    progress = Progress("training", done=3, total=60, success=0.5, seconds_left=99.5, message="Step 3")

    write_progress(folder, Progress("warm start"))
    write_progress(folder, progress)

    assert read_progress(folder) == progress


def test_a_run_that_has_not_begun_has_no_progress(tmp_path: Path):
    assert read_progress(RunFolder(tmp_path)) is None


def test_unknown_fields_of_another_version_are_ignored(tmp_path: Path):
    folder = RunFolder(tmp_path)
    folder.progress.write_text(json.dumps({"phase": "training", "done": 1, "weather": "fine"}))

    assert read_progress(folder) == Progress("training", done=1)
