"""What `turnmill check --explain` shows: which process runs where, and what each GPU holds."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.table import Table

from turnmill.core.errors import SettingsError
from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.hub import fetch_command, local_folder

if TYPE_CHECKING:
    from turnmill.sizing.defaults import Completed
    from turnmill.sizing.placement import Place


def explain(job: AgentTrainingJob, gpu_memory: float | None, to: Console) -> None:
    """Print tables of the processes and of the memory of GPUs. Raises SettingsError for a job that cannot fit.

    `gpu_memory` is in GiB; without it the accelerators of the job tell.
    """
    from turnmill.sizing.defaults import complete
    from turnmill.sizing.memory import require_fit
    from turnmill.sizing.model import Model
    from turnmill.sizing.placement import placement
    from turnmill.training.verl.config import build_verl_config

    path = job.spec.model.path
    if path is None:
        raise SettingsError(
            "--explain: spec.model.warmStart makes a tiny model, which fits every machine. Set spec.model.path."
        )
    if job.spec.resources.device == "cpu":
        raise SettingsError("--explain: spec.resources.device is cpu, and estimates are for GPUs. Set it to cuda.")
    folder = local_folder(path)
    if folder is None:
        raise SettingsError(
            f"--explain: {path} is not on this machine, and only a run downloads it. "
            f"Fetch it with `{fetch_command(path)}`."
        )
    completed = complete(job, Model(folder), folder, gpu_memory=gpu_memory)
    config = build_verl_config(completed.job, model=folder, run_dir=Path("run"), device="cuda")
    for each in _tables(placement(completed.job, config), completed):
        to.print()
        to.print(each, soft_wrap=isinstance(each, str))
    require_fit(completed.estimate, completed.sizes)


def _tables(places: "Iterable[Place]", completed: "Completed") -> Iterator[RenderableType]:
    from turnmill.sizing.defaults import SPARE

    found = completed.estimate
    where = _table("machines", "on each GPU", "also there")
    for place in places:
        where.add_row(place.machines, ", ".join(place.per_gpu), ", ".join(place.others))
    yield where
    if completed.choices:
        chosen = _table("left out by the job", "chosen", "because")
        for choice in completed.choices:
            chosen.add_row(choice.field, str(choice.value), choice.because)
        yield chosen
    for phase in found.phases:
        table = _table(f"each GPU of {phase.field}: {phase.name}", "GiB")
        for part in filter(lambda part: part.gib, phase.parts):
            table.add_row(part.name, f"{part.gib:.1f}")
        size = completed.sizes[phase.field]
        table.add_row("sum" if size is None else f"sum, of {size:.1f}", f"{phase.gib:.1f}")
        yield table
        if size is not None and SPARE * size < phase.gib <= size:
            yield f"This leaves little memory free. If it runs out: {phase.way_out}"
    if found.host_gib:
        yield f"Each machine that trains holds {found.host_gib:.1f} GiB beside its GPUs."
    if found.cache is None:
        yield "The GPUs' memory is not known, so neither is the engine's cache: give it with --gpu-memory."
    else:
        yield (
            f"The cache of an engine holds {found.cache.tokens:,} tokens: {found.cache.rows:,} rows of "
            f"{found.cache.longest_row:,} tokens, the longest, at once."
        )


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column == "GiB" else "left")
    return table
