"""`turnmill convert`: job files from the settings of other systems."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnmill.cli.console import errors, say

if TYPE_CHECKING:
    from turnmill.conversion.converted_job import Conversion

app = typer.Typer(no_args_is_help=True, help="Print a job file made from the settings of another system.")

ANY_WORDS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Words of the other system's command line that look like options are read as its own."""

Words = Annotated[
    list[str], typer.Argument(metavar="SETTINGS...", help="Its command line; words without = are skipped.")
]
Steps = Annotated[
    int | None, typer.Option(min=1, help="Steps of the training, if the settings do not tell.", show_default=False)
]
Output = Annotated[Path | None, typer.Option(help="Write the job there, not to stdout.", show_default=False)]


@app.command(context_settings=ANY_WORDS)
def verl(settings: Words, steps: Steps = None, output: Output = None) -> None:
    """Print a job file made from a verl command line; on stderr, say what has no place in it."""
    from turnmill.conversion.verl import convert

    _print(convert(settings, steps=steps), output)


@app.command("verl-tool", context_settings=ANY_WORDS)
def verl_tool(
    settings: Words,
    steps: Steps = None,
    output: Output = None,
    tool_type: Annotated[
        str | None,
        typer.Option(help="Tools of the server that the run starts in place of the script's.", show_default=False),
    ] = None,
) -> None:
    """Print a job file made from a verl-tool command line; on stderr, say what has no place in it."""
    from turnmill.conversion.verl_tool import convert

    _print(convert(settings, steps=steps, tool_type=tool_type), output)


@app.command(context_settings=ANY_WORDS)
def verlog(settings: Words, steps: Steps = None, output: Output = None) -> None:
    """Print a job file made from a Verlog command line; on stderr, say what has no place in it."""
    from turnmill.conversion.verlog import convert

    _print(convert(settings, steps=steps), output)


@app.command(context_settings=ANY_WORDS)
def grl(settings: Words, steps: Steps = None, output: Output = None) -> None:
    """Print a job file made from a GRL command line or from its YAML."""
    from turnmill.conversion.grl import convert

    _print(convert(settings, steps=steps), output)


def _print(found: "Conversion", output: Path | None) -> None:
    import yaml

    from turnmill.jobs.validation import validate
    from turnmill.observability import atomic_files

    _, problems = validate(found.data)
    text = yaml.safe_dump(found.data, sort_keys=False, allow_unicode=True, width=110)
    if output is None:
        typer.echo(text, nl=False)
    else:
        atomic_files.write_text(output, text)
    for line in (*found.notes, *map(str, problems)):
        say(line, to=errors())
