"""The agent kind `harness`: programs that take the policy for a model server."""

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from turnmill.core.errors import SandboxError, SettingsError
from turnmill.jobs.harness_agent import HarnessAgent
from turnmill.jobs.problems import MISSING, Problem
from turnmill.jobs.values import Values
from turnmill.training.agent_kinds import checks
from turnmill.training.agent_kinds.base import AgentKind

IMPORT_SECONDS = 120


class HarnessKind(AgentKind[HarnessAgent]):
    """Trajectories of unchanged agents, recorded by the gateway."""

    manager = "turnmill.rollout.harness.worker:HarnessManager"
    warm_start_recipe = "turnmill.training.warm_start.recipes:TaskRecipe"

    @property
    def max_prompt_tokens(self) -> int:
        """Maximum number of tokens of a prompt."""
        return self.agent.max_prompt_length

    @classmethod
    def problems(cls, values: Values) -> Iterator[Problem]:
        """Yield problems with the tasks, which must fit into JSON, their rewards, and the function that plays them."""
        yield from checks.task_problems(values, as_json=True)
        yield from _reward_problems(values)
        if (target := values["spec.agent.entryPoint"]) is not None:
            yield from _entry_point_problems(target, values["spec.agent.python"])
        if values["spec.agent.sandbox"] is not None:
            yield from _sandbox_problems(values["spec.agent.sandbox.paths"])

    @classmethod
    def warm_start_problems(cls, values: Values) -> Iterator[Problem]:
        """Yield a problem if the tasks have no demonstrations."""
        yield from checks.demonstration_problems(values)


def _sandbox_problems(paths: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for each path that is not there, and one if this machine has no namespaces for programs."""
    from turnmill.sandboxes.program import require_namespaces

    for number, path in enumerate(paths):
        if not Path(path).exists():
            way_out = "Correct it, or take it out."
            yield Problem(f"spec.agent.sandbox.paths[{number}]", path, "is not there", way_out)
    try:
        require_namespaces()
    except SandboxError as error:
        reason, _, way_out = str(error).partition(". ")
        yield Problem("spec.agent.sandbox", MISSING, f"cannot be had on this machine: {reason}", way_out)


def _reward_problems(values: Values) -> Iterator[Problem]:
    """Yield a problem if a program gives the rewards of these tasks, and the job wants them computed."""
    from turnmill.tasks.registry import find_source

    name, place = values["spec.environment.name"], "spec.agent.reward"
    try:
        by_program = find_source(name).rewarded_by_program
    except SettingsError:
        # Reported by `task_problems`.
        return
    if by_program and values[place] != "program":
        yield Problem(place, values[place], f"must be program: {name} computes no rewards", "Set it to program.")


def _entry_point_problems(target: str, python: str | None) -> Iterator[Problem]:
    """Yield a problem if a function cannot be loaded as a trajectory's program will load it."""
    from turnmill.rollout.harness.entry_point import LOAD_ONLY
    from turnmill.rollout.harness.program import INHERITED, entry_point_command, import_paths, inherited

    command = [*entry_point_command(target, python), LOAD_ONLY]
    environment = inherited(INHERITED) | import_paths(python)
    place = "spec.agent.entryPoint"
    with tempfile.TemporaryDirectory() as folder:
        try:
            ended = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=IMPORT_SECONDS
            )
        except OSError as error:
            yield Problem("spec.agent.python", python, f"cannot be started: {error.strerror}", "Give its whole path.")
            return
        except subprocess.TimeoutExpired:
            yield Problem(place, target, f"is not imported within {IMPORT_SECONDS} s", "Import less at its beginning.")
            return
    if ended.returncode:
        reason = (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
        way_out = "Give the whole path of a file, or install its package."
        yield Problem(place, target, f"cannot be loaded: {reason}", way_out)
