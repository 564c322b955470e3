"""Arguments and options of the commands for jobs in a cluster, with kubectl's names."""

from typing import Annotated, Literal

import typer

KIND_NAME = "agenttrainingjob.turnmill.dev"
"""Kind of a job as kubectl prints it, and takes it."""

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's name.", show_default=False)]
JobArguments = Annotated[list[str], typer.Argument(metavar="JOB...", help="Names of jobs.", show_default=False)]
Context = Annotated[
    str | None, typer.Option("--context", help="Context of the kubeconfig; by default the current one.")
]
NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace; by default that of the context.")
]
Output = Literal["json", "yaml", "wide", "name"]
OutputOption = Annotated[Output | None, typer.Option("--output", "-o", help="Format in place of the usual table.")]
