import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import pytest

from support.jobs import job
from turnmill.core.errors import RunFailedError, SettingsError
from turnmill.jobs import parse_job
from turnmill.rollout.verlog.slot import SlotState
from turnmill.training import checkpoints
from turnmill.training.checkpoints import DIGESTS, MARKER, RunState, folder_of


def state(step: int) -> RunState:
    slots = (SlotState(0, 3, 40, ("ACTION: go", "")), SlotState(1, 2, 41, ()))
    return RunState(step=step, slots=slots, kl_coefficient=0.02)


def write_incomplete(root: Path, step: int) -> Path:
    """Write what verl writes: weights, without the marker of a complete checkpoint."""
    folder = folder_of(root, step)
    folder.mkdir(parents=True)
    (folder / "weights.bin").write_text("weights")
    return folder


def complete(root: Path, *steps: int, keep: int = 2) -> None:
    for step in steps:
        write_incomplete(root, step)
        checkpoints.complete(root, state(step), keep=keep)


def steps(root: Path) -> list[int]:
    return sorted(int(path.name.rsplit("_", 1)[1]) for path in root.iterdir())


def test_without_a_checkpoint_there_is_nothing_to_resume_from(tmp_path):
    assert checkpoints.latest(tmp_path) is None
    assert checkpoints.latest(tmp_path / "missing") is None


def test_a_checkpoint_returns_the_state_it_was_completed_with(tmp_path):
    complete(tmp_path, 10)

    found = checkpoints.latest(tmp_path)

    assert found is not None
    assert found.state == state(10)
    assert found.path == folder_of(tmp_path, 10)


def test_an_incomplete_checkpoint_is_not_the_latest(tmp_path):
    complete(tmp_path, 10)
    write_incomplete(tmp_path, 20)

    found = checkpoints.latest(tmp_path)

    assert found is not None
    assert found.state.step == 10


def test_the_latest_checkpoint_is_that_of_the_highest_step(tmp_path):
    complete(tmp_path, 9, 100, 20, keep=3)

    found = checkpoints.latest(tmp_path)

    assert found is not None
    assert found.state.step == 100


def test_only_the_newest_complete_checkpoints_are_kept(tmp_path):
    complete(tmp_path, 8, 9, 10, 11, keep=2)

    assert steps(tmp_path) == [10, 11]


def test_incomplete_checkpoints_do_not_count_towards_the_number_kept(tmp_path):
    complete(tmp_path, 10)
    write_incomplete(tmp_path, 15)
    complete(tmp_path, 20)

    assert steps(tmp_path) == [10, 15, 20]


def test_incomplete_checkpoints_are_discarded(tmp_path):
    complete(tmp_path, 10)
    write_incomplete(tmp_path, 20)

    checkpoints.discard_incomplete(tmp_path)

    assert steps(tmp_path) == [10]


def test_a_partially_deleted_checkpoint_is_not_resumed_from(tmp_path, monkeypatch):
    complete(tmp_path, 10)
    write_incomplete(tmp_path, 20)

    def interrupt(path: Path) -> None:
        raise KeyboardInterrupt(path)

    monkeypatch.setattr(shutil, "rmtree", interrupt)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.complete(tmp_path, state(20), keep=1)

    found = checkpoints.latest(tmp_path)
    assert found is not None
    assert found.state.step == 20
    assert not (folder_of(tmp_path, 10) / MARKER).exists()


OTHER_STATES = '{"step": 29, "slots": [], "kl_coefficient": 0}', '{"step": 30}', "[]", "null", '{"files": [1]}', "{", ""


def damage(root: Path, step: int, *, how: str) -> None:
    folder = folder_of(root, step)
    weights, marker, digests = folder / "weights.bin", folder / MARKER, folder / DIGESTS
    match how:
        case "truncated":
            weights.write_text("wei")
        case "flipped bit":
            weights.write_bytes(bytes([weights.read_bytes()[0] ^ 1]) + weights.read_bytes()[1:])
        case "missing":
            weights.unlink()
        case "link to nothing":
            weights.unlink()
            weights.symlink_to(root / "nothing")
        case "pipe":
            weights.unlink()
            os.mkfifo(weights)
        case "marker is a link to nothing":
            marker.unlink()
            marker.symlink_to(root / "nothing")
        case "marker without data":
            shutil.rmtree(folder)
            folder.mkdir()
            marker.write_text(json.dumps(asdict(state(step))))
        case "digests":
            digests.write_text("{")
        case "digests of nothing":
            digests.write_text("{}")
        case "digests of other files":
            digests.write_text(json.dumps({"weights.bin": "0", "other.bin": "0"}))
        case "digests are a list":
            digests.write_text('["weights.bin"]')
        case "no text":
            marker.write_bytes(b"\xff\xfe")
        case _:
            marker.write_text(how)


