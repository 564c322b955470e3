"""Checks of a machine or a pod: whether jobs can train on it (`turnmill doctor`)."""
