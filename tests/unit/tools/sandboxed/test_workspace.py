import os
import pickle
import subprocess
import sys

import pytest

from turnmill.tools.sandboxed.workspace import restore, snapshot

ROOMY = {"max_bytes": 10_000, "max_files": 100}


@pytest.fixture
def home(tmp_path):
    home = tmp_path / "home"
    (home / "deep" / "er").mkdir(parents=True)
    (home / "empty").mkdir(mode=0o700)
    (home / "deep" / "er" / "run.sh").write_bytes(b"#!/bin/sh\0\xff")
    (home / "deep" / "er" / "run.sh").chmod(0o755)
    (home / "link").symlink_to("deep/er/run.sh")
    (home / "broken").symlink_to("/nowhere")
    (home / os.fsdecode(b"odd \xff name")).write_text("x")
    os.utime(home / "deep" / "er" / "run.sh", ns=(5, 10**18 + 7))
    os.utime(home / "deep" / "er", ns=(5, 10**18 + 8))
    (home / "deep" / "er").chmod(0o555)
    (home / "deep").chmod(0o2700)
    return home


def test_a_home_is_restored_as_it_was(home, tmp_path):
    parts, left_out = snapshot(str(home), **ROOMY)
    restore(parts, str(tmp_path / "copy"))

    copied, _ = snapshot(str(tmp_path / "copy"), **ROOMY)
    assert copied == parts
    assert left_out == []
    run = tmp_path / "copy" / "deep" / "er" / "run.sh"
    assert (run.stat().st_mode & 0o777, run.stat().st_mtime_ns) == (0o755, 10**18 + 7)
    assert (run.parent.stat().st_mode & 0o777, run.parent.stat().st_mtime_ns) == (0o555, 10**18 + 8)
    assert run.parent.parent.stat().st_mode & 0o7777 == 0o2700
    assert (tmp_path / "copy" / "link").read_bytes() == run.read_bytes()


def test_only_changed_files_have_different_parts(home):
    before, _ = snapshot(str(home), **ROOMY)
    (home / "link").unlink()
    (home / "new").write_text("x")

    after, _ = snapshot(str(home), **ROOMY)

    assert set(before) - set(after) == {"file/link"}
    assert {name for name in after if before.get(name) != after[name]} == {"file/new"}


def test_small_files_are_kept_first_and_the_others_are_reported(tmp_path):
    for name, size in (("big", 900), ("mid", 300), ("small", 10)):
        (tmp_path / name).write_bytes(b"x" * size)

    parts, left_out = snapshot(str(tmp_path), max_bytes=700, max_files=100)

    assert set(parts) == {"file/small", "file/mid"}
    assert left_out == ["big (900 bytes; a session keeps 100 files, 700 bytes)"]


def test_files_beyond_the_maximum_number_are_reported(tmp_path):
    for name in "abc":
        (tmp_path / name).write_text("x")

    parts, left_out = snapshot(str(tmp_path), max_bytes=1000, max_files=2)

    assert len(parts) == 2
    assert left_out == ["c (1 bytes; a session keeps 2 files, 1,000 bytes)"]


def test_files_are_kept_before_folders(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")

    parts, left_out = snapshot(str(tmp_path), max_bytes=1000, max_files=3)

    assert set(parts) == {"file/a/file", "file/b/file", "file/a"}
    # The folder `b` is restored with its file.
    assert left_out == []


def test_a_folder_that_is_not_kept_is_reported(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()

    parts, left_out = snapshot(str(tmp_path), max_bytes=1000, max_files=1)

    assert (set(parts), left_out) == ({"file/file"}, ["empty (0 bytes; a session keeps 1 files, 1,000 bytes)"])


def test_restoring_a_file_that_exceeds_the_size_limit_fails(tmp_path):
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "large").write_bytes(b"x" * 100_000)
    parts, _ = snapshot(str(tmp_path / "before"), max_bytes=10**6, max_files=10)
    (tmp_path / "after").mkdir()
    # In a separate process, with a limit on the size of files.
    program = (
        "import pickle, resource, signal, sys\n"
        "from turnmill.tools.sandboxed.workspace import restore\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, 65_536))\n"
        "restore(pickle.load(sys.stdin.buffer), sys.argv[1])\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "after"],
        input=pickle.dumps(parts),
        capture_output=True,
        check=False,
        timeout=60,
    )

    assert done.returncode != 0
    assert b"File too large" in done.stderr


def test_special_files_are_reported_as_left_out(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    parts, left_out = snapshot(str(tmp_path), **ROOMY)

    assert parts == {}
    assert left_out == ["pipe (neither a file nor a link nor a folder)"]


def test_names_of_parts_are_plain_text(home):
    parts, _ = snapshot(str(home), **ROOMY)

    assert "file/odd %FF name" in parts
    assert all(name.isascii() for name in parts)
