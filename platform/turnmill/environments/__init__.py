"""Environments: the objects that agents act on during one episode, and their registry."""

from turnmill.environments.base import Environment, EnvironmentOptions, StepResult
from turnmill.environments.registry import create, find, names, register

__all__ = ["Environment", "EnvironmentOptions", "StepResult", "create", "find", "names", "register"]
