"""Client of the run's reward model: `spec.rewardModel`, which its servers announce in a file of the run folder."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from turnmill.core.errors import RewardError

if TYPE_CHECKING:
    from openai import AsyncOpenAI

NAME = "reward-model"
"""Name of the model in the API of its servers."""

RESTART_SECONDS, PAUSE_SECONDS = 900.0, 2.0
"""Time for which servers may be away, while one is started again, and time between two tries."""

SCORE_SECONDS, MAX_SCORES = 300.0, 64
"""Time for a score, and how many are asked for at a time."""

Result = TypeVar("Result")
Message = Mapping[str, str]


class RewardModel:
    """Asks the servers in turn; one that cannot be reached is passed over, and all together are waited for."""

    def __init__(self, file: Path) -> None:
        """Take the file in which the servers are announced; it is read when the model is asked."""
        self._file = file
        self._clients: list[AsyncOpenAI] = []
        self._announced = b""
        self._next = 0
        self._places = asyncio.Semaphore(MAX_SCORES)

    async def score(self, messages: Sequence[Message]) -> float:
        """Return the score that a model with one output gives a conversation: its logit, as verl takes it.

        Raises RewardError if the model gives none.
        """
        from openai import APIError

        body = {"model": NAME, "messages": messages, "use_activation": False}

        async def classify(client: "AsyncOpenAI") -> object:
            # Beside OpenAI's routes, not below them.
            root = client.with_options(base_url=str(client.base_url).removesuffix("v1/"), timeout=SCORE_SECONDS)
            return await root.post("/classify", cast_to=object, body=body)

        try:
            async with self._places:
                answer = await self.ask(classify)
        except APIError as error:
            raise RewardError(f"spec.rewardModel gave no score: {type(error).__name__}: {error}") from error
        try:
            (classified,) = answer["data"]  # type: ignore[index]
            return float(classified["probs"][-1])
        except (TypeError, KeyError, IndexError, ValueError) as error:
            raise RewardError(f"the reward model gave no score: {str(answer)[:200]!r}") from error

    async def ask(self, call: Callable[["AsyncOpenAI"], Awaitable[Result]]) -> Result:
        """Return what a call of a server's client returns; repeat it elsewhere if the server cannot be reached.

        Raises RewardError if that lasts too long, and whatever else the call raises.
        """
        from openai import APIConnectionError, APITimeoutError

        deadline = time.monotonic() + RESTART_SECONDS
        while True:
            self._read()
            for _ in range(len(self._clients)):
                client = self._clients[self._next % len(self._clients)]
                self._next += 1
                try:
                    return await call(client)
                except APITimeoutError:
                    raise
                except APIConnectionError as error:
                    failure = error
            if time.monotonic() > deadline:
                raise RewardError(
                    f"no server of spec.rewardModel could be reached for {RESTART_SECONDS:g} s: {failure}"
                ) from failure
            await asyncio.sleep(PAUSE_SECONDS)

    def _read(self) -> None:
        """Make a client for each server, anew if they have moved."""
        from openai import AsyncOpenAI

        try:
            announced = self._file.read_bytes()
        except FileNotFoundError:
            raise RewardError(
                f"no server of spec.rewardModel is announced in {self._file}: only a training run starts them"
            ) from None
        if announced == self._announced:
            return
        servers = json.loads(announced)
        self._clients = [AsyncOpenAI(base_url=f"{url}/v1", api_key=servers["key"]) for url in servers["urls"]]
        self._announced = announced
