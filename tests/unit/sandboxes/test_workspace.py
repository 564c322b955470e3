import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnmill.sandboxes import workspace
from turnmill.sandboxes.workspace import TooLargeError, collect, measure, remove


@pytest.fixture
def place(tmp_path) -> Iterator[Path]:
    path = Path(workspace.choose(str(tmp_path)))
    workspace.create(str(path), None)
    yield path
    remove(str(path))  # pytest's own way to delete it would not survive the depth.


def nest(folder: Path, depth: int) -> None:
    """As deep as no path can name."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


def test_a_workspace_has_a_home_and_a_temporary_folder(place):
    assert sorted(path.name for path in place.iterdir()) == ["home", "tmp"]
    assert place.stat().st_mode & 0o777 == 0o700


def test_two_names_are_not_alike(tmp_path):
    assert workspace.choose(str(tmp_path)) != workspace.choose(str(tmp_path))


def test_an_empty_workspace_is_removed(place):
    remove(str(place))

    assert not place.exists()


def test_a_missing_workspace_is_no_error(tmp_path):
    remove(str(tmp_path / "none"))


def test_a_full_workspace_is_removed_and_what_its_links_lead_to_is_not(place, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    (place / "home" / "link").symlink_to(outside)
    (place / "home" / "a" / "b").mkdir(parents=True)
    (place / "home" / "a" / "b" / "c").touch()
    (place / "other").touch()

    remove(str(place))

    assert not place.exists()
    assert (outside / "file").exists()


def test_depth_does_not_keep_a_workspace_from_being_removed(place):
    nest(place / "home", 3000)

    remove(str(place))

    assert not place.exists()


def test_rights_that_were_taken_away_do_not_keep_a_workspace_from_being_removed(place):
    (place / "home" / "a" / "b").mkdir(parents=True)
    (place / "home" / "a" / "b").chmod(0)
    (place / "home" / "a").chmod(0)
    place.chmod(0o500)

    remove(str(place))

    assert not place.exists()


def test_a_workspace_weighs_what_its_files_take_on_disk(place):
    (place / "home" / "a").write_bytes(os.urandom(40_000))
    (place / "tmp" / "b").write_bytes(os.urandom(40_000))

    assert 80_000 <= measure(str(place)) <= 200_000


@pytest.mark.parametrize("mode", [0o000, 0o444, 0o555, 0o2750])
def test_weighing_leaves_the_modes_of_folders_as_they_are(place, mode):
    folder = place / "home" / "a"
    folder.mkdir()
    (folder / "b").write_bytes(os.urandom(40_000))
    folder.chmod(mode)

    assert measure(str(place)) >= 40_000
    assert folder.stat().st_mode & 0o7777 == mode


def test_too_deep_and_too_many_are_too_large(place):
    nest(place / "home", workspace.MAX_DEPTH + 2)

    with pytest.raises(TooLargeError):
        measure(str(place))


def test_too_many_entries_are_too_large(place, monkeypatch):
    monkeypatch.setattr(workspace, "MAX_ENTRIES", 10)
    for number in range(11):
        (place / "home" / str(number)).touch()

    with pytest.raises(TooLargeError):
        measure(str(place))


def test_regular_files_are_collected_by_their_paths(place):
    home = place / "home"
    (home / "a").mkdir()
    (home / "a" / "b").write_text("x")
    (home / "link").symlink_to("/etc/passwd")
    (home / "folder").symlink_to("/etc")
    os.mkfifo(home / "pipe")

    assert collect(str(home), 100) == {"a/b": b"x"}


def test_files_that_are_too_large_together_are_not_collected(place):
    (place / "home" / "a").write_bytes(bytes(60))
    (place / "home" / "b").write_bytes(bytes(60))

    assert collect(str(place / "home"), 100) is None
    assert collect(str(place / "home"), 120) is not None


def test_a_sparse_file_counts_at_its_length(place):
    with (place / "home" / "a").open("wb") as file:
        file.truncate(1 << 40)

    assert collect(str(place / "home"), 100) is None


def test_files_too_deep_are_not_collected(place):
    nest(place / "home", 3000)

    assert collect(str(place / "home"), 100) is None
