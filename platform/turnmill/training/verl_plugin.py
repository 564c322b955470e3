"""Loaded by verl in every process through its `verl.plugins` entry point: teaches it to run without a GPU."""

import importlib
import os

# In this order: verl asks for the platform as soon as its engines are imported.
CPU_MODULES = ("platform", "engines", "patches")

if os.environ.get("VERL_PLATFORM") == "cpu":
    for module in CPU_MODULES:
        importlib.import_module(f"turnmill.training.verl_cpu.{module}")
