"""The learning curve of a run: success, reward, episode length and KL over its steps, or the loss of a fine-tuning."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from turnmill.observability import atomic_files
from turnmill.observability.proportions import Interval
from turnmill.observability.run_folder import MetricsRow, RunFolder
from turnmill.observability.summary import validations

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Point = tuple[int, float]

INK, FAINT, GRID, PAPER = "#24292f", "#6e7781", "#e6e8eb", "#fcfcfb"


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: a training metric as a line, and a validation metric as points."""

    title: str
    unit: str
    training: str
    validation: str | None
    colour: str
    share: bool = False


PANELS = (
    Panel("Success", "share of episodes", "turnmill/success", "validation/success", "#1a7f5a", share=True),
    Panel("Reward", "mean per episode", "turnmill/reward_mean", "validation/reward", "#2463a8"),
    Panel("Episode length", "turns", "turnmill/episode_length", "validation/episode_length", "#b35c00"),
    Panel("KL from the reference policy", "nats per token", "turnmill/kl_reference", None, "#7a4a9e"),
)
OF_FINE_TUNING = (
    Panel("Loss", "nats per token", "train/loss", "val/loss", "#1a7f5a"),
    Panel("Norm of the gradients", "before clipping", "train/grad_norm", None, "#2463a8"),
    Panel("Learning rate", "per step", "train/lr", None, "#b35c00"),
    Panel("Tokens learned", "per step", "train/loss_tokens", None, "#7a4a9e"),
)


def draw_curve(run_dir: Path | str, *, patience: float = 0.0) -> Path:
    """Draw `curve.png` from the metrics so far; may be called while the run goes on.

    On a full disk, wait `patience` seconds for room.
    """
    # Matplotlib takes most of a second to import, and most commands draw nothing.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    folder = RunFolder(run_dir)
    rows = list(folder.read_metrics())
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1, hspace=0.06, wspace=0.04)
    figure = Figure(figsize=(10, 6.2), dpi=120, facecolor=PAPER, layout=layout)
    figure.suptitle(_name(folder), x=0.012, ha="left", fontsize=15, fontweight="bold", color=INK)
    last_step = max((row["step"] for row in rows), default=0)
    panels = OF_FINE_TUNING if any("train/loss" in row for row in rows) else PANELS
    for axes, panel in zip(figure.subplots(2, 2).flat, panels, strict=True):
        _draw_panel(axes, panel, rows, last_step)
    picture = io.BytesIO()
    FigureCanvasAgg(figure).print_png(picture)
    atomic_files.write_bytes(folder.curve, picture.getvalue(), patience=patience)
    return folder.curve


def _name(folder: RunFolder) -> str:
    """Return the job's name, or the folder's if the job cannot be read."""
    try:
        return str(yaml.safe_load(folder.job.read_text())["metadata"]["name"])
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        return folder.path.resolve().name


def points(rows: Sequence[MetricsRow], key: str) -> list[Point]:
    """Return the steps that have a metric, with its values."""
    return [(row["step"], float(row[key])) for row in rows if row.get(key) is not None]


def intervals(rows: Sequence[MetricsRow]) -> list[tuple[int, Interval]]:
    """Return the steps of validations with a known number of episodes, with the 95 % intervals of their success."""
    return [(each.step, each.interval) for each in validations(rows) if each.interval is not None]


def moving_average(series: Sequence[Point], window: int) -> list[Point]:
    """Return the moving average: each value is the mean of the last `window` values."""
    means: list[Point] = []
    for index, (step, _) in enumerate(series):
        recent = [value for _, value in series[max(0, index + 1 - window) : index + 1]]
        means.append((step, sum(recent) / len(recent)))
    return means


def _draw_panel(axes: "Axes", panel: Panel, rows: Sequence[MetricsRow], last_step: int) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    training = points(rows, panel.training)
    validation = points(rows, panel.validation) if panel.validation else []
    _style(axes, panel)
    span = max(1, last_step)
    axes.set_xlim(-0.05 * span, 1.05 * span)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    if panel.share:
        axes.set_ylim(-0.04, 1.08)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    elif training or validation:
        _set_limits(axes, training + validation)
    if training:
        axes.plot(*zip(*training, strict=True), color=panel.colour, linewidth=1, alpha=0.3)
        window = max(1, len(training) // 12)
        label = "training" if window == 1 else f"training, mean of {window} steps"
        axes.plot(*zip(*moving_average(training, window), strict=True), color=panel.colour, linewidth=2.2, label=label)
    if validation:
        of_share = intervals(rows) if panel.share else []
        for step, (low, high) in of_share:
            axes.vlines(step, low, high, color=panel.colour, linewidth=1.6, zorder=4, clip_on=False)
        label = "validation, 95 % interval" if of_share else "validation"
        _mark_validation(axes, panel, validation, label)
    if training or validation:
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(0.0, 0.995),
            ncols=2,
            fontsize=8.5,
            frameon=False,
            labelcolor=FAINT,
            borderaxespad=0,
            borderpad=0.25,
            handlelength=1.6,
        )
    else:
        axes.text(0.5, 0.5, "nothing measured yet", transform=axes.transAxes, ha="center", color=FAINT)


def _mark_validation(axes: "Axes", panel: Panel, validation: Sequence[Point], label: str) -> None:
    axes.plot(
        *zip(*validation, strict=True),
        linestyle="",
        marker="o",
        markersize=8,
        markerfacecolor=PAPER,
        markeredgecolor=panel.colour,
        markeredgewidth=2,
        zorder=5,
        clip_on=False,
        label=label,
    )
    first, last = validation[0], validation[-1]
    # Labels are below the line, unless it starts downwards.
    _label(axes, panel, "before", first, above=last[1] < first[1])
    if len(validation) > 1:
        _label(axes, panel, "after", last, above=False)


def _label(axes: "Axes", panel: Panel, when: str, point: Point, *, above: bool) -> None:
    bottom, top = axes.get_ylim()
    height = (point[1] - bottom) / (top - bottom)
    above = (above or height < 0.15) and height < 0.88
    text = f"{point[1]:.0%}" if panel.share else f"{point[1]:.3g}"
    axes.annotate(
        f"{when}: {text}",
        point,
        xytext=(-4 if when == "before" else 4, 10 if above else -14),
        textcoords="offset points",
        ha="left" if when == "before" else "right",
        va="bottom" if above else "top",
        fontsize=9.5,
        fontweight="bold",
        color=INK,
        zorder=6,
        bbox={"boxstyle": "round,pad=0.15", "facecolor": PAPER, "edgecolor": "none", "alpha": 0.75},
    )


def _set_limits(axes: "Axes", series: Sequence[Point]) -> None:
    """Set axis limits that include zero."""
    values = [value for _, value in series]
    low, high = min(0.0, *values), max(0.0, *values)
    room = 0.1 * (high - low) or 1.0
    axes.set_ylim(low - room, high + 2 * room)


def _style(axes: "Axes", panel: Panel) -> None:
    axes.set_facecolor(PAPER)
    axes.set_title(panel.title, loc="left", fontsize=11.5, fontweight="bold", color=INK, pad=22)
    axes.set_title(panel.unit, loc="right", fontsize=9, color=FAINT, pad=22)
    axes.set_xlabel("step", fontsize=9, color=FAINT)
    axes.tick_params(colors=FAINT, labelsize=9, length=0)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(GRID)
