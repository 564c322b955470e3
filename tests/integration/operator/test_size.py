"""Memory and modules of the operator's process when it is idle."""

import os
import subprocess
import sys

HEAVY = {"torch", "ray", "verl", "vllm", "transformers", "numpy", "kubernetes", "fastapi"}
BUDGET_MIB = 150

PROGRAM = """
import sys
from pathlib import Path
# Kopf imports it where it is installed, as for the command line of developers. The operator's image does not have it.
sys.modules["kubernetes"] = None
import turnmill_operator.main
status = Path("/proc/self/status").read_text()
memory = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) // 1024
print(memory, *sorted({name.partition(".")[0] for name, module in sys.modules.items() if module}))
"""


def test_the_operator_needs_little_memory_and_imports_no_heavy_package():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120, env=environment
    )
    memory, *modules = done.stdout.split()

    assert int(memory) < BUDGET_MIB
    assert not HEAVY & set(modules)
