"""Polling of the progress that running runs serve on their metrics port."""

import asyncio
import errno
import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

import aiohttp
from pydantic import ValidationError

from turnmill.jobs.status import JobProgress
from turnmill.jobs.team import run_dir
from turnmill.jobs.values import fields_by_alias
from turnmill_operator.cache import Cache
from turnmill_operator.ray_job_status import Stage, stage_of
from turnmill_operator.resources import METRICS_PORT
from turnmill_operator.views import ObjectKey, RayJobView, RunProgress
from turnmill_operator.work_queue import WorkQueue

POLL_SECONDS, TIMEOUT_SECONDS, MAX_CONCURRENT_REQUESTS = 10.0, 5.0, 32
MAX_RESPONSE_BYTES = 64 * 1024
SIGNIFICANT_DIGITS = 4

log = logging.getLogger(__name__)


async def poll_runs(
    session: aiohttp.ClientSession, cache: Cache, queue: WorkQueue, now: datetime, *, silent: bool
) -> None:
    """Fetch the progress of runs once, and queue the jobs whose progress has changed.

    Runs that have not answered the last time are polled apart, with `silent`: each may take the whole time limit.
    """
    limit = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)

    async def poll(ray_job: RayJobView) -> None:
        key = ObjectKey(ray_job.namespace, ray_job.job)
        async with limit:
            before = cache.progress(key, ray_job.attempt)
            url = f"http://{ray_job.head_ip}:{METRICS_PORT}/progress"
            run = run_dir(ray_job.namespace, ray_job.job, ray_job.owner_uid)
            after = await _fetch_progress(session, url, run, ray_job.attempt, before=before, now=now)
        if cache.put_progress(key, ray_job.attempt, after):
            queue.add(key)

    def is_due(ray_job: RayJobView) -> bool:
        if stage_of(ray_job) is not Stage.RUNNING or not ray_job.head_ip or ray_job.deleting:
            return False
        last = cache.progress(ObjectKey(ray_job.namespace, ray_job.job), ray_job.attempt)
        return (last.unreachable_since is not None) == silent

    async with asyncio.TaskGroup() as group:
        for ray_job in filter(is_due, cache.ray_jobs()):
            group.create_task(poll(ray_job))


async def _fetch_progress(
    session: aiohttp.ClientSession, url: str, run: str, attempt: int, *, before: RunProgress, now: datetime
) -> RunProgress:
    """Return the progress of an attempt of the run with this folder, or since when it does not answer."""
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)) as response:
            response.raise_for_status()
            return RunProgress(values=parse_progress(json.loads(await _read_body(response)), run, attempt))
    except aiohttp.ClientConnectorError as error:
        if error.errno == errno.ECONNREFUSED:
            # The machine answers, but the run does not listen.
            return RunProgress(
                before.values, refused_since=before.refused_since or now, unreachable_since=before.unreachable_since
            )
        return _unreachable(before, now)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, ValidationError, RecursionError) as error:
        log.debug("No progress", extra={"url": url, "error": str(error)})
        return _unreachable(before, now)


async def _read_body(response: aiohttp.ClientResponse) -> bytes:
    """Read the whole body; ValueError if it is longer than any progress. Pods of runs are not trusted."""
    body = b""
    while part := await response.content.read(MAX_RESPONSE_BYTES + 1 - len(body)):
        body += part
        if len(body) > MAX_RESPONSE_BYTES:
            raise ValueError(f"The response has more than {MAX_RESPONSE_BYTES} bytes.")
    return body


def _unreachable(before: RunProgress, now: datetime) -> RunProgress:
    return replace(before, refused_since=None, unreachable_since=before.unreachable_since or now)


def parse_progress(body: object, run: str, attempt: int) -> JobProgress:
    """Parse the progress of a run as the status shows it: known fields only, floats to four significant digits.

    Raises ValueError if another attempt answers: the address of a pod that is gone may belong to another by now.
    """
    if not isinstance(body, Mapping):
        raise ValueError("The progress of a run must be a JSON object.")
    # A trainer of 0.1 does not say whose it is.
    found = (body.get("run", run), body.get("attempt", attempt))
    if found != (run, attempt):
        raise ValueError(f"The progress is of attempt {found[1]} of {found[0]}.")
    known = fields_by_alias(JobProgress)
    values = {
        name: float(f"{value:.{SIGNIFICANT_DIGITS}g}") if isinstance(value, float) else value
        for name, value in body.items()
        if name in known and value is not None
    }
    return JobProgress.model_validate(values, by_alias=True, by_name=False)
