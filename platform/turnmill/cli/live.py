"""Trajectories in flight, read from the trajectory store during a run."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from turnmill.core.errors import SettingsError
from turnmill.core.trajectory import Turn, complete_turns
from turnmill.trajectories.address import JournalAddress, with_password
from turnmill.trajectories.client import deadline_in
from turnmill.trajectories.journal import JournaledTrajectory, TrajectoryJournal

STORE_SECONDS = 5.0


def read_live(run_dir: Path) -> list[JournaledTrajectory]:
    """Read the run's trajectories in flight. Raises StoreUnavailableError if the store does not answer."""
    address = JournalAddress.read(run_dir)
    if address is None:
        raise SettingsError(f"{run_dir} keeps no journal: its agent uses no trajectory store. Leave --live out.")
    return asyncio.run(_read(address))


async def _read(address: JournalAddress) -> list[JournaledTrajectory]:
    journal = TrajectoryJournal.from_url(with_password(address.url), address.run)
    try:
        return await journal.live(deadline=deadline_in(STORE_SECONDS))
    finally:
        await journal.close()


def render_trajectories(
    trajectories: Sequence[JournaledTrajectory], *, limit: int, now: float | None = None
) -> RenderableType:
    """Render a table with the `limit` trajectories that were updated last, the latest at the end."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("trajectory", no_wrap=True)
    for heading in ("attempt", "turns", "tokens", "policy", "seconds ago"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("last response")
    shown = sorted(trajectories, key=lambda trajectory: trajectory.updated_at)[-limit:]
    for trajectory in shown:
        table.add_row(*_row(trajectory, time.time() if now is None else now))
    left_out = f", the last {len(shown)} shown" if len(shown) < len(trajectories) else ""
    noun = "trajectory" if len(trajectories) == 1 else "trajectories"
    return Group(table, Text(f"{len(trajectories)} {noun} in flight{left_out}", style="dim"))


def render_trajectory(trajectory: JournaledTrajectory) -> RenderableType:
    """Render one trajectory, turn by turn."""
    turns = complete_turns(trajectory.turns)
    title = Text.assemble((trajectory.name, "bold"), f"  in flight, attempt {trajectory.attempt}, {len(turns)} turns")
    return Group(title, *(part for index, turn in enumerate(turns) for part in _turn_parts(index, turn)))


def _row(trajectory: JournaledTrajectory, now: float) -> tuple[str | Text, ...]:
    turns = complete_turns(trajectory.turns)
    last = turns[-1] if turns else None
    return (
        Text(trajectory.name),
        str(trajectory.attempt),
        str(len(turns)),
        str(sum(len(turn.response_ids) for turn in turns)),
        str(last.policy_version) if last else "",
        f"{max(0, now - trajectory.updated_at):.0f}",
        Text(" ".join(last.response_text.split())[-60:] if last else ""),
    )


def _turn_parts(index: int, turn: Turn) -> Iterator[RenderableType]:
    yield Rule(f"turn {index} · policy {turn.policy_version}", align="left", style="dim")
    if turn.prompt_text:
        yield Panel(Text(turn.prompt_text), title="prompt", title_align="left", border_style="dim")
    yield Panel(Text(turn.response_text), title="response", title_align="left", border_style="cyan")
    if turn.observation:
        yield Panel(Text(turn.observation), title="observation", title_align="left", border_style="dim")
