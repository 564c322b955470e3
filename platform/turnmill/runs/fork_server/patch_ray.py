"""Patches Ray when it is imported: the first of the modules that import Ray and are forked."""

from turnmill.training.verl.patches import actor_class_ids

actor_class_ids.apply()
