"""The table of agent kinds: a line for each. What they bring to a run is in `turnmill.training.agent_kinds`."""

from typing import Annotated

from pydantic import Tag

from turnmill.jobs.grl_agent import GrlAgent
from turnmill.jobs.harness_agent import HarnessAgent
from turnmill.jobs.multi_turn_agent import MultiTurnAgent
from turnmill.jobs.plugin_agent import PluginAgent
from turnmill.jobs.settings import PLUGIN, by_type
from turnmill.jobs.tool_agent import ToolAgent
from turnmill.jobs.verlog_agent import VerlogAgent

AgentSettings = Annotated[
    Annotated[VerlogAgent, Tag("verlog")]
    | Annotated[ToolAgent, Tag("tool")]
    | Annotated[MultiTurnAgent, Tag("multi_turn")]
    | Annotated[GrlAgent, Tag("grl")]
    | Annotated[HarnessAgent, Tag("harness")]
    | Annotated[PluginAgent, Tag(PLUGIN)],
    by_type(VerlogAgent),
]
"""The agent loop, selected by `type`."""
