"""What only the floors above the job file can check: environments, experts, verl's settings."""

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from turnmill.core.errors import EnvironmentFailedError, SettingsError
from turnmill.jobs.problems import MISSING, Problem
from turnmill.jobs.values import BrokenValueError, Values

# The warm start imitates an expert, and only these environments bring one.
EXPERTS = ("babaisai", "babyai", "blocksworld", "sokoban", "tetris")
TEACHERS = ("arithmetic", "calculator")


def environment(values: Values) -> Iterator[Problem]:
    """Problems with the environment's name, its task and its options."""
    # Environments bring libraries of their own, and most commands need none.
    from turnmill.environments import create, find

    name = values["spec.environment.name"]
    if values["spec.agent.type"] == "grl":
        yield from _agents(values)
        return
    if values["spec.agent.type"] in ("tool", "multi_turn"):
        yield from _tasks(values)
        return
    if values["spec.environment.python"] is not None:
        yield from _elsewhere(values)
        return
    try:
        find(name)
    except SettingsError as error:
        yield from _problems(error)
        return
    if not values.within("spec.environment.options"):
        return
    task, options = values["spec.environment.task"], values["spec.environment.options"]
    found: dict[str, Problem] = {}
    # Wrong options hide a wrong task, so the task is tried without them too.
    attempts: tuple[dict[str, Any], ...] = (options, {})
    for tried in attempts:
        try:
            create(name, task, _max_turns(values), tried).close()
        except SettingsError as error:
            for problem in _problems(error):
                # What options lack that are not there is no problem of those that are.
                if tried is options or not problem.path.startswith("spec.environment.options"):
                    found.setdefault(problem.path, problem)
    yield from found.values()


def _agents(values: Values) -> Iterator[Problem]:
    """Problems with the types of agents and with their environments: each is made and dropped."""
    from turnmill.environments.grl.world import agent_of
    from turnmill.jobs.grl_agent import NamedAgent

    if values["spec.environment.python"] is not None or not values.within("spec.agent.agents"):
        return
    for number, section in enumerate(values["spec.agent.agents"]):
        try:
            agent_of(NamedAgent.model_validate(section, by_alias=True)).close()
        except SettingsError as error:
            for problem in _problems(error):
                place = problem.path.removeprefix("spec.")
                yield replace(problem, path=f"spec.agent.agents[{number}].{place}")


def _elsewhere(values: Values) -> Iterator[Problem]:
    """A problem with an environment that another interpreter is to run: it is made there and dropped."""
    from turnmill.environments.runtime.process import EnvironmentProcess
    from turnmill.environments.runtime.worker import WorkerSettings

    python, options = values["spec.environment.python"], values["spec.environment.options"]
    if not os.access(python, os.X_OK):
        way_out = "Make a virtual environment, install turnmill and the environment's packages, and give its python."
        yield Problem("spec.environment.python", python, "is no program that can be run", way_out)
        return
    settings = WorkerSettings(
        name=values["spec.environment.name"],
        task=values["spec.environment.task"],
        max_turns=_max_turns(values),
        options=options if values.within("spec.environment.options") else {},
        python=python,
    )
    try:
        asyncio.run(EnvironmentProcess(settings).check())
    except EnvironmentFailedError as error:
        way_out = "Install turnmill there with what the environment needs, and correct its task and options."
        yield Problem("spec.environment.python", python, f"does not run it: {error}".rstrip("."), way_out)


def _tasks(values: Values) -> Iterator[Problem]:
    """Problems with the tasks of an agent with tools, and with what may end its actions."""
    from turnmill.tasks import create_source

    if not values.within("spec.environment.options"):
        return
    try:
        source = create_source(values["spec.environment.name"], values["spec.environment.options"])
        if values["spec.agent.type"] == "tool" and values["spec.agent.enableAgent"]:
            source.require_json()
    except SettingsError as error:
        yield from _problems(error)


def warm_start(values: Values) -> Iterator[Problem]:
    """A problem if there is nobody to imitate."""
    name = values["spec.environment.name"]
    if values["spec.model.warmStart"] is None or values["spec.agent.type"] == "grl":
        return
    known = EXPERTS if values["spec.agent.type"] == "verlog" else TEACHERS
    if name not in known and not _teaches(name, "expert" if known is EXPERTS else "demonstrations"):
        rule = f"has no expert for a warm start to imitate in {name}"
        way_out = f"Give a folder as spec.model.path, or take an environment with an expert: {', '.join(known)}."
        yield Problem("spec.model.warmStart", MISSING, rule, way_out)


def _teaches(name: str, method: str) -> bool:
    """Whether an environment or tasks of the user's own have somebody to imitate."""
    from turnmill.environments import find
    from turnmill.tasks.registry import find_source

    try:
        return hasattr(find(name) if method == "expert" else find_source(name), method)
    except SettingsError:
        # Told by the check of the environment.
        return True


def verl_settings(values: Values) -> Iterator[Problem]:
    """A problem for every name in `spec.verl` that verl has no setting for, or that turnmill does not read."""
    settings = values["spec.verl"]
    if not settings:
        return
    # verl's own configuration takes seconds to import.
    from turnmill.training.verl.config import unknown_verl_settings
    from turnmill.training.verl.known_settings import names_without_effect

    for name, instead in names_without_effect(settings):
        yield Problem(f"spec.verl.{name}", settings[name], "has no effect here", instead)
    for name, closest in unknown_verl_settings(settings):
        way_out = f"Did you mean {closest}?" if closest else "Look it up in verl's documentation."
        yield Problem(f"spec.verl.{name}", settings[name], "is no setting of verl's", way_out)


ALL = (environment, warm_start, verl_settings)


def _max_turns(values: Values) -> int:
    try:
        return int(values["spec.agent.maxTurns"])
    except BrokenValueError:
        return 1


def _problems(error: SettingsError) -> Iterator[Problem]:
    """One problem per line of an error that says `environment.task: what is wrong. The way out.`"""
    for line in str(error).splitlines():
        place, _, sentence = line.partition(": ")
        rule, _, way_out = sentence.partition(". ")
        yield Problem(f"spec.{place}", MISSING, rule.removesuffix("."), way_out)
