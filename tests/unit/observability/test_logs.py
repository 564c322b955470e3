import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnmill.observability import logs
from turnmill.observability.run_folder import RunFolder

LOG = logging.getLogger("turnmill.tests")


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    level = logging.getLogger(logs.ROOT).level
    yield
    logs.close()
    logging.getLogger(logs.ROOT).setLevel(level)


def events(folder: RunFolder, process: str = "main") -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder.logs / f"{process}.jsonl").read_text().splitlines()]


def test_the_console_shows_message_and_fields(capsys: pytest.CaptureFixture[str]):
    logs.configure()

    LOG.info("Episode ended", extra={"episode_id": "e3-17", "reward": 0.123456, "why": "no way out", "_ray": 1})

    line = capsys.readouterr().err
    assert line.endswith(" info Episode ended episode_id=e3-17 reward=0.1235 why='no way out'\n")


def test_the_file_has_one_json_object_per_event(tmp_path: Path):
    folder = RunFolder(tmp_path)
    logs.configure(folder, process="trainer")

    LOG.info("Episode ended", extra={"episode_id": "e3-17", "num_turns": 4, "path": tmp_path})

    (event,) = events(folder, "trainer")
    assert (event["event"], event["level"], event["logger"]) == ("Episode ended", "info", "turnmill.tests")
    assert (event["episode_id"], event["num_turns"], event["path"]) == ("e3-17", 4, str(tmp_path))


def test_an_error_is_logged_with_its_traceback(tmp_path: Path):
    folder = RunFolder(tmp_path)
    logs.configure(folder)

    try:
        raise ValueError("no such level")
    except ValueError:
        LOG.exception("Environment lost")

    (event,) = events(folder)
    assert "ValueError: no such level" in str(event["error"])


def test_a_full_disk_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = RunFolder(tmp_path)
    folder.logs.mkdir()
    (folder.logs / "main.jsonl").symlink_to("/dev/full")
    logs.configure(folder, level=logging.ERROR)

    LOG.info("lost")
    LOG.info("lost")
    logs.close()

    assert capsys.readouterr().err == f"{folder.logs / 'main.jsonl'} cannot be written to: No space left on device\n"


def test_the_console_can_be_quieter_than_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = RunFolder(tmp_path)
    logs.configure(folder, level=logging.WARNING)

    LOG.info("Step finished")

    assert capsys.readouterr().err == ""
    assert [event["event"] for event in events(folder)] == ["Step finished"]


def test_configuring_twice_does_not_duplicate_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = RunFolder(tmp_path)
    logs.configure(folder)
    logs.configure(folder)

    LOG.info("Step finished")

    assert len(events(folder)) == 1
    assert capsys.readouterr().err.count("Step finished") == 1
