"""`turnmill fetch-models`: the models of a team, from where they are published onto its storage."""

from pathlib import Path
from typing import Annotated

import typer

from turnmill.cli.console import errors, say
from turnmill.cli.exit_codes import DONE, FAILED, REFUSED
from turnmill.core.errors import SettingsError, TurnmillError


def fetch_models(
    file: Annotated[Path, typer.Argument(metavar="MODELS.yaml", help="The models, and where each comes from.")],
    # Whether it can be used is found and told by what uses it: typer would refuse it as a mistake in the command.
    folder: Annotated[Path, typer.Option(help="Folder of all models.", readable=False)] = Path("/models"),
    verify: Annotated[bool, typer.Option(help="Compare the checksums of models that are there already.")] = False,
) -> None:
    """Fetch models, each whole and with its checksums, or not at all."""
    from turnmill.model_sources.fetch import fetch
    from turnmill.model_sources.settings import read_sources

    code = DONE
    for source in read_sources(file):
        try:
            done = fetch(source, folder, verify=verify)
        except TurnmillError as error:
            # The others do not wait for it.
            say(str(error), to=errors())
            code = max(code, REFUSED if isinstance(error, SettingsError) else FAILED)
            continue
        state = ("verified" if verify else "is there") if done.was_there else "fetched"
        say(f"{done.name}: {state}, {done.num_files} files, {done.num_bytes / 1e9:.3g} GB")
    if code != DONE:
        raise typer.Exit(code)
