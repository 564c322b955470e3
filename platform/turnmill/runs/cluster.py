"""Training in an existing Ray cluster, as one attempt of several that an operator counts."""

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

from turnmill.core.errors import RunFailedError, SettingsError, StaleClaimError, StoreError
from turnmill.core.process_mark import PROCESS_MARK
from turnmill.core.retries import CLUSTER_RETRIES
from turnmill.jobs import AgentTrainingJob
from turnmill.observability import logs
from turnmill.observability.progress import Progress, write_progress
from turnmill.observability.run_folder import VARIABLE, RunFolder
from turnmill.runs import fence
from turnmill.runs.attempt import Attempt
from turnmill.runs.fine_tuning import fine_tuned
from turnmill.runs.fork_server import pod
from turnmill.runs.preparation import finalize_run, prepare, process_environment, resolve_device, runtime_env
from turnmill.runs.progress_server import ProgressServer
from turnmill.runs.server_process import require_access
from turnmill.runs.watch import Report, start_silence, watch
from turnmill.training import accelerators
from turnmill.training.agent_kinds import agent_kind
from turnmill.trajectories.address import JournalAddress, with_password
from turnmill.trajectories.client import deadline_in
from turnmill.trajectories.journal import TrajectoryJournal

COMPLETE, FAILED = "complete", "failed"
# Ray's own name for the node.
HEAD_NODE = {"node:__internal_head__": 0.001}
# The operator polls every 10 s.
LAST_SCRAPE_SECONDS = 15.0
# Time for the store's pod to be restarted.
STORE_TIMEOUT_SECONDS = 60.0
WARM_STARTS = ".warm-starts"


def join(attempt: Attempt, *, on_progress: Report | None = None) -> RunFolder:
    """Train a job to its last step, from its last checkpoint if there is one.

    Raises RunFailedError with a cause, `stale_attempt` if this attempt or a later one has started before. All processes
    of the run belong to its Ray job and end with it.
    """
    report = on_progress or (lambda _: None)
    folder = RunFolder(fence.claim(attempt.run_dir, attempt.number))
    steps = attempt.job.spec.training.steps
    server = ProgressServer(folder, steps=steps, run=str(attempt.run_dir), attempt=attempt.number)
    write_progress(folder, Progress(phase="starting"))
    logs.configure(folder, process="launch", level=logging.WARNING)
    ended = FAILED
    with server.serve(attempt.metrics_port):
        try:
            prepare(folder, attempt.job, resume=attempt.number > 1)
            with finalize_run(folder):
                _train(attempt, folder, report)
                ended = COMPLETE
        finally:
            logs.close()
            server.end(ended, wait_seconds=LAST_SCRAPE_SECONDS)
    return folder


def _train(attempt: Attempt, folder: RunFolder, report: Report) -> None:
    job = attempt.job
    _require_tools(attempt)
    device = attempt.device or resolve_device(job.spec.resources.device)
    mark = uuid4().hex
    environment = process_environment(device) | {VARIABLE: str(folder.path), PROCESS_MARK: mark}
    os.environ.update(environment)
    with _ray_connection(device, environment), ExitStack() as stack:
        import ray

        from turnmill.runs.machines import machines_watched
        from turnmill.runs.task_runner import TurnTaskRunner

        retries = CLUSTER_RETRIES if job.spec.retries is None else job.spec.retries
        stack.enter_context(machines_watched(job, folder, mark, can_retry=attempt.number <= retries))
        # On the head, like this process, which forwards its metrics; the actor itself does not train.
        start = TurnTaskRunner.options(num_cpus=0, resources=HEAD_NODE).remote  # type: ignore[attr-defined]
        runner = start()
        text = _with_free_metrics_port(attempt).model_dump_json(by_alias=True)
        # On the shared volume, as other pods and other jobs of the namespace read the model.
        warm_starts = attempt.run_dir.parent / WARM_STARTS
        model = watch(runner.make_model.remote(text, str(folder.path), str(warm_starts)), job, folder, report)
        reward_model = watch(runner.make_reward_model.remote(text, str(warm_starts)), job, folder, report)
        write_progress(folder, Progress(phase="starting"))
        # Pods may still be starting, in particular of a group that scales from zero.
        accelerators.require(job, wait_seconds=job.spec.training.stall_timeout_seconds / 2)
        model = str(fine_tuned(job, Path(model), folder, device, report, start=start, cache_dir=warm_starts))
        folder.allow_silence(start_silence(job))
        addresses = _addresses(attempt, folder)
        future = runner.run.remote(text, model, reward_model, str(folder.path), device, addresses)
        watch(future, job, folder, report)
        ray.kill(runner)


def _with_free_metrics_port(attempt: Attempt) -> AgentTrainingJob:
    """Return the job with metrics on a free port; this process serves them on the port in the job."""
    metrics = attempt.job.spec.metrics.model_copy(update={"port": 0})
    return attempt.job.model_copy(update={"spec": attempt.job.spec.model_copy(update={"metrics": metrics})})


def _addresses(attempt: Attempt, folder: RunFolder) -> Mapping[str, str]:
    """Return the addresses of store and tool servers for agents that use them, and the number of the attempt."""
    kind = agent_kind(attempt.job.spec.agent)
    if attempt.job.spec.fine_tuning is not None or not kind.uses_store:
        return {}
    addresses = {"attempt": str(attempt.number)}
    if attempt.store_url is not None:
        addresses["store_url"] = attempt.store_url
        JournalAddress(attempt.store_url, folder.run_name()).write(folder.path)
        asyncio.run(_claim_run(attempt.store_url, folder.run_name(), attempt.number))
    if attempt.tool_server_url is not None and kind.needs_tool_server():
        addresses["tool_server_url"] = attempt.tool_server_url
    return addresses


def _require_tools(attempt: Attempt) -> None:
    """Raise RunFailedError if the tool servers that trajectories will call refuse the run."""
    own = getattr(attempt.job.spec.agent, "tool_server_url", None)
    team = attempt.tool_server_url if agent_kind(attempt.job.spec.agent).needs_tool_server() else None
    try:
        require_access(own or team)
    except SettingsError as error:
        raise RunFailedError(str(error), "settings") from error


async def _claim_run(store_url: str, run: str, attempt: int) -> None:
    """Claim the run in the store, which from then on rejects writes of earlier attempts."""
    journal = TrajectoryJournal.from_url(with_password(store_url), run, attempt=attempt)
    try:
        await journal.claim_run(deadline=deadline_in(STORE_TIMEOUT_SECONDS))
    except StaleClaimError as error:
        raise RunFailedError(str(error), fence.STALE) from error
    except StoreError as error:
        raise RunFailedError(str(error), "store") from error
    finally:
        await journal.close()


@contextmanager
def _ray_connection(device: str, environment: Mapping[str, str]) -> Iterator[None]:
    import ray

    workers = runtime_env(environment, pod.python() if device == "cpu" else [])
    try:
        ray.init(address="auto", runtime_env=workers, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, ray.exceptions.RaySystemError) as error:
        raise RunFailedError(
            f"There is no Ray cluster to join: {str(error).strip()} `turnmill run --ray auto` runs on the head of one.",
            "ray",
        ) from error
    try:
        yield
    finally:
        ray.shutdown()
