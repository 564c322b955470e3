"""Metrics, progress and logs of a run."""
