"""`turnmill doctor` on this machine, with runs, as a user starts it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from turnmill.doctor.examination import CHECKS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.mark.nightly
def test_every_check_that_does_not_need_a_gpu_succeeds_here(tmp_path: Path):
    command = [sys.executable, "-m", "turnmill.cli.main", "doctor", "--json", "--storage", str(tmp_path / "runs")]
    ended = subprocess.run(
        command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False, timeout=900
    )

    report = json.loads(ended.stdout)
    assert {check["check"]: check["status"] for check in report["checks"]} == {
        check.name: "skipped" if check.name == "GPUs" else "ok" for check in CHECKS
    }, ended.stdout
    assert ended.returncode == 0
    assert list((tmp_path / "runs").iterdir()) == []
