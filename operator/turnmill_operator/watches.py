"""Watches, run by kopf: their handlers put changes into the operator's cache and queue."""

from collections.abc import Sequence

import kopf

from turnmill.jobs.team import CONFIG_MAP
from turnmill_operator.api import CONFIG_MAPS, JOBS, PODS, RAY_JOBS, Resource, log_in
from turnmill_operator.operator_process import Operator
from turnmill_operator.views import ATTEMPT_LABEL, JOB_LABEL

WATCH_SECONDS = 600


class NoDiffStorage(kopf.DiffBaseStorage):
    """Keeps kopf from storing a copy of every object for diffs that no handler uses."""

    def build(self, **_: object) -> kopf.BodyEssence:
        """Return an empty essence, as there is nothing to compare."""
        return kopf.BodyEssence({})

    def fetch(self, **_: object) -> kopf.BodyEssence | None:
        """Return nothing: no essence is stored."""
        return None

    def store(self, **_: object) -> None:
        """Store nothing."""


def configure(settings: kopf.OperatorSettings) -> None:
    """Configure kopf to watch only: it writes nothing to the cluster."""
    settings.peering.standalone = True
    settings.posting.enabled = False
    # The operator's own cache decides what has changed.
    settings.persistence.diffbase_storage = NoDiffStorage()
    # Kinds are looked up at the start: those installed later are found by the listings.
    settings.scanning.disabled = True
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.chunk_size = 100
    settings.watching.label_selectors["rayjobs"] = JOB_LABEL
    settings.watching.label_selectors["pods"] = f"{JOB_LABEL},{ATTEMPT_LABEL}"
    settings.watching.field_selectors["configmaps"] = f"metadata.name={CONFIG_MAP}"


def build_registry(operator: Operator) -> kopf.OperatorRegistry:
    """Return the handlers of all watches."""
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    def _settings(settings: kopf.OperatorSettings, **_: object) -> None:
        configure(settings)

    @kopf.on.login(registry=registry)
    def _login(**_: object) -> kopf.ConnectionInfo | None:
        return log_in()

    @kopf.on.event(*_selector(JOBS), registry=registry)
    async def _job(event: kopf.RawEvent, **_: object) -> None:
        operator.on_job_event(event["type"], event["object"])

    @kopf.on.event(*_selector(RAY_JOBS), registry=registry)
    async def _ray_job(event: kopf.RawEvent, **_: object) -> None:
        operator.on_ray_job_event(event["type"], event["object"])

    @kopf.on.event("", "v1", PODS.plural, registry=registry)
    async def _pod(event: kopf.RawEvent, **_: object) -> None:
        operator.on_pod_event(event["object"])

    @kopf.on.event("", "v1", CONFIG_MAPS.plural, registry=registry)
    async def _team(event: kopf.RawEvent, **_: object) -> None:
        operator.on_team_event(event["type"], event["object"])

    return registry


def _selector(resource: Resource) -> Sequence[str]:
    group, version = resource.group_version.split("/")
    return group, version, resource.plural
