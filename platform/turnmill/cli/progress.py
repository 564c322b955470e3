"""Views of a run's progress, for terminals and for logs."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from turnmill.observability.progress import Progress

# Other phases count many small items; logs show every tenth of them.
STEP_PHASE = "training"


def format_metrics(progress: Progress) -> str:
    """Return the known metrics: `success 0.41, reward 0.40, 95.2 turns/s, 1 min 20 s left`."""
    parts = [
        None if progress.success is None else f"success {progress.success:.2f}",
        None if progress.reward is None else f"reward {progress.reward:.2f}",
        None if progress.turns_per_second is None else f"{progress.turns_per_second:.1f} turns/s",
        None if progress.seconds_left is None else f"{duration(progress.seconds_left)} left",
        progress.message,
    ]
    return ", ".join(part for part in parts if part)


def duration(seconds: float) -> str:
    """Format a duration, such as `45 s`, `7 min 3 s` or `2 h 5 min`."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


class BarView:
    """A bar for each phase, for terminals."""

    def __init__(self, console: Console) -> None:
        self._bars = Bars(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[metrics]}", markup=False, style="dim"),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}
        self._phase: str | None = None

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None and self._phase is not None:
            self._finish(self._phase)
        self._bars.stop()

    def __call__(self, progress: Progress) -> None:
        """Show the progress in the bar of its phase; the first progress of another phase finishes the one before."""
        if self._phase not in (None, progress.phase):
            self._finish(str(self._phase))
        self._phase = progress.phase
        if progress.phase not in self._tasks:
            self._tasks[progress.phase] = self._bars.add_task(progress.phase, total=None, metrics="")
        # Without a total the bar pulses.
        total = progress.total or None
        task = self._tasks[progress.phase]
        self._bars.update(task, completed=progress.done, total=total, metrics=format_metrics(progress))

    def _finish(self, phase: str) -> None:
        task = self._bars.tasks[self._tasks[phase]]
        if task.total is None:
            self._bars.update(task.id, total=1, completed=1)


class LineView:
    """A line for each step and for each new phase, for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: tuple[str, int] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    def __call__(self, progress: Progress) -> None:
        """Print the progress if it has advanced enough since the last line."""
        mark = progress.done
        if progress.phase != STEP_PHASE and progress.total > 0:
            mark = 10 * progress.done // progress.total
        if self._shown == (progress.phase, mark):
            return
        self._shown = (progress.phase, mark)
        count = f" {progress.done}/{progress.total}" if progress.total else ""
        metrics = format_metrics(progress)
        line = f"{progress.phase}{count}{': ' if metrics else ''}{metrics}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def progress_view(console: Console) -> BarView | LineView:
    """Create the view for a console: bars on a terminal, else lines."""
    return BarView(console) if console.is_terminal else LineView(console)