@pytest.mark.parametrize(
    "how",
    [
        "truncated", "flipped bit", "missing", "link to nothing", "pipe", "marker is a link to nothing",
        "marker without data", "digests", "digests of nothing", "digests of other files", "digests are a list",
        "no text", *OTHER_STATES,
    ],
)  # fmt: skip
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_it_is_the_latest(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
):
    complete(tmp_path, 10, 20, 30, keep=3)
    for step in (10, 20, 30):
        checkpoints.write_digests(tmp_path, step)
    damage(tmp_path, 30, how=how)

    checkpoints.discard_incomplete(tmp_path)
    checkpoints.set_aside_damaged(tmp_path)

    found = checkpoints.latest(tmp_path)
    assert found is not None
    assert found.state == state(20)
    assert checkpoints.damaged(tmp_path) == [tmp_path / "damaged_global_step_30"]
    assert "Checkpoint is damaged and set aside" in caplog.messages


def run(task: str) -> dict[str, object]:
    """Return what tells a run from those of other tasks."""
    return checkpoints.run_of(parse_job(job(environment={"name": "babyai", "task": task})))


def complete_of_two_runs(root: Path) -> None:
    """Write a checkpoint of `goto`, then one of `pickup`."""
    for step, task in ((10, "goto"), (20, "pickup")):
        write_incomplete(root, step)
        checkpoints.complete(root, state(step), keep=2, run=run(task))


def test_a_checkpoint_of_another_run_is_set_aside(tmp_path: Path):
    complete_of_two_runs(tmp_path)

    checkpoints.set_aside_damaged(tmp_path, run=run("goto"))

    found = checkpoints.latest(tmp_path)
    assert found is not None
    assert found.state.step == 10
    assert checkpoints.damaged(tmp_path) == [tmp_path / "damaged_global_step_20"]


def test_a_checkpoint_of_a_version_with_other_settings_is_one_of_this_run(tmp_path: Path):
    this = checkpoints.run_of(parse_job(job()))
    older = this | {"environment": {"name": "babyai", "gone": 1}, "gone": 2}
    write_incomplete(tmp_path, 10)
    checkpoints.complete(tmp_path, state(10), keep=2, run=older)

    checkpoints.set_aside_damaged(tmp_path, run=this)

    assert checkpoints.damaged(tmp_path) == []


def test_a_checkpoint_of_another_run_is_not_chosen(tmp_path: Path):
    complete_of_two_runs(tmp_path)

    assert checkpoints.choose(tmp_path, None).state.step == 20
    assert checkpoints.choose(tmp_path, None, run=run("goto")).state.step == 10
    with pytest.raises(
        SettingsError, match=r"no usable checkpoint of step 20 \(.*it is of a run with another environment\)"
    ):
        checkpoints.choose(tmp_path, 20, run=run("goto"))


def test_a_user_without_rights_falls_back_to_a_checkpoint_that_he_can_read():
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from turnmill.training import checkpoints\n"
        "os.getuid() or os.setuid(65534)\n"
        "root = Path(sys.argv[1])\n"
        "checkpoints.discard_incomplete(root)\n"
        "checkpoints.set_aside_damaged(root)\n"
        "print(checkpoints.latest(root).state.step, [path.name for path in checkpoints.damaged(root)])\n"
    )
    # The folders of `tmp_path` belong to this user alone.
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        complete(root, 10, 20)
        root.chmod(0o777)
        folder_of(root, 20).chmod(0)
        done = subprocess.run([sys.executable, "-c", code, root], capture_output=True, text=True, check=False)
        for each in root.iterdir():
            each.chmod(0o700)

    assert done.stdout == "10 ['damaged_global_step_20']\n", done.stderr


