import logging
from pathlib import Path

import pytest

from turnmill.core.errors import ToolUnavailableError
from turnmill.core.http_connections import listen
from turnmill.observability import logs
from turnmill.tool_server.serve import _log_ready, check_tools
from turnmill.tool_server.settings import ServerSettings
from turnmill.tool_server.worker_process import configure_logs


def test_all_tools_that_cannot_work_are_named_before_anything_is_started():
    with pytest.raises(ToolUnavailableError, match=r"(?s)no tool 'nosuch'.*no tool 'neither'"):
        check_tools(ServerSettings(tool_type=("nosuch", "base", "neither")))


def test_missing_tools_may_be_allowed():
    settings = ServerSettings(tool_type=("nosuch", "base"), allow_missing_tools=True)

    assert check_tools(settings) is False


def test_tools_that_keep_objects_in_their_process_have_one_worker_unless_more_are_asked_for(tmp_path: Path):
    (tmp_path / "shell.py").write_text(
        "from turnmill.tools.turn_counter import TurnCounter\n"
        "from turnmill.tools.registry import register\n"
        "@register\nclass Shell(TurnCounter):\n    name, keeps_objects = 'shell', True\n"
    )
    settings = ServerSettings(tool_type=("base", "shell"), tool_settings={"TOOLS_FOLDER": str(tmp_path)})

    assert check_tools(settings) is True

    assert settings.num_workers > 1
    assert settings.keeping_objects().model_copy(update={"redis": "redis://store"}).num_workers == 1
    assert settings.model_copy(update={"uvi_workers": 3}).keeping_objects().num_workers == 3


@pytest.mark.parametrize(("left_out", "tools"), [((), "base,nosuch,finish"), (("nosuch",), "base,finish")])
def test_the_log_names_the_tools_and_those_that_are_left_out(
    left_out: tuple[str, ...], tools: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", "turnmill.tool_server.serve")

    with listen("127.0.0.1", 0) as listener:
        _log_ready(ServerSettings(tool_type=("base", "nosuch")), [listener], left_out)

    [record] = caplog.records
    assert record.tools == tools
    assert getattr(record, "left_out", None) == (",".join(left_out) or None)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_log_has_the_address_of_the_server(scheme: str, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", "turnmill.tool_server.serve")
    file = Path("file.pem") if scheme == "https" else None

    with listen("127.0.0.1", 0) as listener:
        _log_ready(ServerSettings(tls_cert_file=file, tls_key_file=file), [listener], ())
        port = listener.getsockname()[1]

    assert caplog.records[0].url == f"{scheme}://127.0.0.1:{port}/get_observation"


@pytest.mark.parametrize(("level", "lowest"), [("trace", logging.DEBUG), ("warning", logging.WARNING)])
def test_events_are_printed_from_the_level_of_the_settings_on(level: str, lowest: int):
    logger = logging.getLogger(logs.ROOT)
    level_before = logger.level
    try:
        configure_logs(ServerSettings(log_level=level))

        assert logger.handlers[0].level == lowest
    finally:
        logs.close()
        logger.setLevel(level_before)
