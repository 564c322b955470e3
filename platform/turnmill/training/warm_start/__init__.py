"""A tiny model that can be had offline: made, cloned from an expert and cached on this machine."""

from turnmill.training.warm_start.cache import ensure_warm_start

__all__ = ["ensure_warm_start"]
