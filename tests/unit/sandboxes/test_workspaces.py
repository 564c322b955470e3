import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnmill.sandboxes import workspaces
from turnmill.sandboxes.workspaces import TooLargeError, collect, measure_disk_usage, remove


@pytest.fixture
def workspace(tmp_path) -> Iterator[Path]:
    path = Path(workspaces.choose_path(str(tmp_path)))
    workspaces.create(str(path), None)
    yield path
    remove(str(path))  # pytest's own way to delete it would not survive the depth.


def nest(folder: Path, depth: int) -> None:
    """Create folders deeper than any path can name."""
    current = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=current)
        inner = os.open("d", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = inner
    os.close(current)


def test_a_workspace_has_a_home_and_a_temporary_folder(workspace):
    assert sorted(path.name for path in workspace.iterdir()) == ["home", "tmp"]
    assert workspace.stat().st_mode & 0o777 == 0o700


def test_paths_are_unique(tmp_path):
    assert workspaces.choose_path(str(tmp_path)) != workspaces.choose_path(str(tmp_path))


def test_an_empty_workspace_is_removed(workspace):
    remove(str(workspace))

    assert not workspace.exists()


def test_a_missing_workspace_is_no_error(tmp_path):
    remove(str(tmp_path / "none"))


def test_a_full_workspace_is_removed_but_not_the_targets_of_its_links(workspace, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    (workspace / "home" / "link").symlink_to(outside)
    (workspace / "home" / "a" / "b").mkdir(parents=True)
    (workspace / "home" / "a" / "b" / "c").touch()
    (workspace / "other").touch()

    remove(str(workspace))

    assert not workspace.exists()
    assert (outside / "file").exists()


def test_a_very_deep_workspace_is_removed(workspace):
    nest(workspace / "home", 3000)

    remove(str(workspace))

    assert not workspace.exists()


def test_a_workspace_with_unwritable_folders_is_removed(workspace):
    (workspace / "home" / "a" / "b").mkdir(parents=True)
    (workspace / "home" / "a" / "b").chmod(0)
    (workspace / "home" / "a").chmod(0)
    workspace.chmod(0o500)

    remove(str(workspace))

    assert not workspace.exists()


def test_disk_usage_counts_the_files_of_home_and_temporary_folder(workspace):
    (workspace / "home" / "a").write_bytes(os.urandom(40_000))
    (workspace / "tmp" / "b").write_bytes(os.urandom(40_000))

    assert 80_000 <= measure_disk_usage(str(workspace)).bytes <= 200_000


def test_disk_usage_counts_a_file_once_and_each_of_its_names(workspace):
    (workspace / "home" / "a").write_bytes(os.urandom(400_000))
    before = measure_disk_usage(str(workspace)).bytes
    for number in range(20):
        (workspace / "home" / str(number)).hardlink_to(workspace / "home" / "a")

    assert 20_000 <= measure_disk_usage(str(workspace)).bytes - before <= 100_000


@pytest.mark.parametrize("mode", [0o000, 0o444, 0o555, 0o2750])
def test_measuring_leaves_the_modes_of_folders_unchanged(workspace, mode):
    folder = workspace / "home" / "a"
    folder.mkdir()
    (folder / "b").write_bytes(os.urandom(40_000))
    folder.chmod(mode)

    assert measure_disk_usage(str(workspace)).bytes >= 40_000
    assert folder.stat().st_mode & 0o7777 == mode


def test_a_workspace_with_too_many_levels_is_too_large(workspace):
    nest(workspace / "home", workspaces.MAX_DEPTH + 2)

    with pytest.raises(TooLargeError):
        measure_disk_usage(str(workspace))


def test_a_workspace_with_too_many_entries_is_too_large(workspace, monkeypatch):
    monkeypatch.setattr(workspaces, "MAX_ENTRIES", 10)
    for number in range(11):
        (workspace / "home" / str(number)).touch()

    with pytest.raises(TooLargeError):
        measure_disk_usage(str(workspace))


def test_regular_files_are_collected_by_their_paths(workspace):
    home = workspace / "home"
    (home / "a").mkdir()
    (home / "a" / "b").write_text("x")
    (home / "link").symlink_to("/etc/passwd")
    (home / "folder").symlink_to("/etc")
    os.mkfifo(home / "pipe")

    assert collect(str(home), 100) == {"a/b": b"x"}


def test_files_that_are_too_large_in_total_are_not_collected(workspace):
    (workspace / "home" / "a").write_bytes(bytes(60))
    (workspace / "home" / "b").write_bytes(bytes(60))

    assert collect(str(workspace / "home"), 100) is None
    assert collect(str(workspace / "home"), 120) is not None


def test_a_sparse_file_counts_at_its_length(workspace):
    with (workspace / "home" / "a").open("wb") as file:
        file.truncate(1 << 40)

    assert collect(str(workspace / "home"), 100) is None


def test_files_too_deep_are_not_collected(workspace):
    nest(workspace / "home", 3000)

    assert collect(str(workspace / "home"), 100) is None
