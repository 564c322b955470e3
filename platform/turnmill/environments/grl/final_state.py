"""GRL's summary of an episode."""

from collections.abc import Mapping
from typing import TypedDict


class TurnState(TypedDict):
    """A turn in GRL's summary of an episode."""

    state: str
    actions_left: int
    actions: list[str]
    reward: float
    info: Mapping[str, object]
    llm_response: str
    llm_raw_response: str


class RolloutState(TypedDict):
    """GRL's summary of an episode."""

    env_id: int
    group_id: int
    tag: str
    history: list[TurnState]
    penalty: float
    metrics: dict[str, float]
