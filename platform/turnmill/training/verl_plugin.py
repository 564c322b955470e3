"""Loaded by verl in every process through its `verl.plugins` entry point: teaches it to run without a GPU."""

import os

if os.environ.get("VERL_PLATFORM") == "cpu":
    from turnmill.training.verl_cpu import engines, patches, platform  # noqa: F401  (registered on import)

    patches.apply()
