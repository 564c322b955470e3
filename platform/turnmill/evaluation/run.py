"""One evaluation: a run folder, the services of its agent, the model, and its episodes."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import openai
import yaml
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast

from turnmill.core.errors import RunFailedError, SettingsError, first_line
from turnmill.evaluation.attempts import play_all
from turnmill.evaluation.clients import ChatClient, TokenClient
from turnmill.evaluation.endpoint import Endpoint, find_model
from turnmill.evaluation.message_tokens import MessageTokenizer
from turnmill.evaluation.model_server import serve_model
from turnmill.evaluation.players import player_class
from turnmill.evaluation.setting import Policy, Setting
from turnmill.jobs import AgentTrainingJob
from turnmill.observability import logs
from turnmill.observability.evaluation import Attempt, Results, write_results
from turnmill.observability.progress import Progress, write_progress
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.summary import summarise, versions
from turnmill.runs import processes
from turnmill.runs.preparation import ensure_model, resolve_device
from turnmill.runs.services import services
from turnmill.runs.watch import Report
from turnmill.training.vocabulary import save_vocabulary


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be evaluated, and how."""

    job: AgentTrainingJob
    endpoint: Endpoint | None
    """Where the model is served; None for a folder, which is served here."""

    tokenizer: Path | None = None
    """Folder of the tokenizer of the model at the endpoint; None for one that takes messages."""

    samples: int = 1
    concurrency: int | None = None
    """Episodes at once; None for the job's `environment.count`."""

    device: str = "auto"
    server_arguments: Sequence[str] = ()
    """Arguments of vLLM's server."""


def evaluate(request: Request, run_dir: Path, *, on_progress: Report) -> Results:
    """Play every episode, and write the results to the run folder.

    Raises RunFailedError if no episode could be played, SettingsError for settings that cannot work, and lets
    KeyboardInterrupt through. In every case, the processes of the evaluation are ended.
    """
    job, folder = request.job, RunFolder(run_dir.absolute())
    device = resolve_device(request.device) if request.endpoint is None else "cpu"
    with processes.owned(folder.path) as owner:
        logs.configure(folder, process="evaluation", level=logging.WARNING)
        try:
            folder.create()
            folder.write_job(yaml.safe_dump(job.model_dump(by_alias=True, mode="json"), sort_keys=False))
            with (
                _served(request, folder, device, on_progress) as (endpoint, tokenizer),
                services(job, folder, owner) as running,
            ):
                running.wait()
                started = time.monotonic()
                tools = running.addresses.get("tool_server_url")
                attempts = asyncio.run(_play(request, folder, endpoint, tokenizer, tools, on_progress))
            results = _results(request, attempts, seconds=time.monotonic() - started)
            _record(results, folder)
        finally:
            logs.close()
    return results


@contextmanager
def _served(request: Request, folder: RunFolder, device: str, report: Report) -> Iterator[tuple[Endpoint, Path | None]]:
    """Yield the endpoint, and the folder of its model's tokenizer, if it takes tokens."""
    if request.endpoint is not None:
        yield request.endpoint, request.tokenizer
        return
    model = ensure_model(request.job, folder, report)
    report(Progress(phase="starting vLLM"))
    with serve_model(model, folder, device, request.server_arguments) as endpoint:
        yield endpoint, model


async def _play(
    request: Request, folder: RunFolder, endpoint: Endpoint, tokenizer_folder: Path | None, tool_server_url: str | None,
    report: Report,
) -> list[Attempt]:  # fmt: skip
    job = request.job
    timeout = job.spec.training.timeouts.request_seconds
    async with endpoint.client(timeout) as client:
        model = await find_model(client, endpoint)
        policy = _policy(client, endpoint, model, tokenizer_folder)
        save_vocabulary(policy.tokenizer, folder)
        player = player_class(job)(Setting(job, folder.path, policy, tool_server_url))
        try:
            return await play_all(
                player,
                episodes=job.spec.training.validation.episodes,
                samples=request.samples,
                concurrency=request.concurrency or _concurrency(job),
                on_done=_progress(folder, report),
            )
        finally:
            await player.close()


def _policy(client: openai.AsyncOpenAI, endpoint: Endpoint, model: str, tokenizer_folder: Path | None) -> Policy:
    if tokenizer_folder is None:
        messages = MessageTokenizer.create()
        return Policy(ChatClient(client, endpoint, model, messages), messages, None, None)
    tokenizer, model_type = _load_tokenizer(tokenizer_folder)
    return Policy(TokenClient(client, endpoint, model), tokenizer, model_type, tokenizer_folder)


def _concurrency(job: AgentTrainingJob) -> int:
    limit = job.spec.max_concurrency
    return job.spec.environment.count if limit is None else min(job.spec.environment.count, limit)


def _load_tokenizer(folder: Path) -> tuple[PreTrainedTokenizerFast, str | None]:
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception as error:
        # transformers raises errors of many classes.
        raise SettingsError(
            f"{folder} has no tokenizer that can be loaded ({first_line(error)}). Give a folder as "
            "save_pretrained of transformers leaves it."
        ) from error
    try:
        return tokenizer, AutoConfig.from_pretrained(folder).model_type
    except Exception:
        # A tokenizer's folder need not have the model's configuration.
        return tokenizer, None


def _progress(folder: RunFolder, report: Report) -> Callable[[int, int], None]:
    def tell(done: int, total: int) -> None:
        folder.beat()
        progress = Progress(phase="evaluation", done=done, total=total)
        write_progress(folder, progress)
        report(progress)

    return tell


def _results(request: Request, attempts: Sequence[Attempt], *, seconds: float) -> Results:
    spec = request.job.spec
    validation, player = spec.training.validation, player_class(request.job)
    return Results(
        model=spec.model.path or "",
        environment=player.environment(spec),
        episodes_of=player.episodes_of(spec) | {"agent": spec.agent.type, "seed": validation.seed},
        agent=spec.agent.type,
        episodes=validation.episodes,
        samples=request.samples,
        seed=validation.seed,
        temperature=validation.temperature,
        seconds=seconds,
        versions=versions(),
        attempts=tuple(attempts),
    )


def _record(results: Results, folder: RunFolder) -> None:
    """Write the results, and what other commands read of a run's validation."""
    played = [attempt for attempt in results.attempts if attempt.cause is None]
    if not played:
        causes = ", ".join(results.failures())
        raise RunFailedError(
            f"No episode could be played: all failed ({causes}). `turnmill trajectories {folder.path} --failed` shows "
            "them.",
            next(iter(results.failures()), "evaluation"),
        )
    write_results(results, folder)
    folder.append_metrics(
        0,
        {
            "validation/success": sum(attempt.success for attempt in played) / len(played),
            "validation/episodes": len(played),
            "validation/reward": sum(attempt.reward for attempt in played) / len(played),
            "validation/episode_length": sum(attempt.num_turns for attempt in played) / len(played),
            "validation/failures": len(results.attempts) - len(played),
        },
    )
    folder.mark("ended")
    folder.write_summary(summarise(folder.path))