def test_folders_that_are_no_checkpoints_are_left_alone(tmp_path: Path):
    complete(tmp_path, 10)
    for name in ("global_step_10.bak", "global_step_x", "global_step_10_copy"):
        shutil.copytree(folder_of(tmp_path, 10), tmp_path / name)

    checkpoints.discard_incomplete(tmp_path)
    checkpoints.set_aside_damaged(tmp_path)
    complete(tmp_path, 20, keep=1)

    names = {"global_step_10.bak", "global_step_10_copy", "global_step_20", "global_step_x"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_of_a_checkpoint_that_is_a_link_the_link_alone_is_deleted(tmp_path: Path):
    root, elsewhere = tmp_path / "checkpoints", tmp_path / "elsewhere"
    complete(root, 10)
    folder_of(root, 10).rename(elsewhere)
    folder_of(root, 10).symlink_to(elsewhere)
    folder_of(root, 5).symlink_to(tmp_path / "nothing")
    (root / "global_step_6").touch()

    checkpoints.discard_incomplete(root)
    checkpoints.set_aside_damaged(root)
    found = checkpoints.latest(root)
    complete(root, 20, keep=1)

    assert found is not None
    assert found.state == state(10)
    assert steps(root) == [20]
    assert (elsewhere / "weights.bin").exists()


def test_an_older_checkpoint_that_is_damaged_or_not_deletable_stops_no_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    complete(tmp_path, 10, 20)
    damage(tmp_path, 10, how="{")

    def busy(path: Path) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)

    monkeypatch.setattr(shutil, "rmtree", busy)
    complete(tmp_path, 30, keep=1)

    found = checkpoints.latest(tmp_path)
    assert found is not None
    assert found.state.step == 30
    assert caplog.messages == ["Old checkpoint is not deleted"] * 2


@pytest.mark.parametrize("what", ["damaged", "incomplete"])
def test_a_checkpoint_that_cannot_be_moved_out_of_the_way_names_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
):
    complete(tmp_path, 10, 20)

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "rename", refuse)
    monkeypatch.setattr(shutil, "rmtree", refuse)
    if what == "damaged":
        damage(tmp_path, 20, how="truncated")
    else:
        write_incomplete(tmp_path, 30)

    clear = checkpoints.set_aside_damaged if what == "damaged" else checkpoints.discard_incomplete
    with pytest.raises(RunFailedError, match=r"Read-only file system. Move it away, and resume") as raised:
        clear(tmp_path)

    assert raised.value.cause == "checkpoint"


def test_a_checkpoint_of_the_same_step_can_be_written_and_damaged_again(tmp_path: Path):
    complete(tmp_path, 10)
    for _ in range(2):
        complete(tmp_path, 20)
        damage(tmp_path, 20, how="truncated")
        checkpoints.set_aside_damaged(tmp_path)

    assert len(checkpoints.damaged(tmp_path)) == 1
    found = checkpoints.latest(tmp_path)
    assert found is not None
    assert found.state.step == 10


def test_if_all_checkpoints_are_damaged_the_run_fails_instead_of_starting_again(tmp_path: Path):
    complete(tmp_path, 10, 20)
    for step in (10, 20):
        damage(tmp_path, step, how="truncated")

    for _ in range(2):
        with pytest.raises(RunFailedError, match=r"All checkpoints are damaged .*has 3 bytes instead of 7"):
            checkpoints.set_aside_damaged(tmp_path)


def test_undamaged_checkpoints_and_those_without_digests_or_sizes_stay(tmp_path: Path):
    complete(tmp_path, 10, 20, 30, keep=3)
    checkpoints.write_digests(tmp_path, 20)
    old = folder_of(tmp_path, 30) / MARKER
    old.write_text(json.dumps({key: value for key, value in json.loads(old.read_text()).items() if key != "files"}))
    read: list[int] = []

    checkpoints.set_aside_damaged(tmp_path, lambda: read.append(1))
    assert steps(tmp_path) == [10, 20, 30]
    assert not read
    shutil.rmtree(folder_of(tmp_path, 30))
    checkpoints.set_aside_damaged(tmp_path, lambda: read.append(1))

    assert steps(tmp_path) == [10, 20]
    assert read == [1]


def test_digests_of_a_deleted_checkpoint_are_not_written(tmp_path: Path):
    checkpoints.write_digests(tmp_path, 10)

    assert not folder_of(tmp_path, 10).exists()


def test_files_are_flushed_to_disk_before_the_marker_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = write_incomplete(tmp_path, 10)
    (folder / "actor").mkdir()
    (folder / "actor" / "state.bin").write_text("state")
    flushed: list[str] = []
    flush = os.fsync

    def record(descriptor: int) -> None:
        flushed.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    checkpoints.complete(tmp_path, state(10), keep=1)

    *before, marker = flushed
    assert {str(folder / "actor" / "state.bin"), str(folder / "weights.bin"), str(folder)} <= set(before)
    assert before.index(str(folder / "actor" / "state.bin")) < before.index(str(folder / "actor"))
    assert MARKER in marker


def test_the_size_of_the_newest_checkpoint_is_that_of_its_files(tmp_path: Path):
    assert checkpoints.newest_size(tmp_path) == 0

    complete(tmp_path, 10)
    assert checkpoints.newest_size(tmp_path) == len("weights")

    (folder_of(tmp_path, 10) / MARKER).write_text("[]")
    assert checkpoints.newest_size(tmp_path) == 0
