"""Both charts are upgraded under a running job, as docs/upgrades.md has it."""

import shutil
from pathlib import Path

import pytest

from turnmill.testing.charts import OPERATOR, TEAM, helm
from turnmill.testing.team_jobs import OPERATOR_PODS, RELEASE_OF_OPERATOR, Team
from turnmill.testing.team_release import RELEASE, STORE, TOOL_SERVER_PODS

pytestmark = pytest.mark.timeout(1500)

RUN_SECONDS = 1200.0
STORE_PODS = f"statefulset.kubernetes.io/pod-name={STORE}-0"


def next_version(chart: Path, folder: Path) -> Path:
    """The same chart under the next version; its images are the same."""
    copy = shutil.copytree(chart, folder / chart.name)
    declared = (copy / "Chart.yaml").read_text()
    (copy / "Chart.yaml").write_text(declared.replace("version: 0.1.0\n", "version: 0.1.1\n", 1))
    return copy


def test_a_job_outlives_the_upgrade_of_both_charts_and_loses_no_turn(team: Team, tmp_path: Path):
    job = team.submit("tool-arithmetic-cpu.yaml", "tools", training__steps=12, training__validation={"episodes": 32})
    job.wait_for_step(1, seconds=RUN_SECONDS)
    before = {selector: set(team.pods(selector)) for selector in (OPERATOR_PODS, TOOL_SERVER_PODS)}
    store = team.namespace.list("pods", STORE_PODS)[0]["metadata"]["uid"]

    # The same images by other names, so that pods are replaced as for other images.
    upgrades = (
        (RELEASE_OF_OPERATOR, OPERATOR, "operator.image.repository=docker.io/turnmill/operator"),
        (RELEASE, TEAM, "toolServer.image.repository=docker.io/turnmill/tool-server"),
    )
    for release, chart, image in upgrades:
        where = [release, str(next_version(chart, tmp_path)), f"--namespace={team.namespace.name}"]
        helm("upgrade", *where, "--reset-then-reuse-values", f"--set={image}")
    job.wait_until_complete(seconds=RUN_SECONDS)

    assert job.resource["status"]["attempt"] == 1
    assert job.summary()["failures"] == {}
    assert job.summary()["steps"] == 12
    for selector, pods in before.items():
        assert pods.isdisjoint(team.pods(selector)), selector
    assert team.namespace.list("pods", STORE_PODS)[0]["metadata"]["uid"] == store
