"""The table of agent kinds, and what is true of each of them."""

from typing import Any

import pytest

from support.jobs import grl_job, job, tool_job
from turnmill.core.lookup import import_object
from turnmill.jobs import parse_job
from turnmill.jobs.agent import AgentSettings
from turnmill.jobs.settings import PLUGIN
from turnmill.jobs.values import sections_in, tag_of
from turnmill.training.agent_kinds import agent_kind, agent_kind_class
from turnmill.training.agent_kinds.verlog import TURN_TRAINERS

LOG_PROBS = "actor_rollout_ref.rollout.calculate_log_probs"
TYPES = [tag_of(section) for section in sections_in(AgentSettings) if tag_of(section) != PLUGIN]


@pytest.mark.parametrize("agent_type", TYPES)
def test_every_class_that_a_kind_names_can_be_imported(agent_type):
    kind = agent_kind_class(agent_type)
    paths = [*kind.trainers.values(), *TURN_TRAINERS.values(), kind.warm_start_recipe, getattr(kind, "manager", None)]

    assert all(isinstance(import_object(path), type) for path in paths if path is not None)


@pytest.mark.parametrize("data", [job(), tool_job(), grl_job()], ids=lambda data: data["spec"]["agent"].get("type"))
def test_engines_give_log_probs_of_what_they_generate(data: dict[str, Any]):
    valid = parse_job(data)

    assert agent_kind(valid.spec.agent).verl_settings(valid)[LOG_PROBS] is True
