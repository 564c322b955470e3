"""`turnmill evaluate`: how often a model succeeds in an environment, without a training."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from turnmill.cli.console import errors, say
from turnmill.cli.exit_codes import FAILED, INTERRUPTED
from turnmill.cli.extras import needs_extra
from turnmill.cli.interruption import interruptible
from turnmill.cli.job_file import Overrides
from turnmill.core.errors import RunFailedError, SettingsError


def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|URL",
            help="Folder of a model, its name on the hub, or the base URL of an API like OpenAI's.",
            show_default=False,
        ),
    ],
    environment: Annotated[
        str | None, typer.Option(help="Environment or tasks, with the defaults of a job.", show_default=False)
    ] = None,
    job_file: Annotated[
        Path | None,
        typer.Option("--job", help="Job file with the agent and the environment, in its place.", show_default=False),
    ] = None,
    overrides: Overrides = None,
    episodes: Annotated[
        int | None,
        typer.Option(min=1, help="Episodes, or tasks; if omitted, 128, or one per group of GRL's.", show_default=False),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, max=10_000, help="Attempts at each episode, for pass@k.")] = 1,
    temperature: Annotated[float, typer.Option(min=0, help="Temperature of sampling.")] = 1.0,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Seed of the episodes, as training.validation.seed; if omitted, 0, or agent.validationSeed of GRL's.",
            show_default=False,
        ),
    ] = None,
    model_name: Annotated[
        str | None, typer.Option(help="The model's name at the URL; if omitted, the first.", show_default=False)
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Folder of the tokenizer of the model at the URL, if vLLM serves it.", show_default=False),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Episodes at once; if omitted, environment.count.", show_default=False)
    ] = None,
    vllm: Annotated[str, typer.Option(metavar="ARGUMENTS", help="Further arguments of vLLM's server.")] = "",
    output: Annotated[
        Path | None, typer.Option(help="Folder of the evaluation; if omitted, as for a run.", show_default=False)
    ] = None,
) -> None:
    """Play episodes with any model, and estimate pass@k with 95 % intervals."""
    from turnmill.cli.progress import progress_view
    from turnmill.cli.run_dirs import choose_run_dir, is_run

    with needs_extra("training", "`turnmill evaluate`"):
        from turnmill.evaluation import Request
        from turnmill.evaluation import evaluate as play
        from turnmill.evaluation.endpoint import Endpoint
        from turnmill.evaluation.job import evaluation_job
    if is_run(Path(model)):
        way_out = f"`turnmill export {shlex.quote(model)} --output FOLDER`, and give that folder."
        raise SettingsError(f"{model} is the folder of a run, whose checkpoints are no models yet. Run {way_out}")
    is_url = model.startswith(("http://", "https://"))
    job = evaluation_job(
        (model_name or model) if is_url else model,
        job_file=job_file,
        environment=environment,
        overrides=overrides or (),
        episodes=episodes,
        seed=seed,
        temperature=temperature,
        is_local=not is_url,
        takes_tokens=not is_url or tokenizer is not None,
    )
    request = Request(
        job,
        Endpoint(model, model_name) if is_url else None,
        tokenizer=tokenizer,
        samples=samples,
        concurrency=concurrency,
        server_arguments=shlex.split(vllm),
    )
    run_dir = choose_run_dir(job, output, resume=False)
    console = Console()
    say(f"Evaluating {model} on {job.spec.environment_name} in {run_dir}", to=console)
    try:
        with interruptible(), progress_view(console) as view:
            results = play(request, run_dir, on_progress=view)
    except RunFailedError as error:
        say(f"The evaluation failed ({error.cause}): {error}", to=errors())
        raise typer.Exit(FAILED) from error
    except KeyboardInterrupt:
        say(f"Interrupted. What was played is in {run_dir}.", to=errors())
        raise typer.Exit(INTERRUPTED) from None
    for k, estimate in results.estimates().items():
        low, high = estimate.interval
        say(f"pass@{k}  {estimate.value:.1%} (95 % interval {low:.1%} to {high:.1%})", to=console)
    folder = shlex.quote(str(run_dir))
    say(f"Everything is in {folder}: evaluation.md, evaluation.json\n  turnmill view {folder}", to=console)
