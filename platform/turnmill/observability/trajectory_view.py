"""Text of trajectories for a terminal: a list of episodes, or one episode turn by turn."""

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from turnmill.observability.trajectory_log import EpisodeRecord, TurnRecord

OUTCOME_STYLES = {"solved": "green", "unsolved": "yellow", "failed": "red", "unfinished": "dim"}


def render_episodes(episodes: Iterable[EpisodeRecord], *, limit: int | None = None) -> RenderableType:
    """Return a table of the latest `limit` episodes, one per row, and the number of all episodes."""
    rows = [_episode_row(episode) for episode in episodes]
    shown = rows if limit is None else rows[max(0, len(rows) - limit) :]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("episode", no_wrap=True)
    table.add_column("kind")
    for heading in ("steps", "policy", "turns", "reward"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("outcome")
    table.add_column("why")
    for row in shown:
        table.add_row(*row)
    left_out = f", the last {len(shown)} shown" if len(shown) < len(rows) else ""
    noun = "episode" if len(rows) == 1 else "episodes"
    return Group(table, Text(f"{len(rows)} {noun}{left_out}", style="dim"))


def render_episode(episode: EpisodeRecord, *, tokens: bool = False) -> RenderableType:
    """Return an episode turn by turn; with `tokens`, also the response tokens with their log-probs."""
    kind = "validation" if episode.validation else "training"
    title = Text.assemble(
        (episode.name, "bold"),
        f"  {kind}, environment {episode.turns[0].environment}, {len(episode.turns)} turns, ",
        f"reward {episode.reward:.3f}, ",
        _outcome(episode),
        f" ({_why(episode)})",
    )
    return Group(title, *(part for turn in episode.turns for part in _turn_parts(turn, tokens=tokens)))


def _episode_row(episode: EpisodeRecord) -> tuple[str | Text, ...]:
    turns = episode.turns
    return (
        Text(episode.name),
        "validation" if episode.validation else "training",
        _span(turn.step for turn in turns),
        _span(turn.policy_version for turn in turns),
        str(len(turns)),
        f"{episode.reward:.3f}",
        _outcome(episode),
        Text(_why(episode)),
    )


def _turn_parts(turn: TurnRecord, *, tokens: bool) -> Iterator[RenderableType]:
    yield Rule(f"turn {turn.turn} · step {turn.step} · policy {turn.policy_version}", align="left", style="dim")
    yield Panel(Text(turn.prompt), title="prompt", title_align="left", border_style="dim")
    yield Panel(Text(turn.response), title="response", title_align="left", border_style="cyan")
    if tokens:
        yield Text(f"{len(turn.prompt_ids)} prompt tokens, {len(turn.response_ids)} response tokens", style="dim")
        yield _token_table(turn)
    validity = ("", "") if turn.valid else ("  not valid", "red")
    yield Text.assemble("action ", (turn.action, "bold"), validity, f"   reward {turn.reward:+.3f}")
    if turn.observation:
        yield Panel(Text(turn.observation), title="observation", title_align="left", border_style="dim")
    if turn.ends_episode:
        reason = turn.failed_cause or turn.stop_reason or "completed"
        yield Text(f"The episode ends: {reason}", style="red" if turn.failed_cause else "green")


def _token_table(turn: TurnRecord) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("position", "token", "log-prob"):
        table.add_column(heading, justify="right")
    for position, token in enumerate(turn.response_ids):
        # A response the policy was given, not asked for, has no log-probs.
        log_prob = f"{turn.log_probs[position]:.4f}" if position < len(turn.log_probs) else "-"
        table.add_row(str(position), str(token), log_prob)
    return table


def _outcome(episode: EpisodeRecord) -> Text:
    return Text(episode.outcome, style=OUTCOME_STYLES[episode.outcome])


def _why(episode: EpisodeRecord) -> str:
    last = episode.turns[-1]
    return last.failed_cause or last.stop_reason or ("completed" if last.done else "going on")


def _span(numbers: Iterable[int]) -> str:
    values = sorted(set(numbers))
    return str(values[0]) if len(values) == 1 else f"{values[0]}–{values[-1]}"
