"""The agent kind `harness`: programs that take the policy for a model server."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from turnmill.core.errors import SandboxError, SettingsError
from turnmill.jobs.harness_agent import HarnessAgent
from turnmill.jobs.harness_rules import VERIFIERS
from turnmill.jobs.problems import MISSING, Problem, problems_of
from turnmill.jobs.values import Values
from turnmill.training.agent_kinds import checks
from turnmill.training.agent_kinds.base import AgentKind

IMPORT_SECONDS = 120


class HarnessKind(AgentKind[HarnessAgent]):
    """Trajectories of unchanged agents, recorded by the gateway."""

    manager = "turnmill.rollout.harness.worker:HarnessManager"
    warm_start_recipe = "turnmill.training.warm_start.recipes:ProgramRecipe"

    @property
    def max_prompt_tokens(self) -> int:
        """Maximum number of tokens of a prompt."""
        return self.agent.max_prompt_length

    @classmethod
    def problems(cls, values: Values) -> Iterator[Problem]:
        """Yield problems with the tasks, which must fit into JSON, their rewards, and what plays them."""
        if values["spec.environment.name"] == VERIFIERS:
            if values["spec.agent.sandbox"] is not None:
                way_out = "Take it out, and give verifiers a runtime that contains its programs."
                yield Problem("spec.agent.sandbox", MISSING, "is for programs, which verifiers starts itself", way_out)
            yield from _verifiers_problems(values)
            return
        yield from checks.task_problems(values, as_json=True)
        yield from _reward_problems(values)
        if (target := values["spec.agent.entryPoint"]) is not None:
            yield from _entry_point_problems(target, values["spec.agent.python"], preload=values["spec.agent.preload"])
        if values["spec.agent.sandbox"] is not None:
            yield from _sandbox_problems(values["spec.agent.sandbox.paths"])

    @classmethod
    def warm_start_problems(cls, values: Values) -> Iterator[Problem]:
        """Yield a problem if the tasks have no demonstrations."""
        if values["spec.environment.name"] == VERIFIERS:
            rule, way_out = "has nothing to imitate in environments of verifiers", "Give a folder as spec.model.path."
            yield Problem("spec.model.warmStart", MISSING, rule, way_out)
            return
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


def _entry_point_problems(target: str, python: str | None, *, preload: bool) -> Iterator[Problem]:
    """Yield a problem if a function cannot be loaded as a trajectory's program will load it."""
    from turnmill.rollout.harness.entry_point import LOAD_ONLY, PRELOAD
    from turnmill.rollout.harness.program import INHERITED, entry_point_command, import_paths, inherited

    command = [*entry_point_command(target, python), LOAD_ONLY, *([PRELOAD] if preload else [])]
    environment = inherited(INHERITED) | import_paths(python)
    way_out = "Give the whole path of a file, or install its package."
    yield from _load_problems(
        command, environment, place="spec.agent.entryPoint", value=target, python_place="spec.agent.python",
        way_out=way_out, seconds=IMPORT_SECONDS,
    )  # fmt: skip


def _verifiers_problems(values: Values) -> Iterator[Problem]:
    """Yield a problem if an environment of verifiers cannot be loaded as the run will load it."""
    from turnmill.rollout.harness.verifiers_environment import (
        LOAD_SECONDS,
        server_command,
        server_settings,
        server_variables,
    )
    from turnmill.rollout.harness.verifiers_server import LOAD_ONLY

    task, options = values["spec.environment.task"], values["spec.environment.options"]
    if not values.within("spec.environment.options") or not values.within("spec.agent.variables"):
        return
    python = values["spec.environment.python"] or sys.executable
    try:
        settings = server_settings(options, task, max_turns=values["spec.agent.maxTurns"], seed=0)
    except SettingsError as error:
        yield from problems_of(error)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield from _load_problems(
            [*server_command(python, settings, Path(folder)), LOAD_ONLY],
            server_variables(python, values["spec.agent.variables"]),
            place="spec.environment.task", value=task, python_place="spec.environment.python",
            way_out="Install it for spec.environment.python, and correct spec.environment.options.",
            seconds=LOAD_SECONDS,
        )  # fmt: skip


def _load_problems(
    command: list[str], environment: Mapping[str, str], *, place: str, value: object, python_place: str, way_out: str,
    seconds: float,
) -> Iterator[Problem]:  # fmt: skip
    """Yield a problem if a command that loads what `place` names does not end with success."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            ended = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except OSError as error:
            yield Problem(python_place, command[0], f"cannot be started: {error.strerror}", "Give its whole path.")
            return
        except subprocess.TimeoutExpired:
            yield Problem(place, value, f"is not loaded within {seconds:g} s", "Load less at its beginning.")
            return
    if ended.returncode:
        reason = (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
        yield Problem(place, value, f"cannot be loaded: {reason}".rstrip("."), way_out)
