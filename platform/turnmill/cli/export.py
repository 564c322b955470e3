"""`turnmill export`: the policy of a run as a model that other programs load."""

import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from turnmill.cli.console import errors, say
from turnmill.cli.exit_codes import INTERRUPTED
from turnmill.cli.extras import needs_extra
from turnmill.cli.interruption import interruptible


class LoraForm(StrEnum):
    """What becomes of LoRA adapters."""

    MERGED = "merged"
    ADAPTER = "adapter"


class Dtype(StrEnum):
    """Type of the exported weights."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


def export(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The run's folder.", show_default=False)],
    output: Annotated[Path, typer.Option(help="Folder of the model: one that does not exist, or is empty.")],
    step: Annotated[
        int | None, typer.Option(min=1, help="Checkpoint of this step; if omitted, the newest.", show_default=False)
    ] = None,
    lora: Annotated[
        LoraForm, typer.Option(help="With spec.model.lora: adapters merged into the model, or alone.")
    ] = LoraForm.MERGED,
    dtype: Annotated[
        Dtype | None,
        typer.Option(help="Type of the weights; if omitted, that of the model before training.", show_default=False),
    ] = None,
    push: Annotated[
        str | None,
        typer.Option(metavar="OWNER/NAME", help="Also upload it to the Hugging Face hub.", show_default=False),
    ] = None,
) -> None:
    """Write the policy of a checkpoint as a Hugging Face folder, with tokenizer and model card."""
    from turnmill.cli.run_dirs import existing_run, job_in

    job = job_in(existing_run(run_dir))
    with needs_extra("training", "`turnmill export`"):
        from turnmill.training.export import export as export_model
        from turnmill.training.export import publish, require_hub
    if push is not None:
        require_hub(push)
    try:
        with interruptible():
            done = export_model(
                job, run_dir, output, step=step, lora=lora.value, dtype=None if dtype is None else dtype.value
            )
    except KeyboardInterrupt:
        say(f"Interrupted: {output} was not made.", to=errors())
        raise typer.Exit(INTERRUPTED) from None
    what = "Adapter" if done.is_adapter else "Model"
    say(f"{what} of step {done.step} in {done.dtype}: {shlex.quote(str(output))}")
    if push is not None:
        say(f"Uploaded to {publish(output, push)}")
