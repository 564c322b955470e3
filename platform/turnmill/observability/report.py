"""Report of a run for the terminal: results, time per phase, stop reasons of episodes, and what looks wrong."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from turnmill.observability import summary as sums
from turnmill.observability.curve import draw_curve
from turnmill.observability.proportions import Interval
from turnmill.observability.run_folder import MetricsRow, RunFolder
from turnmill.observability.summary import PhaseTimes, summarise
from turnmill.observability.suspects import MORE, find_suspects

__all__ = ["draw_curve", "report_text", "summarise"]


def report_text(run_dir: Path | str) -> RenderableType:
    """Return the report of a run so far, ready to print."""
    folder = RunFolder(run_dir)
    rows = list(folder.read_metrics())
    # A finished run keeps the versions it ran with; the installed ones may have changed since.
    summary = summarise(run_dir)
    summary["versions"] = folder.read_summary().get("versions", summary["versions"])
    parts: list[RenderableType] = [_summary_table(summary, rows)]
    times = sums.phase_times(rows)
    if times.steps > 0:
        parts += [Text(), _phase_table(times)]
    parts += [Text(), _episode_table(rows)]
    if times.steps > 0:
        parts += [Text(), *_suspects(rows)]
    if folder.curve.exists():
        parts += [Text(), Text(f"curve  {folder.curve}")]
    return Group(*parts)


def _summary_table(summary: Mapping[str, Any], rows: list[MetricsRow]) -> Table:
    table = _table("Run", show_header=False)
    table.add_column()
    table.add_column()
    table.add_row("success before", _success(summary, "first"))
    table.add_row("success after", _success(summary, "final"))
    table.add_row("steps", str(summary["steps"]))
    table.add_row("turns, episodes", f"{summary['turns']}, {summary['episodes']}")
    table.add_row("time", _duration(summary["seconds_total"]))
    table.add_row("time to the first step", _duration(summary["seconds_to_first_step"]))
    if summary["attempts"] > 1:
        table.add_row("attempts", str(summary["attempts"]))
    step_seconds = sums.total(rows, f"{sums.SECONDS}step")
    if step_seconds > 0:
        table.add_row("turns per second of a step", f"{summary['turns'] / step_seconds:.1f}")
    known = (f"{library} {version}" for library, version in summary["versions"].items() if version)
    table.add_row("versions", ", ".join(known))
    return table


def _phase_table(times: PhaseTimes) -> Table:
    table = _table("Where the time of a step goes")
    table.add_column("phase")
    table.add_column("counts as")
    table.add_column("seconds", justify="right")
    table.add_column("share", justify="right")
    kinds = (("generating", sums.GENERATING), ("learning", sums.LEARNING), ("neither", sums.NEITHER))
    for kind, phases in kinds:
        for phase in phases:
            if phase in times.by_phase:
                _add_time(table, phase, kind, times.by_phase[phase], times.steps)
    _add_time(table, "(no phase)", "neither", times.unnamed, times.steps)
    table.add_section()
    table.add_row("neither generating nor learning", "", "", _percent(times.overhead_share, decimals=1), style="bold")
    for phase in sums.OUTSIDE:
        if phase in times.by_phase:
            table.add_row(phase, "outside the step", f"{times.by_phase[phase]:.1f}", "")
    return table


def _episode_table(rows: list[MetricsRow]) -> Table:
    table = _table("How episodes ended")
    table.add_column("stop reason")
    table.add_column("episodes", justify="right")
    table.add_column("share", justify="right")
    reasons = sums.totals(rows, sums.EPISODES)
    total = sum(reasons.values())
    for reason, count in reasons.most_common():
        table.add_row(reason, f"{count:.0f}", _percent(count / total if total else None, decimals=1))
    for cause, count in sums.totals(rows, sums.FAILURES).most_common():
        table.add_row(f"  failed: {cause}", f"{count:.0f}", "", style="red")
    return table


def _suspects(rows: list[MetricsRow]) -> list[RenderableType]:
    """Return the section that names what may have kept the policy from learning."""
    found = find_suspects(rows)
    parts: list[RenderableType] = [Text("What to look at", style="bold")]
    if not found:
        return [*parts, Text("nothing unusual")]
    for suspect in found:
        parts.append(Text.assemble((suspect.name, "yellow"), f": {suspect.finding}"))
        parts.append(Text(f"  Try: {suspect.advice}"))
    return [*parts, Text(f"See {MORE}.", style="dim")]


def _add_time(table: Table, phase: str, kind: str, seconds: float, whole: float) -> None:
    table.add_row(phase, kind, f"{seconds:.1f}", _percent(seconds / whole, decimals=1))


def _table(title: str, *, show_header: bool = True) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        header_style="dim",
        show_header=show_header,
    )


def _success(summary: Mapping[str, Any], when: str) -> str:
    """Format a success: `41% (95 % interval 35% to 47%, 256 episodes)`."""
    share = _percent(summary[f"success_{when}"])
    interval, episodes = summary[f"success_{when}_interval"], summary[f"success_{when}_episodes"]
    return f"{share} (95 % interval {_range(interval)}, {episodes} episodes)" if interval else share


def _range(interval: Interval) -> str:
    low, high = interval
    return f"{_percent(low)} to {_percent(high)}"


def _percent(share: float | None, *, decimals: int = 0) -> str:
    return "-" if share is None else f"{share:.{decimals}%}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
