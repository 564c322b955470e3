"""Run folders whose policy is exported."""

from pathlib import Path
from typing import Any

import yaml

from support.jobs import tool_job
from turnmill.observability.run_folder import RunFolder
from turnmill.training import checkpoints
from turnmill.training.checkpoints import RunState

STEP = 2
"""The step of the checkpoint."""


def make_run(model: Path, folder: Path, **settings: Any) -> tuple[Path, Path]:
    """Write a run without checkpoints; return it, and the folder of its policy's checkpoint."""
    run = RunFolder(folder)
    run.create()
    run.write_job(yaml.safe_dump(tool_job(model={"path": str(model), **settings})))
    run.append_metrics(0, {"validation/success": 0.25, "validation/episodes": 8})
    run.append_metrics(STEP, {"validation/success": 0.75, "validation/episodes": 8, "turnmill/turns": 40})
    return folder, checkpoints.folder_of(run.checkpoints, STEP) / "actor"


def complete(run_dir: Path) -> None:
    """Mark the checkpoint complete, as the trainer does; one that has changed, again."""
    run = RunFolder(run_dir)
    for name in (checkpoints.MARKER, checkpoints.DIGESTS):
        (checkpoints.folder_of(run.checkpoints, STEP) / name).unlink(missing_ok=True)
    checkpoints.complete(run.checkpoints, RunState(STEP, (), 0.0), keep=1)
    checkpoints.write_digests(run.checkpoints, STEP)
