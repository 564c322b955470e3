"""Settings and fixtures that all tests share."""

import copy
import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from turnmill.core.process_mark import NO_MARK, PROCESS_MARK
from turnmill.runs.fork_server import PythonForkServer, modules
from turnmill.runs.fork_server.launcher import INTERPRETER
from turnmill.runs.preparation import process_environment
from turnmill.runs.ray_cluster import PATIENCE

# The time that an example takes depends on the load of the machine: there is no deadline.
settings.register_profile("turnmill", deadline=None)
settings.load_profile("turnmill")

# Ray reads it once a process, and tests may have started Ray before one kills a controller.
os.environ.update(PATIENCE)


def pytest_collection_finish() -> None:
    """Compose verl's defaults once a process, where tests need them: Hydra takes a second for it."""
    config = sys.modules.get("turnmill.training.verl.config")
    if config is not None:
        composed = functools.cache(config.compose_defaults)
        config.__dict__["compose_defaults"] = lambda engine="fsdp": copy.deepcopy(composed(engine))


@pytest.fixture(autouse=True)
def _shared_imports(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the fork servers of slow tests' runs be forks of one that makes their imports once."""
    if request.node.get_closest_marker("slow"):
        monkeypatch.setenv(INTERPRETER, str(request.getfixturevalue("interpreter_with_imports")))


@pytest.fixture(scope="session")
def interpreter_with_imports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the `python` of a fork server that has made the early imports of a run."""
    variables = process_environment("cpu") | {"OMP_NUM_THREADS": "1", PROCESS_MARK: NO_MARK}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        server = PythonForkServer(tmp_path_factory.mktemp("imports"), modules.EARLY, ())
    yield server.python
    server.close()
