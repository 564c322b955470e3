import os
from pathlib import Path

import pytest

from turnmill.core.http_connections import listen
from turnmill.tool_server.settings import ServerSettings
from turnmill.tool_server.worker_process import run_worker


def test_a_worker_whose_supervisor_is_gone_before_it_is_ready_ends_without_an_error(tmp_path: Path):
    settings = ServerSettings(redis=f"unix://{tmp_path}/store.sock")
    gone, supervisor = os.pipe()
    os.close(supervisor)

    with listen("127.0.0.1", 0) as listener:
        run_worker(settings, [listener], on_ready=pytest.fail, stop_when_readable=gone)

    os.close(gone)
