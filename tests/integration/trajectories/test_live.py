import stat

import pytest

from turnmill.cli.main import main
from turnmill.core.trajectory import TrajectoryOutcome, Turn
from turnmill.trajectories.address import FILE, JournalAddress
from turnmill.trajectories.client import deadline_in
from turnmill.trajectories.journal import TrajectoryJournal

TURN = Turn(prompt_ids=(1,), response_ids=(2, 3), response_text="<python>print(1)</python>", observation="1")


@pytest.fixture
async def run_dir(tmp_path, redis_url, request):
    """A run with one trajectory in flight and a finished one."""
    (tmp_path / "job.yaml").touch()
    JournalAddress(redis_url, request.node.name).write(tmp_path)
    journal = TrajectoryJournal.from_url(redis_url, request.node.name)
    trajectory = await journal.open("step-1.in-flight", deadline=deadline_in(10))
    await journal.append(trajectory, TURN, deadline=deadline_in(10))
    over = await journal.open("step-1.over", deadline=deadline_in(10))
    await journal.finish(over, TrajectoryOutcome("completed"), deadline=deadline_in(10))
    await journal.close()
    return tmp_path


def test_trajectories_in_flight_are_listed(run_dir, capsys):
    assert main(["trajectories", str(run_dir), "--live"]) == 0

    shown = capsys.readouterr().out
    assert "step-1.in-flight" in shown
    assert "1 trajectory in flight" in shown
    assert "step-1.over" not in shown


def test_a_trajectory_in_flight_is_shown_turn_by_turn(run_dir, capsys):
    assert main(["trajectories", str(run_dir), "--live", "--episode", "step-1.in-flight"]) == 0

    shown = capsys.readouterr().out
    assert "turn 0" in shown
    assert "<python>print(1)</python>" in shown


def test_a_trajectory_that_is_not_in_flight_is_an_error(run_dir, capsys):
    assert main(["trajectories", str(run_dir), "--live", "--episode", "step-1.over"]) == 2

    assert "no trajectory of that name in flight" in capsys.readouterr().err


def test_a_run_without_a_journal_is_an_error(tmp_path, capsys):
    (tmp_path / "job.yaml").touch()

    assert main(["trajectories", str(tmp_path), "--live"]) == 2

    assert "keeps no journal" in capsys.readouterr().err


def test_only_its_user_can_read_the_file_with_the_address_of_a_store(tmp_path):
    address = JournalAddress("redis://:secret@store:6379/0", "run")

    address.write(tmp_path)

    assert JournalAddress.read(tmp_path) == address
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == [FILE]
