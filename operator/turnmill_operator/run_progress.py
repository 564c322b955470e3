"""Asks running runs how far they are; a run answers on the port of its metrics."""

import asyncio
import errno
import json
import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import aiohttp
from pydantic import ValidationError

from turnmill.jobs.status import JobProgress
from turnmill.jobs.values import fields_by_alias
from turnmill_operator.cache import Cache
from turnmill_operator.outcome import Stage, stage_of
from turnmill_operator.resources import METRICS_PORT
from turnmill_operator.views import Key, Progress, RayJobView
from turnmill_operator.work_queue import WorkQueue

EVERY_SECONDS, TIMEOUT_SECONDS, AT_ONCE = 10.0, 5.0, 32
MAX_ANSWER_BYTES = 64 * 1024
DIGITS = 4

log = logging.getLogger(__name__)


async def ask_all(session: aiohttp.ClientSession, cache: Cache, queue: WorkQueue, now: datetime) -> None:
    """Ask every run once; jobs of which there is news go into the queue."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def ask(ray_job: RayJobView) -> None:
        key = Key(ray_job.namespace, ray_job.job)
        async with limit:
            before = cache.progress(key, ray_job.attempt)
            after = await _ask(session, f"http://{ray_job.head_ip}:{METRICS_PORT}/progress", before, now)
        if cache.put_progress(key, ray_job.attempt, after):
            queue.add(key)

    async with asyncio.TaskGroup() as group:
        for ray_job in cache.ray_jobs():
            if stage_of(ray_job) is Stage.RUNNING and ray_job.head_ip and not ray_job.deleting:
                group.create_task(ask(ray_job))


async def _ask(session: aiohttp.ClientSession, url: str, before: Progress, now: datetime) -> Progress:
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)) as response:
            response.raise_for_status()
            return Progress(values=parse_progress(json.loads(await _read(response))))
    except aiohttp.ClientConnectorError as error:
        if error.errno == errno.ECONNREFUSED:
            # Its machine is there and the run is not.
            return Progress(before.values, refused_since=before.refused_since or now, silent_since=before.silent_since)
        return _silent(before, now)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, ValidationError, RecursionError) as error:
        log.debug("No progress", extra={"url": url, "error": str(error)})
        return _silent(before, now)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The whole answer; ValueError where it is longer than progress is. Pods of runs are not trusted."""
    answer = b""
    while part := await response.content.read(MAX_ANSWER_BYTES + 1 - len(answer)):
        answer += part
        if len(answer) > MAX_ANSWER_BYTES:
            raise ValueError(f"The answer has more than {MAX_ANSWER_BYTES} bytes.")
    return answer


def _silent(before: Progress, now: datetime) -> Progress:
    return Progress(before.values, refused_since=None, silent_since=before.silent_since or now)


def parse_progress(answer: Any) -> JobProgress:
    """What a run tells, as the status shows it: known fields alone, numbers as long as people read them."""
    if not isinstance(answer, Mapping):
        raise ValueError("The progress of a run is a JSON object.")
    known = fields_by_alias(JobProgress)
    told = {
        name: float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
        for name, value in answer.items()
        if name in known and value is not None
    }
    return JobProgress.model_validate(told, by_alias=True, by_name=False)
