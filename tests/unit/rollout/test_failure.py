"""Errors that end a run after an agent loop broke."""

import pytest
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayTaskError
from vllm.v1.engine.exceptions import EngineDeadError

from turnmill.core.errors import RunFailedError, SettingsError
from turnmill.rollout.failure import as_run_failure

CORE_DIED = RayTaskError("generate", "", EngineDeadError()).as_instanceof_cause()


@pytest.mark.parametrize(
    ("error", "cause", "said"),
    [
        (RunFailedError("the disk is full", "run_folder"), "run_folder", "the disk is full"),
        (SettingsError("spec.agent is wrong"), "settings", "spec.agent is wrong"),
        (ZeroDivisionError("division by zero"), "rollout", "division by zero"),
        (RayTaskError("generate", "", KeyError("x")).as_instanceof_cause(), "rollout", "KeyError"),
        (CORE_DIED, "engines_died", "EngineCore encountered an issue"),
        (ActorDiedError(), "engines_died", "The actor died unexpectedly"),
        (OutOfMemoryError(""), "engines_died", "OutOfMemoryError"),
        (OutOfMemoryError("killed to save the machine's memory"), "engines_died", "the machine's memory"),
    ],
)
def test_the_failure_says_what_broke(error, cause, said):
    failure = as_run_failure(error)

    assert failure.cause == cause
    assert said in str(failure)
