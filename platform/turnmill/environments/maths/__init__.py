"""Mathematical problems, tried again until they are solved."""

from turnmill.environments.maths.environment import Maths, MathsOptions

__all__ = ["Maths", "MathsOptions"]
