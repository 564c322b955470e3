"""What the benchmark asks of a system under test, and the systems that it knows."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from chaos.faults import FAULTS, Fault
from chaos.measures import Played

STEPS, TASKS_PER_STEP, GROUP_SIZE = 8, 4, 4
RETRIES, CADENCE_RETRIES = 3, 100
"""How often a run that failed is started again, whoever does it; the second where faults are repeated."""

MODULES = {
    "turnmill": "chaos.turnmill_system",
    "turnmill-async": "chaos.turnmill_async_system",
    "turnmill-environment": "chaos.turnmill_environment_system",
    "verl": "chaos.verl_system",
    "verifiers": "chaos.verifiers_system",
}


@dataclass(frozen=True)
class Given:
    """What a run is given."""

    folder: Path
    """Where it keeps its files: a file system of its own."""

    steps: int
    seed: int
    tools_url: str = ""
    """Address at which it finds the tools; empty if it starts a tool server of its own."""

    model_url: str = ""
    """Address of the model server, if the system needs one."""

    store_url: str = ""
    """URL of the store; empty if it starts one of its own."""

    retries: int = RETRIES
    """How often it is started again."""


class System(Protocol):
    """A system under test."""

    name: str
    parts: Mapping[str, str]
    """Patterns of the command lines of its processes, by the kinds of `faults.PARTS`; what it has not, is left out."""

    tool_server: Sequence[str]
    """Command of a tool server that the benchmark starts, with `{port}` and `{store}`."""

    model_server: Sequence[str]
    """Command of a model server that the benchmark starts, with `{port}`; empty if a run starts its engines itself."""

    starts_tool_server: bool
    """Whether a run starts a tool server of its own if it is not given the address of one."""

    def version(self) -> str:
        """Return its version."""
        ...

    def serve_tools(self, store_url: str, logs: Path) -> str:
        """Start a tool server as a run does that has one of its own, and watches it; return its address.

        Empty if the system has none: then the benchmark starts `tool_server`, and again whenever it ends.
        """
        ...

    def prepare(self, folder: Path) -> None:
        """Make, outside of any namespace, what all runs share, such as the model."""
        ...

    def command(self, given: Given) -> tuple[list[str], Mapping[str, str]]:
        """Return the command that trains, and the variables of its environment."""
        ...

    def processes(self, part: str) -> list[int]:
        """Return the processes of a kind; empty if none runs at present."""
        ...

    def steps(self, folder: Path) -> int:
        """Return how many steps are complete."""
        ...

    def step_times(self, folder: Path) -> list[float]:
        """Return the seconds that each complete step took by the system's own clock; empty if it notes none."""
        ...

    def played(self, folder: Path) -> Mapping[str, Played]:
        """Return the trajectories of complete steps by their names, TASK-SAMPLE, the same in every run of a seed."""
        ...

    def name_of(self, trajectory: str) -> str:
        """Return the name in `played` of the trajectory that a tool was called with."""
        ...


def system(name: str) -> System:
    """Return a system by its name."""
    found: System = importlib.import_module(MODULES[name]).SYSTEM
    return found


def faults_of(name: str) -> list[Fault]:
    """Return the faults of parts that a system has."""
    parts = system(name).parts
    return [
        each
        for each in FAULTS
        if each.part in ("", *parts)
        and ("store" in parts or not each.needs_store)
        and ("tool server" in parts or not each.needs_proxy)
    ]
