from pathlib import Path

import psutil
import pytest

from support.doctor_checks import bad, broken, crashes, does_not_apply, good, hangs
from support.server_process import eventually
from turnmill.core.errors import SettingsError
from turnmill.doctor import examination
from turnmill.doctor.examination import examine
from turnmill.doctor.results import Check, Machine, Result


@pytest.fixture
def found(tmp_path: Path, monkeypatch):
    """Run checks and return their results without durations, by name."""

    def of(*checks: Check, trains: bool = True) -> dict[str, Result]:
        monkeypatch.setattr(examination, "CHECKS", checks)
        results = examine(Machine("cpu", tmp_path), trains=trains)
        return {result.check: result for result in results}

    return of


def test_checks_tell_what_they_found_and_what_to_do(found):
    results = found(Check("good", good, 60), Check("bad", bad, 60), Check("broken", broken, 60))

    assert (results["good"].status, results["good"].found) == ("ok", "fine")
    assert (results["bad"].status, results["bad"].found) == ("failed", "too small")
    assert results["bad"].way_out == "Take a larger one."
    assert (results["broken"].status, results["broken"].found) == ("failed", "KeyError: 'absent'")


def test_a_check_that_does_not_apply_is_skipped(found):
    assert found(Check("gpu", does_not_apply, 60))["gpu"].status == "skipped"


def test_a_check_whose_process_dies_has_failed(found):
    result = found(Check("crashes", crashes, 60))["crashes"]

    assert (result.status, result.found) == ("failed", "its process ended with exit code -6")


def test_a_check_that_hangs_has_failed_and_leaves_no_process(found, tmp_path):
    # On a busy machine the check may not have begun when its time is over.
    for seconds in (3, 10, 30):
        result = found(Check("hangs", hangs, seconds))["hangs"]
        assert (result.status, result.found) == ("failed", f"no result after {seconds} s")
        if (tmp_path / "child").exists():
            break
    child = int((tmp_path / "child").read_text())
    eventually(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie", 20)


def test_checks_that_need_one_that_failed_are_skipped(found):
    results = found(
        Check("bad", bad, 60),
        Check("gpu", does_not_apply, 60),
        Check("after bad", good, 60, needs=("bad",)),
        Check("after gpu", good, 60, needs=("gpu",)),
        Check("last", good, 60, needs=("after bad",)),
    )

    assert (results["after bad"].status, results["after bad"].found) == ("skipped", "needs the check 'bad'")
    # On a machine without GPUs, what follows is checked on its CPUs.
    assert results["after gpu"].status == "ok"
    assert results["last"].status == "skipped"


def test_checks_that_train_can_be_left_out(found):
    assert list(found(Check("good", good, 60), Check("run", good, 60, trains=True), trains=False)) == ["good"]


def test_what_checks_write_is_removed_unless_a_run_failed(found, tmp_path):
    found(Check("good", good, 60), Check("bad", bad, 60), Check("run", good, 60, trains=True))
    assert list(tmp_path.iterdir()) == []

    found(Check("good", good, 60), Check("run", bad, 60, trains=True))
    (kept,) = tmp_path.iterdir()
    assert (kept / "good").read_text() == "written"


def test_a_folder_that_cannot_be_written_to_is_an_error_of_the_settings():
    with pytest.raises(SettingsError, match="Choose another folder with --storage"):
        examine(Machine("cpu", Path("/proc/nowhere")), trains=False)
