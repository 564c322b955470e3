"""verl's client of its inference servers, asking for a server once per slot instead of twice per turn."""

from typing import Any

from verl.workers.rollout.llm_server import LLMServerClient


class SlotClient(LLMServerClient):
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
