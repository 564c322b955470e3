"""Plug-in that verl loads in every process through the entry point `verl.plugins`: patches, and the CPU platform."""

import importlib
import os

from turnmill.training.verl.patches import gloo_backend, value_head_attention, weight_sockets

weight_sockets.apply()
value_head_attention.apply()
if os.environ.get("VERL_PLATFORM") == "cpu":
    # The engines take seconds to import, and only training workers need them: `workers` imports them.
    importlib.import_module("turnmill.training.verl.cpu.platform")
    gloo_backend.apply()
