"""The table of agent kinds: every class that it names exists."""

import pytest

from turnmill.core.lookup import import_object
from turnmill.jobs.agent import AgentSettings
from turnmill.jobs.settings import PLUGIN
from turnmill.jobs.values import sections_in, tag_of
from turnmill.training.agent_kinds import agent_kind_class
from turnmill.training.agent_kinds.verlog import TURN_TRAINERS

TYPES = [tag_of(section) for section in sections_in(AgentSettings) if tag_of(section) != PLUGIN]


@pytest.mark.parametrize("agent_type", TYPES)
def test_every_class_that_a_kind_names_can_be_imported(agent_type):
    kind = agent_kind_class(agent_type)
    paths = [*kind.trainers.values(), *TURN_TRAINERS.values(), kind.warm_start_recipe, getattr(kind, "manager", None)]

    assert all(isinstance(import_object(path), type) for path in paths if path is not None)
