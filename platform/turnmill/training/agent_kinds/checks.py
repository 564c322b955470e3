"""Checks of `turnmill check` beyond the job file: environments, tasks, agents, and experts for a warm start."""

import asyncio
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from turnmill.core.errors import EnvironmentFailedError, SettingsError
from turnmill.jobs.hub import local_folder
from turnmill.jobs.problems import MISSING, Problem, problems_of
from turnmill.jobs.tool_server import tool_names
from turnmill.jobs.values import BrokenValueError, Values

# Environments are imported in functions: they import libraries of their own, which most commands do not need.

# Environments and task sources with an expert, which a warm start imitates.
EXPERTS = ("babaisai", "babyai", "blocksworld", "sokoban", "tetris")
TEACHERS = ("arithmetic", "calculator")
TOOLS_WITH_IMAGES = ("pixel_reasoner",)


def environment_problems(values: Values) -> Iterator[Problem]:
    """Yield problems with the environment's name, task and options; it is created and closed to find them."""
    from turnmill.environments import create, find

    if values["spec.environment.python"] is not None:
        yield from _other_interpreter_problems(values)
        return
    name = values["spec.environment.name"]
    try:
        find(name)
    except SettingsError as error:
        yield from problems_of(error)
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
            for problem in problems_of(error):
                # Required options are no problem where the attempt leaves all options out.
                if tried is options or not problem.path.startswith("spec.environment.options"):
                    found.setdefault(problem.path, problem)
    yield from found.values()


def _other_interpreter_problems(values: Values) -> Iterator[Problem]:
    """Yield a problem if an environment with an interpreter of its own cannot be created there."""
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


def grl_problems(values: Values) -> Iterator[Problem]:
    """Yield problems with GRL's agents and their environments; each is created and closed to find them."""
    from turnmill.environments.grl.agent_adapter import agent_of
    from turnmill.jobs.grl_agent import NamedAgent

    if values["spec.environment.python"] is not None or not values.within("spec.agent.agents"):
        return
    for number, section in enumerate(values["spec.agent.agents"]):
        try:
            agent_of(NamedAgent.model_validate(section, by_alias=True)).close()
        except SettingsError as error:
            for problem in problems_of(error):
                place = problem.path.removeprefix("spec.")
                yield replace(problem, path=f"spec.agent.agents[{number}].{place}")


def task_problems(values: Values, *, as_json: bool = False) -> Iterator[Problem]:
    """Yield problems with the tasks; `as_json` requires that their data can be sent as JSON, for tools over HTTP."""
    from turnmill.tasks import create_source

    if not values.within("spec.environment.options"):
        return
    try:
        source = create_source(values["spec.environment.name"], values["spec.environment.options"])
        if as_json:
            source.require_json()
    except SettingsError as error:
        yield from problems_of(error)
        return
    yield from _reward_model_problems(values, asked=source.asks_reward_model)


def _reward_model_problems(values: Values, *, asked: bool | None) -> Iterator[Problem]:
    """Yield a problem if rewards ask a model that is not there or cannot answer, or if nothing asks one that is."""
    if values["spec.rewardModel"] is None:
        if asked:
            way_out = "Add the model, or give the address of a judge as environment.options.judge.url."
            yield Problem("spec.rewardModel", MISSING, "must be set: spec.environment.options.reward asks it", way_out)
        return
    place = "spec.rewardModel.path"
    if asked is False:
        way_out = "Set spec.environment.options.reward to judge or reward_model, or take the model out."
        yield Problem(place, values[place], "is asked for no reward", way_out)
    reward = values["spec.environment.options"].get("reward")
    kinds = _architectures(values[place])
    # Arguments may convert it.
    if reward == "reward_model" and not values["spec.rewardModel.arguments"] and _all_end(kinds, "ForCausalLM"):
        way_out = "Give a ...ForSequenceClassification, or set spec.environment.options.reward to judge."
        yield Problem(place, values[place], f"is a language model ({kinds[0]}), which gives no scores", way_out)
    if reward == "judge" and _all_end(kinds, "ForSequenceClassification"):
        way_out = "Give a language model, or set spec.environment.options.reward to reward_model."
        yield Problem(place, values[place], f"gives scores ({kinds[0]}) and cannot write a verdict", way_out)


def _all_end(names: Sequence[str], ending: str) -> bool:
    return bool(names) and all(name.endswith(ending) for name in names)


