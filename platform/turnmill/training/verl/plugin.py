"""Loaded by verl in every process through its `verl.plugins` entry point: several runs on a machine, and no GPU."""

import importlib
import os

from turnmill.training.verl.patches import weight_sockets

# The engines take seconds to import and are wanted in training workers alone: `cpu.workers` brings them.
CPU_MODULES = ("cpu.platform", "patches.cpu")

weight_sockets.name_by_run()
if os.environ.get("VERL_PLATFORM") == "cpu":
    for module in CPU_MODULES:
        importlib.import_module(f"turnmill.training.verl.{module}")
