"""The checks of `turnmill doctor` on a machine with GPUs."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from turnmill.doctor.examination import CHECKS
from turnmill.runs.preparation import shows_gpu

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(3 * 3600)]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report about this machine."""
    if not shows_gpu():
        pytest.skip("this machine shows no GPU")
    storage = tmp_path_factory.mktemp("runs")
    command = [sys.executable, "-m", "turnmill.cli.main", "doctor", "--json", "--storage", str(storage)]
    ended = subprocess.run(command, env=os.environ.copy(), stdout=subprocess.PIPE, text=True, check=False)
    return dict(json.loads(ended.stdout))


@pytest.mark.parametrize("name", [check.name for check in CHECKS])
def test_a_check_succeeds(report, name):
    assert report["device"] == "cuda"
    found = {check["check"]: check for check in report["checks"]}[name]
    if found["status"] == "skipped":
        pytest.skip(found["found"])
    assert found["status"] == "ok", found
