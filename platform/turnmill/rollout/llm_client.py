"""Clients of verl's inference servers; with the last, responses survive the failure of a server."""

import asyncio
import logging
from collections.abc import Sequence
from contextvars import ContextVar

import ray

from turnmill.rollout.actor_deaths import DEATHS, is_death
from turnmill.rollout.generation import seed_at_position
from turnmill.rollout.verl_classes import FullyAsyncLLMServerClient, LLMServerClient, TokenOutput
from turnmill.rollout.verl_types import ActorHandle, SamplingParams

RETRY_SECONDS = 1.0

SERVING: ContextVar[str | None] = ContextVar("serving", default=None)
"""Address of the engine that has the request of a task; None while the load balancer is asked for one."""

log = logging.getLogger(__name__)


class SingleEngineClient(LLMServerClient):
    """Sends every request to the only engine, which cannot be replaced.

    verl's own client asks the load balancer, a Ray actor, before and after every generation. With short turns and one
    agent loop process these calls are most of the cost of rollout.
    """

    _server: tuple[str, ActorHandle] | None = None

    async def _acquire_server(self, request_id: str, **extra: object) -> tuple[str, ActorHandle]:
        if self._server is None:
            self._server = await super()._acquire_server(request_id, **extra)
        return self._server

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        """Do nothing: there is no load to balance."""


class PositionSeededClient(LLMServerClient):
    """Derives the seed of a request from the position at which its response starts.

    vLLM restarts a request's random numbers from its seed, so the continuation of an aborted response would be sampled
    with the random numbers of its first tokens.
    """

    async def generate(
        self, request_id: str, *, prompt_ids: Sequence[int], sampling_params: SamplingParams, **media: object
    ) -> TokenOutput:
        """Return the tokens that one engine generates until it finishes or the request is aborted."""
        if isinstance(seed := sampling_params.get("seed"), int):
            sampling_params = {**sampling_params, "seed": seed_at_position(seed, len(prompt_ids))}
        return await super().generate(request_id, prompt_ids=prompt_ids, sampling_params=sampling_params, **media)


class ResumingClient(FullyAsyncLLMServerClient, PositionSeededClient):
    """Continues responses that were aborted."""


class EngineClient(ResumingClient):
    """Generates a response again on another engine, when one is available, if its engine dies."""

    async def generate(
        self, request_id: str, *, prompt_ids: Sequence[int], sampling_params: SamplingParams, **media: object
    ) -> TokenOutput:
        """Return a whole response, even if the engine that started it dies."""
        while True:
            try:
                return await super().generate(
                    request_id, prompt_ids=prompt_ids, sampling_params=sampling_params, **media
                )
            except (*DEATHS, ray.exceptions.RayTaskError) as error:
                if not is_death(error) or (address := SERVING.get()) is None:
                    raise
                log.warning("Engine died", extra={"engine": address, "request": request_id})
                await self._load_balancer.remove_servers.remote([address])
            except ray.exceptions.ActorUnavailableError:
                await asyncio.sleep(RETRY_SECONDS)

    async def _acquire_server(self, request_id: str, **extra: object) -> tuple[str, ActorHandle]:
        SERVING.set(None)
        while True:
            try:
                address, engine = await super()._acquire_server(request_id, **extra)
            except ray.exceptions.RayTaskError as error:
                # The load balancer has no engine: the trainer starts one, or ends the run.
                if not isinstance(error.cause, RuntimeError):
                    raise
                await asyncio.sleep(RETRY_SECONDS)
            else:
                SERVING.set(address)
                return address, engine
