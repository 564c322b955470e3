"""Ranges of seeds for training and for validations."""

VALIDATION_SEEDS = 1_000_000
"""Seeds below this number are used by validations only, all others by training."""
