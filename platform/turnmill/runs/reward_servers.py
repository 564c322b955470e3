"""Servers of `spec.rewardModel` in a Ray cluster: one actor each, with GPUs of its own."""

import asyncio
import json
import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import ray
from ray.actor import ActorHandle

from turnmill.core.errors import RunFailedError
from turnmill.core.ports import free_port
from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.resources import RESOURCE_SHARE, ray_resource
from turnmill.observability import atomic_files
from turnmill.observability.run_folder import RunFolder
from turnmill.runs.model_server import ModelServer
from turnmill.tasks.reward_model import NAME
from turnmill.training.accelerators import CPUS_PER_REWARD_GPU
from turnmill.training.verl.shared_engines import ended_with

STOP_SECONDS, CHECK_SECONDS = 30.0, 0.5
BEAT_SECONDS = 5.0
SERVER_DIED = "A server of spec.rewardModel has died and could not be started again"

log = logging.getLogger(__name__)


@ray.remote
class RewardServer:
    """vLLM's server as a process beside this actor; one that ends is started again on its port."""

    def __init__(self, model: str, arguments: Sequence[str], run_dir: str, device: str, key: str, number: int) -> None:
        host = ray.util.get_node_ip_address()
        self._server = ModelServer(
            Path(model), NAME, host=host, port=free_port(), key=key, device=device, arguments=arguments,
            log_file=RunFolder(run_dir).logs / f"reward-model-{number}.log",
        )  # fmt: skip
        # verl tells Ray not to set it.
        self._variables = {} if device == "cpu" else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, ray.get_gpu_ids()))}

    async def start(self) -> str:
        """Start the server and return its address once it answers. Raises RunFailedError."""
        self._server.start(self._variables)
        await asyncio.to_thread(self._server.wait_until_ready)
        return self._server.url

    async def live(self) -> None:
        """Never return: the call fails when this actor ends, as it does if the server cannot be started again."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            if self._server.has_ended:
                log.warning("The server of the reward model has ended and is started again")
                try:
                    await self.start()
                except RunFailedError:
                    log.exception("The server of the reward model did not start again")
                    os._exit(1)

    async def stop(self) -> None:
        """End the server."""
        await asyncio.to_thread(self._server.stop)


@contextmanager
def reward_servers(
    job: AgentTrainingJob, model: Path, folder: RunFolder, device: str, workers: Sequence[ActorHandle]
) -> Iterator[None]:
    """Serve the job's reward model while the context lasts; the trainer's workers end if a server does for good.

    Raises RunFailedError if a server does not start, or has died. Begin once the trainer has its GPUs, as one of them
    could be taken otherwise.
    """
    key = secrets.token_hex(16)
    actors = _actors(job, model, folder, device, key)
    try:
        starts = waiting = [actor.start.remote() for actor in actors]
        while waiting:
            folder.beat()
            _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=BEAT_SECONDS)
        _announce(_addresses(starts), key, folder)
        with ended_with(actors, workers, message=SERVER_DIED):
            yield
    finally:
        folder.reward_model.unlink(missing_ok=True)
        ray.wait([actor.stop.remote() for actor in actors], num_returns=len(actors), timeout=STOP_SECONDS)
        for actor in actors:
            ray.kill(actor)


def _actors(job: AgentTrainingJob, model: Path, folder: RunFolder, device: str, key: str) -> list[ActorHandle]:
    settings = job.spec.reward_model
    assert settings is not None
    parallel = ("--tensor-parallel-size", str(settings.tensor_parallel)) if settings.tensor_parallel > 1 else ()
    accelerator = settings.accelerator
    placed = RewardServer.options(  # type: ignore[attr-defined]
        num_gpus=settings.tensor_parallel,
        num_cpus=CPUS_PER_REWARD_GPU * settings.tensor_parallel,
        resources={} if accelerator is None else {ray_resource(accelerator): RESOURCE_SHARE},
    )
    arguments = (*parallel, *settings.arguments)
    return [
        placed.remote(str(model), arguments, str(folder.path), device, key, number)
        for number in range(settings.replicas)
    ]


def _addresses(starts: Sequence["ray.ObjectRef[str]"]) -> list[str]:
    try:
        urls: list[str] = ray.get(starts)
    except ray.exceptions.RayTaskError as error:
        raise RunFailedError(f"spec.rewardModel: {error.cause}", "reward_model") from error
    except ray.exceptions.RayError as error:
        raise RunFailedError(f"spec.rewardModel: a server of it could not start: {error}", "reward_model") from error
    return urls


def _announce(urls: Sequence[str], key: str, folder: RunFolder) -> None:
    with atomic_files.replacing(folder.reward_model) as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(json.dumps({"urls": urls, "key": key}).encode())
