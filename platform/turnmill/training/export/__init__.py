"""Models in the format of Hugging Face, made from the checkpoints of runs: `turnmill export`."""

from turnmill.training.export.folder import Export, export
from turnmill.training.export.publication import publish, require_hub

__all__ = ["Export", "export", "publish", "require_hub"]
