"""Patches Ray when it is imported; this is the first of the imported modules that import Ray."""

from turnmill.training.verl.patches import actor_class_ids

actor_class_ids.apply()
