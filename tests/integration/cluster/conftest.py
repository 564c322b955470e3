"""A real API server for the tests of this folder, which are skipped without the programs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.api_server import ApiServer, api_server, why_no_api_server
from support.team_jobs import CRD, CRD_NAME

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    chosen = [item for item in items if HERE in item.path.parents]
    if chosen and (missing := why_no_api_server()):
        for item in chosen:
            item.add_marker(pytest.mark.skip(reason=missing))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server with the definition of jobs and the namespaces team-a and team-b."""
    with api_server(tmp_path_factory.mktemp("api-server")) as started:
        started.kubectl("apply", "--server-side", f"--filename={CRD}")
        started.kubectl("wait", "--for=condition=Established", f"crd/{CRD_NAME}")
        for name in ("team-a", "team-b"):
            started.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        yield started
