"""verl's clients of its inference servers: one that asks for a server once per slot, others that outlive aborts and
servers."""

import asyncio
import logging
from typing import Any

import ray
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient

from turnmill.rollout.generation import seed_at_position

UNAVAILABLE_SECONDS = 1.0

log = logging.getLogger(__name__)


class StickyClient(LLMServerClient):
    """A slot stays with one server, where its prefix is cached; the balancer is asked when it first generates.

    verl's own asks a Ray actor before and after every generation. With short turns and one agent loop process these
    calls are most of what rollout costs.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._servers: dict[str, tuple[str, Any]] = {}

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        if request_id not in self._servers:
            self._servers[request_id] = await super()._acquire_server(request_id, **extra)
        return self._servers[request_id]

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        """Nothing to give back: slots are spread over the servers for good."""


class PositionSeededClient(LLMServerClient):
    """Every request has a seed by where it begins.

    vLLM draws the noise of a request anew from its seed: what follows an abort would be sampled with that of the
    response's first tokens.
    """

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **more: Any
    ) -> Any:
        """What an engine says in one piece."""
        if (seed := sampling_params.get("seed")) is not None:
            sampling_params = {**sampling_params, "seed": seed_at_position(seed, len(prompt_ids))}
        return await super().generate(request_id, prompt_ids=prompt_ids, sampling_params=sampling_params, **more)


class ResumingClient(FullyAsyncLLMServerClient, PositionSeededClient):
    """A response that an engine was made to abort goes on from there."""


class EngineClient(ResumingClient):
    """Engines come and go: where one dies, another begins the response anew, as soon as there is one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._addresses: dict[str, str] = {}

    async def generate(self, request_id: str, **kwargs: Any) -> Any:
        """A whole response, whatever becomes of the engine that began it."""
        while True:
            try:
                return await super().generate(request_id, **kwargs)
            except ray.exceptions.ActorDiedError as error:
                address = self._addresses.get(str(error.actor_id))
                if address is None:
                    # Not an engine.
                    raise
                log.warning("Engine died", extra={"engine": address, "request": request_id})
                await self._load_balancer.remove_servers.remote([address])
            except ray.exceptions.ActorUnavailableError:
                await asyncio.sleep(UNAVAILABLE_SECONDS)

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        while True:
            try:
                address, engine = await super()._acquire_server(request_id, **extra)
            except ray.exceptions.RayTaskError as error:
                # The balancer has none: the trainer has one started, or gives the run up.
                if not isinstance(error.cause, RuntimeError):
                    raise
                await asyncio.sleep(UNAVAILABLE_SECONDS)
            else:
                self._addresses[engine._actor_id.hex()] = address
                return address, engine
