"""verl's client with an engine that aborts responses."""

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from verl.workers.rollout.replica import TokenOutput

from turnmill.rollout.llm_client import EngineClient, ResumingClient


class Engine:
    """An engine that returns one piece of a response per request; all but the last are aborted."""

    def __init__(self, pieces: Iterable[list[int]]) -> None:
        self.pieces = list(pieces)
        self.requests: list[tuple[list[int], dict[str, Any]]] = []
        self.generate = SimpleNamespace(remote=self._generate)

    async def _generate(self, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any) -> TokenOutput:
        self.requests.append((prompt_ids, sampling_params))
        ids = self.pieces.pop(0)
        return TokenOutput(
            token_ids=ids, log_probs=[-1.0] * len(ids), stop_reason="aborted" if self.pieces else "completed"
        )


@pytest.fixture(params=[ResumingClient, EngineClient])
def generate(request, monkeypatch):
    """Generate a response that the engine returns in these pieces; return its tokens and the engine's requests."""

    async def skip_sleep(_: float) -> None:
        pass

    async def generate_pieces(
        *pieces: list[int], **sampling: Any
    ) -> tuple[list[int], list[tuple[list[int], dict[str, Any]]]]:
        engine = Engine(pieces)

        class Client(request.param):  # type: ignore[misc]
            async def _acquire_server(self, request_id: str, **_: Any) -> tuple[str, Engine]:
                return "engine", engine

            def _release_server(self, *_: Any, **__: Any) -> None:
                pass

        rollout = SimpleNamespace(name="vllm", full_determinism=False)
        client = Client(SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout)))
        output = await client.generate("slot-0", prompt_ids=[1, 2], sampling_params={"max_tokens": 9, **sampling})
        return output.token_ids, engine.requests

    monkeypatch.setattr(asyncio, "sleep", skip_sleep)
    return generate_pieces


async def test_the_continuation_of_an_aborted_response_has_its_own_seed(generate):
    token_ids, requests = await generate([3, 4], [5], [6], seed=7)

    assert token_ids == [3, 4, 5, 6]
    assert [prompt for prompt, _ in requests] == [[1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 5]]
    assert len({sampling["seed"] for _, sampling in requests}) == 3


async def test_a_restarted_response_has_the_same_seed(generate):
    (_, first), (_, again), (_, aborted) = [await generate(*pieces, seed=7) for pieces in ([[3]], [[3]], [[], [3]])]

    assert first == again
    assert [sampling["seed"] for _, sampling in aborted] == [first[0][1]["seed"]] * 2


async def test_a_request_without_a_seed_gets_none(generate):
    _, ((_, sampling),) = await generate([3])

    assert "seed" not in sampling
