"""`turnmill doctor`: whether jobs can train on this machine."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from turnmill import __version__
from turnmill.cli.job_file import load

if TYPE_CHECKING:
    from turnmill.doctor.results import Result
    from turnmill.jobs import AgentTrainingJob

_STYLES = {"ok": "green", "failed": "bold red", "skipped": "dim"}


def doctor(
    job_file: Annotated[
        Path | None,
        typer.Option(
            "--job", metavar="JOB.yaml", help="Also check that this job fits the machine.", show_default=False
        ),
    ] = None,
    storage: Annotated[Path, typer.Option(help="Folder of runs; in a pod, the shared one.", readable=False)] = Path(
        "runs"
    ),
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out the checks that train, which take minutes.")
    ] = False,
    nodes: Annotated[
        int,
        typer.Option(min=1, help="Check the links between so many machines instead: start it on each of them."),
    ] = 1,
    node_rank: Annotated[
        int, typer.Option(min=0, envvar="JOB_COMPLETION_INDEX", help="Which of the machines this is, from 0.")
    ] = 0,
    master: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where machine 0 waits for the others, with --nodes.")
    ] = "127.0.0.1:29500",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for a report of a problem.")] = False,
) -> None:
    """Check whether jobs can train on this machine or in this pod."""
    from turnmill.doctor.examination import examine
    from turnmill.doctor.results import Machine, Peers

    if node_rank >= nodes and nodes > 1:
        raise typer.BadParameter(f"{node_rank} is none of {nodes} machines: count from 0.", param_hint="--node-rank")
    peers = Peers(nodes, node_rank, master) if nodes > 1 else None
    job = None if job_file is None else load(job_file, None)
    device = _device(job)
    with Console(stderr=True).status("") as status:
        results = examine(
            Machine(device, storage.absolute(), job, peers=peers),
            trains=not quick,
            on_start=lambda name: status.update(f"{name} ..."),
        )
    failed = any(result.status == "failed" for result in results)
    if as_json:
        report = {"turnmill": __version__, "device": device, "ok": not failed, "checks": list(map(asdict, results))}
        typer.echo(json.dumps(report, indent=2))
    else:
        Console().print(table(results))
    raise typer.Exit(int(failed))


def _device(job: "AgentTrainingJob | None") -> Literal["cpu", "cuda"]:
    from turnmill.runs.preparation import resolve_device

    wanted = "auto" if job is None else job.spec.resources.device
    # CUDA that is asked for and missing is a result of a check.
    return "cuda" if wanted == "cuda" or (wanted == "auto" and resolve_device("auto") == "cuda") else "cpu"


def table(results: "Sequence[Result]") -> Table:
    """Return the results as a table, with what to do after each failure."""
    shown = Table(box=None, pad_edge=False)
    for column in ("check", "result", "found", "seconds"):
        shown.add_column(column, justify="right" if column == "seconds" else "left", overflow="fold")
    for each in results:
        found = f"{each.found}. {each.way_out}" if each.way_out else each.found
        shown.add_row(each.check, f"[{_STYLES[each.status]}]{each.status}[/]", _plain(found), f"{each.seconds:.1f}")
    return shown


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)
