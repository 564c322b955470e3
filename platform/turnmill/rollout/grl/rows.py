"""The rows of an episode as verl's agent loops return them."""

from turnmill.rollout.grl.episode import GrlEpisode
from turnmill.rollout.rows import EpisodeRow, episode_rows


def verl_rows(episode: GrlEpisode) -> list[EpisodeRow]:
    """Return the rows of an episode; the trainer gives them scores, which follow from all episodes of a step."""
    return episode_rows(episode.conversation.rows, episode.summary())
