"""Loaded by verl in every process through its `verl.plugins` entry point: teaches it to run without a GPU."""

import importlib
import os

# The engines take seconds to import and are wanted in training workers alone: verl_cpu.workers brings them.
CPU_MODULES = ("platform", "patches")

if os.environ.get("VERL_PLATFORM") == "cpu":
    for module in CPU_MODULES:
        importlib.import_module(f"turnmill.training.verl_cpu.{module}")
