"""verifiers: an evaluation by its own runner, against a model server of the benchmark; it does not train.

A loop of the shell starts it again when it fails, and it continues with the results that it has saved.
"""

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from chaos.measures import Played
from chaos.processes import find
from chaos.systems import GROUP_SIZE, TASKS_PER_STEP, Given
from results_file import ROOT

PYTHON = ROOT / ".venv-verifiers" / "bin" / "python"
"""Made by `make extras`."""

PER_STEP = TASKS_PER_STEP * GROUP_SIZE


class Verifiers:
    """verifiers."""

    name = "verifiers"
    parts: Mapping[str, str] = {
        "trainer": r"-m chaos\.verifiers_runner",
        "engine": r"chaos\.model_service",
        "tool server": r"chaos\.tool_service",
    }
    tool_server: Sequence[str] = (sys.executable, "-m", "chaos.tool_service", "{port}")
    model_server: Sequence[str] = (sys.executable, "-m", "chaos.model_service", "{port}")
    starts_tool_server = False

    def version(self) -> str:
        """Return its version."""
        code = "from importlib.metadata import version; print(version('verifiers'))"
        return subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout.strip()

    def serve_tools(self, store_url: str, logs: Path) -> str:
        """Return nothing: the benchmark starts the tool server."""
        return ""

    def prepare(self, folder: Path) -> None:
        """Do nothing: there is no model."""

    def command(self, given: Given) -> tuple[list[str], Mapping[str, str]]:
        """Return a loop that evaluates until it ends well."""
        words = (PYTHON, "-m", "chaos.verifiers_runner", given.tools_url, given.model_url, given.steps * PER_STEP)
        command = " ".join(shlex.quote(str(word)) for word in (*words, given.folder / "results"))
        loop = f"for attempt in $(seq 0 {given.retries}); do {command} && exit 0; done; exit 1"
        return ["bash", "-c", loop], {"PYTHONPATH": str(ROOT / "benchmarks"), "HF_HUB_OFFLINE": "1"}

    def processes(self, part: str) -> list[int]:
        """Return the processes of a kind, without the shell."""
        return [pid for pid in find(self.parts[part]) if pid not in find(r"^bash ")]

    def steps(self, folder: Path) -> int:
        """Return the number of saved results, in steps of other systems."""
        return len(_rows(folder)) // PER_STEP

    def step_times(self, folder: Path) -> list[float]:
        """Return nothing: its own times are in its output alone."""
        return []

    def played(self, folder: Path) -> Mapping[str, Played]:
        """Return the saved results; one with an error is no trajectory to learn from."""
        return {row["answer"]: Played(row["reward"], row.get("error") is None) for row in _rows(folder)}

    def name_of(self, trajectory: str) -> str:
        """Return the name, which is the runner's."""
        return trajectory


def _rows(folder: Path) -> list[dict[str, object]]:
    """Return the saved results, without those that were torn by a full disk."""
    file, rows = folder / "results" / "results.jsonl", []
    for line in file.read_text().split("\n")[:-1] if file.exists() else []:
        with suppress(ValueError):
            rows.append(json.loads(line))
    return rows


SYSTEM = Verifiers()
