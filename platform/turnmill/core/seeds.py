"""How seeds are shared out between training and validation."""

VALIDATION_SEEDS = 1_000_000
"""Smaller seeds belong to validations; training never plays one of them."""
