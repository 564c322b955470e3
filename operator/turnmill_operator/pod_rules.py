"""What pod templates of a team may ask for.

Whoever may edit a team's ConfigMap need not have the right to create pods: the operator and KubeRay create them, with
rights of their own. A template therefore gets no more than Pod Security's level `baseline` allows, no token of the API
server and no foreign service account, unless the cluster's administrator has allowed it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

from turnmill.core.errors import SettingsError
from turnmill.jobs.team import CONFIG_MAP, KEY, TeamSettings

Right = Literal[
    "capabilities", "hostNamespaces", "hostPath", "hostPorts", "nodeName", "privileged", "serviceAccountToken",
    "unconfined",
]  # fmt: skip
RIGHTS: tuple[Right, ...] = get_args(Right)

HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")
CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
BASELINE_CAPABILITIES = frozenset(
    {
        "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP",
        "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
    }
)  # fmt: skip
"""Capabilities that Pod Security's level `baseline` lets a container add."""

MAX_PROBLEMS = 4
Problem = tuple[str, str]
"""Place in the template, and the right or the service account that it asks for."""


@dataclass(frozen=True, slots=True)
class PodRules:
    """What the administrator allows in pod templates of teams, beyond what all may ask for."""

    rights: frozenset[Right] = frozenset()
    service_accounts: tuple[str, ...] = ("*-trainer",)
    """Names or patterns of service accounts; `default` is always allowed."""

    def check(self, team: TeamSettings) -> None:
        """Raise SettingsError if a template asks for what is not allowed."""
        templates: dict[str, Mapping[str, Any]] = {"head": team.head.template}
        templates |= {f"workerGroups.{group.name}": group.template for group in team.worker_groups}
        if team.clean_up is not None:
            templates["cleanUp"] = team.clean_up.template
        problems = [
            f"{place}.template.{field} {reason}"
            for place, template in templates.items()
            for field, reason in self._problems(_mapping(template.get("spec")))
        ]
        if problems:
            more = f"; and {len(problems) - MAX_PROBLEMS} more" if len(problems) > MAX_PROBLEMS else ""
            raise SettingsError(
                f"ConfigMap {CONFIG_MAP}, {KEY}: {'; '.join(problems[:MAX_PROBLEMS])}{more}. Pods of a team get this "
                "only if the cluster's administrator allows it, by operator.podTemplates of the chart turnmill."
            )

    def _problems(self, spec: Mapping[str, Any]) -> Iterator[Problem]:
        for field, right in _rights_of_pod(spec):
            if right not in self.rights:
                yield f"spec.{field}", f"needs the right {right}"
        for field in ("serviceAccountName", "serviceAccount"):
            name = str(spec.get(field) or "default")
            if name != "default" and not any(fnmatchcase(name, allowed) for allowed in self.service_accounts):
                accounts = ", ".join(("default", *self.service_accounts))
                yield f"spec.{field}", f"is {name!r}; service accounts of pods are {accounts}"


DEFAULT_RULES = PodRules()


def parse_rules(rights: Sequence[str], service_accounts: Sequence[str]) -> PodRules:
    """Return the rules of these rights and service accounts; raises SettingsError."""
    if unknown := [right for right in rights if right not in RIGHTS]:
        raise SettingsError(f"--allow-in-pods {unknown[0]!r} is none of {', '.join(RIGHTS)}.")
    allowed = frozenset(right for right in RIGHTS if right in rights)
    return PodRules(allowed, tuple(service_accounts)) if service_accounts else PodRules(allowed)


def _rights_of_pod(spec: Mapping[str, Any]) -> Iterator[tuple[str, Right]]:
    """Yield the rights that a pod asks for, each with its field."""
    for field in HOST_NAMESPACES:
        if spec.get(field):
            yield field, "hostNamespaces"
    if spec.get("nodeName"):
        yield "nodeName", "nodeName"
    if spec.get("automountServiceAccountToken"):
        yield "automountServiceAccountToken", "serviceAccountToken"
    for number, volume in enumerate(_mappings(spec.get("volumes"))):
        if "hostPath" in volume:
            yield f"volumes[{number}].hostPath", "hostPath"
        for source in _mappings(_mapping(volume.get("projected")).get("sources")):
            if "serviceAccountToken" in source:
                yield f"volumes[{number}].projected", "serviceAccountToken"
    yield from _rights_of_context("securityContext", _mapping(spec.get("securityContext")))
    for kind in CONTAINERS:
        for number, container in enumerate(_mappings(spec.get(kind))):
            place = f"{kind}[{number}]"
            yield from _rights_of_context(f"{place}.securityContext", _mapping(container.get("securityContext")))
            for port in _mappings(container.get("ports")):
                if port.get("hostPort"):
                    yield f"{place}.ports", "hostPorts"


def _rights_of_context(place: str, context: Mapping[str, Any]) -> Iterator[tuple[str, Right]]:
    """Yield the rights that a security context of a pod or of a container asks for."""
    if context.get("privileged"):
        yield f"{place}.privileged", "privileged"
    if _mapping(context.get("windowsOptions")).get("hostProcess"):
        yield f"{place}.windowsOptions", "privileged"
    added = _mapping(context.get("capabilities")).get("add") or ()
    if not {str(name).removeprefix("CAP_") for name in added} <= BASELINE_CAPABILITIES:
        yield f"{place}.capabilities", "capabilities"
    if context.get("procMount") not in (None, "Default") or context.get("sysctls"):
        yield f"{place}.{'sysctls' if context.get('sysctls') else 'procMount'}", "unconfined"
    for profile in ("seccompProfile", "appArmorProfile"):
        if _mapping(context.get(profile)).get("type") == "Unconfined":
            yield f"{place}.{profile}", "unconfined"
    if _mapping(context.get("seLinuxOptions")):
        yield f"{place}.seLinuxOptions", "unconfined"


def _mapping(value: object) -> Mapping[str, Any]:
    """Return an object of a template; of what is none, which the API server refuses, nothing."""
    return value if isinstance(value, Mapping) else {}


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [_mapping(item) for item in value] if isinstance(value, list) else []
