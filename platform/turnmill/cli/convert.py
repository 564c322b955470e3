"""`turnmill convert`: job files from the settings of other systems."""

from typing import Annotated

import typer

from turnmill.cli.console import errors, say

app = typer.Typer(no_args_is_help=True, help="Print a job file made from the settings of another system.")


@app.callback()
def _systems() -> None:
    pass


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def verl(
    settings: Annotated[
        list[str],
        typer.Argument(metavar="SETTINGS...", help="verl's command line; words without = are skipped."),
    ],
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of the training, if the settings do not tell.", show_default=False)
    ] = None,
) -> None:
    """Print a job file made from a verl command line; on stderr, say what has no place in it."""
    import yaml

    from turnmill.jobs.validation import validate
    from turnmill.training.verl.conversion import convert

    found = convert(settings, steps=steps)
    _, problems = validate(found.data)
    typer.echo(yaml.safe_dump(found.data, sort_keys=False, allow_unicode=True, width=110), nl=False)
    for line in (*found.notes, *map(str, problems)):
        say(line, to=errors())
