"""Evaluations of any model in the environments and tasks of this project, without a trainer: `turnmill evaluate`."""

from turnmill.evaluation.run import Request, evaluate

__all__ = ["Request", "evaluate"]
