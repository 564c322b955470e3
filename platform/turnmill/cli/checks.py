"""What only the floors above the job file can check: agents and what they act on, warm starts, verl's settings."""

from collections.abc import Iterator

from turnmill.jobs.problems import Problem
from turnmill.jobs.values import Values
from turnmill.training.agent_kinds import agent_kind_class


def agent(values: Values) -> Iterator[Problem]:
    """Yield problems with the agent and with its environment or tasks."""
    yield from agent_kind_class(values["spec.agent.type"]).problems(values)


def warm_start(values: Values) -> Iterator[Problem]:
    """Yield a problem if a warm start has nothing to imitate."""
    if values["spec.model.warmStart"] is not None:
        yield from agent_kind_class(values["spec.agent.type"]).warm_start_problems(values)


def verl_settings(values: Values) -> Iterator[Problem]:
    """Yield a problem for every name in `spec.verl` that verl has no setting for, or that turnmill does not read."""
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


ALL = (agent, warm_start, verl_settings)
