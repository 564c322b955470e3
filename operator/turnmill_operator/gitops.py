"""Objects that Argo CD and Flux keep: what they have applied, they apply again after it is deleted."""

from collections.abc import Collection, Mapping

MARKS = frozenset(
    {
        "argocd.argoproj.io/instance",
        "argocd.argoproj.io/tracking-id",
        "kustomize.toolkit.fluxcd.io/name",
        "helm.toolkit.fluxcd.io/name",
    }
)
"""Labels and annotations by which they know their objects."""


def is_kept(metadata: Mapping[str, Collection[str]]) -> bool:
    """Return whether an object with this metadata is kept by one of them."""
    return bool(MARKS & {*metadata.get("labels", ()), *metadata.get("annotations", ())})
