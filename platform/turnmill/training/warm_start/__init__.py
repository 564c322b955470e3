"""Warm starts: tiny models, made offline by imitating an expert and cached on this machine."""

from turnmill.training.warm_start.cache import ensure_warm_start

__all__ = ["ensure_warm_start"]
