"""Summary of an episode of a GRL agent: rewards and penalties of its turns."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from turnmill.core.trajectory import EpisodeSummary


@dataclass(frozen=True, slots=True)
class ResponsePlace:
    """Position of a turn's response in the rows of its episode."""

    turn: int
    row: int
    end: int
    """Position of its last token in the row's response."""

    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GrlEpisodeSummary(EpisodeSummary):
    """Summary of an episode; its rows get their scores from all episodes of a step."""

    group: int
    """Number of its group; all episodes of a group begin in the same state."""

    tag: str
    """Name of its kind of agent."""

    turn_rewards: tuple[float, ...]
    turn_penalties: tuple[float, ...]
    """0 for a turn without a penalty."""

    response_ends: tuple[tuple[int, int], ...]
    """Row and response token at which each turn's response ends."""

    response_lengths: tuple[int, ...] = ()
    """Number of tokens of each turn's response, as it is in its row."""

    generated_lengths: tuple[int, ...] = ()
    """Number of tokens that the policy generated in each turn; `reformat_responses` may put fewer into the row."""

    chat: tuple[tuple[str, str], ...] = ()
    """Role and text of each message, for a reward function; empty without one."""

    agent_metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics that the agent reports, named `tag/metric`."""

    @property
    def responses(self) -> Iterator[ResponsePlace]:
        """Position of every turn's response."""
        for turn, ((row, end), length) in enumerate(zip(self.response_ends, self.response_lengths, strict=True)):
            yield ResponsePlace(turn, row, end, length)