def tool_problems(values: Values) -> Iterator[Problem]:
    """Yield a problem for each tool of the run's own server that cannot work on this machine."""
    if not values["spec.agent.enableAgent"] or values["spec.agent.toolServerUrl"] is not None:
        return
    if not values.within("spec.agent.toolServer") or values["spec.agent.toolServer.allowMissingTools"]:
        return
    from turnmill.tools import registry
    from turnmill.tools.settings import with_environment

    place, given = "spec.agent.toolType", values["spec.agent.toolServer.settings"] or {}
    names = tool_names(values[place])
    if not names:
        yield Problem(place, values[place], "names no tool", "Write for example python_code.")
    for name in names:
        try:
            registry.check(name, with_environment(given))
        except SettingsError as error:
            reason, _, way_out = str(error).rstrip(".").partition(". ")
            otherwise = "Give what it needs, in spec.agent.toolServer.settings or the environment, or leave it out"
            yield Problem(place, name, f"cannot be served: {reason}", f"{way_out or otherwise}.")


def vision_problems(values: Values) -> Iterator[Problem]:
    """Yield a problem if a tool of the run's own server returns images, which the model does not take."""
    if not values["spec.agent.enableAgent"] or values["spec.agent.toolServerUrl"] is not None:
        return
    place = "spec.agent.toolType"
    names = [name for name in tool_names(values[place]) if name in TOOLS_WITH_IMAGES]
    if names and takes_images(values["spec.model.path"]) is False:
        way_out = "Give a multi-modal model as spec.model.path, such as Qwen/Qwen2.5-VL-3B-Instruct."
        yield Problem(place, names[0], "returns images, and the model accepts only text", way_out)


def takes_images(path: str | None) -> bool | None:
    """Return whether a model takes images, by its `config.json`; None if this machine does not have it.

    Without a path, the model is one of text that a warm start makes.
    """
    if path is None:
        return False
    config = _model_config(path)
    return None if config is None else any("vision" in name for name in config)


def _architectures(path: str) -> list[str]:
    """Return the names of a model's classes; none if this machine does not have it."""
    names = (_model_config(path) or {}).get("architectures") or []
    return [str(name) for name in names] if isinstance(names, list) else []


def _model_config(path: str) -> Mapping[str, object] | None:
    """Return a model's `config.json`; None if this machine does not have it."""
    folder = local_folder(path)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8")) if folder else None
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None


def format_problems(values: Values) -> Iterator[Problem]:
    """Yield problems with the stop strings and the format of observations of an agent with tools."""
    from turnmill.rollout.tool_agent.stop_tokens import parse_stop_tokens

    place = "spec.agent.actionStopTokens"
    try:
        parse_stop_tokens(values[place] or "")
    except SettingsError as error:
        yield from (replace(problem, path=place) for problem in problems_of(error))
    place = "spec.agent.mtrlSep"
    if values["spec.agent.enableMtrl"] and values[place] is not None and "{obs}" not in values[place]:
        way_out = "Add it; tokens that call a tool go into spec.agent.stopTokens."
        yield Problem(place, values[place], "has no placeholder {obs} for the observation", way_out)


def expert_problems(values: Values) -> Iterator[Problem]:
    """Yield a problem if the environment has no expert to imitate."""
    from turnmill.environments import find

    name = values["spec.environment.name"]
    try:
        has_expert = name in EXPERTS or hasattr(find(name), "expert")
    except SettingsError:
        # Reported by `environment_problems`.
        return
    if not has_expert:
        yield _nothing_to_imitate(name, EXPERTS)


def demonstration_problems(values: Values) -> Iterator[Problem]:
    """Yield a problem if the tasks have no demonstrations to imitate."""
    from turnmill.tasks.registry import find_source

    name = values["spec.environment.name"]
    try:
        has_demonstrations = name in TEACHERS or hasattr(find_source(name), "demonstrations")
    except SettingsError:
        # Reported by `task_problems`.
        return
    if not has_demonstrations:
        yield _nothing_to_imitate(name, TEACHERS)


def _nothing_to_imitate(name: str, known: tuple[str, ...]) -> Problem:
    rule = f"has no expert for a warm start to imitate in {name}"
    way_out = f"Give a folder as spec.model.path, or take an environment with an expert: {', '.join(known)}."
    return Problem("spec.model.warmStart", MISSING, rule, way_out)


def _max_turns(values: Values) -> int:
    try:
        return int(values["spec.agent.maxTurns"])
    except BrokenValueError:
        return 1
