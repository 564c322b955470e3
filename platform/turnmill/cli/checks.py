"""Checks of a job beyond its settings: agents, environments, tasks, warm starts, settings of verl."""

from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from turnmill.core.errors import SettingsError
from turnmill.jobs.fine_tuning_rules import fine_tunes
from turnmill.jobs.options import read_options
from turnmill.jobs.problems import Problem, problems_of
from turnmill.jobs.settings import PLUGIN, kind_of
from turnmill.jobs.values import Values
from turnmill.jobs.verl_settings import VerlSettings, setting
from turnmill.runs.preparation import resolve_device
from turnmill.training.agent_kinds import agent_kind_class
from turnmill.training.plugins import PluginError

TRACES = "actor_rollout_ref.rollout.trace.backend"


def plugins(values: Values) -> Iterator[Problem]:
    """Yield problems with the user's own classes and their options."""
    for section, class_of in (("agent", agent_kind_class), ("algorithm", _algorithm_class)):
        name = values[f"spec.{section}.type"]
        if kind_of(name) != PLUGIN:
            continue
        try:
            model, options = class_of(name).options_model, values[f"spec.{section}.options"]
            read_options(model, options, f"{section}.options", owner=name)
        except SettingsError as error:
            yield from problems_of(error)


def _algorithm_class(algorithm_type: str) -> type[Any]:
    # Algorithms import torch, which takes seconds.
    from turnmill.training.algorithms import algorithm_class

    return algorithm_class(algorithm_type)


def agent(values: Values) -> Iterator[Problem]:
    """Yield problems with the agent and with its environment or tasks."""
    if fine_tunes(values):
        return
    with suppress(PluginError):
        yield from agent_kind_class(values["spec.agent.type"]).problems(values)


def fine_tuning(values: Values) -> Iterator[Problem]:
    """Yield a problem if nothing can be learned from the data of a fine-tuning."""
    place = "spec.algorithm" if fine_tunes(values) else "spec.model.fineTune"
    if values[place] is None or not values.within(place):
        return
    # transformers takes seconds to import.
    from turnmill.training.sft.checks import problems

    yield from problems(values, place)


def warm_start(values: Values) -> Iterator[Problem]:
    """Yield a problem if a warm start has nothing to imitate."""
    if values["spec.model.warmStart"] is None:
        return
    with suppress(PluginError):
        yield from agent_kind_class(values["spec.agent.type"]).warm_start_problems(values)


def verl_settings(values: Values) -> Iterator[Problem]:
    """Yield a problem for each name in `spec.verl` that is no setting of verl, or that a run cannot follow."""
    settings = values["spec.verl"]
    if not settings:
        return
    if fine_tunes(values):
        yield from _engine_settings(settings)
        return
    # verl's own configuration takes seconds to import.
    from turnmill.training.verl.config import refused_verl_settings

    for each in refused_verl_settings(settings, values["spec.resources.train.engine"], _device(values)):
        yield Problem(f"spec.verl.{each.name}", each.value, each.rule, each.way_out)
    yield from _traces(settings)


def _device(values: Values) -> str | None:
    """Return the device of a run on this machine; None if it is not here."""
    with suppress(SettingsError):
        return resolve_device(values["spec.resources.device"])
    return None


def _traces(settings: VerlSettings) -> Iterator[Problem]:
    """Yield a problem if the package that records traces of rollouts is missing."""
    package = setting(settings, TRACES, None)
    if isinstance(package, str) and find_spec(package) is None:
        way_out = f"Install it (pip install {package}), or look at trajectories with turnmill trajectories."
        yield Problem(f"spec.verl.{TRACES}", package, "needs a package that is missing", way_out)


def _engine_settings(settings: VerlSettings) -> Iterator[Problem]:
    from turnmill.training.sft.config import SECTIONS, unknown_engine_settings

    for name, closest in unknown_engine_settings(settings):
        way_out = f"Did you mean {closest}?" if closest else f"There are {', '.join(SECTIONS)}."
        yield Problem(f"spec.verl.{name}", settings[name], "is no setting of verl's engine for fine-tuning", way_out)


ALL = (plugins, agent, warm_start, fine_tuning, verl_settings)
