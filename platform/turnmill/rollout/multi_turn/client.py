"""verl's client of the inference engines, as loops of one trajectory see it."""

import asyncio
import time
import zlib
from typing import Any

from verl.workers.rollout.replica import TokenOutput
from vllm.sampling_params import RequestOutputKind

from turnmill.core.errors import EpisodeError, InferenceError
from turnmill.jobs import AgentTrainingJob
from turnmill.observability.run_folder import RunFolder
from turnmill.rollout.multi_turn.conversation import CURRENT, Conversation
from turnmill.rollout.turn_loop import sampling_seed

NUM_SLOTS = 256


class ConversationClient:
    """Samples under a seed of its own for every turn, gives up in time, and keeps what was said."""

    def __init__(self, client: Any, job: AgentTrainingJob, folder: RunFolder) -> None:
        self._client = client
        self._job = job
        self._folder = folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **media: Any
    ) -> TokenOutput:
        """The next response of the trajectory. Raises EpisodeError where it has failed."""
        conversation = CURRENT.get()
        conversation.require_sound()
        if (output := conversation.said_before(prompt_ids)) is not None:
            return output
        asked_at = time.time()
        with conversation.waits.on("generation"):
            output = await self._ask(conversation, prompt_ids, sampling_params, media)
        await conversation.say(prompt_ids, output, asked_at=asked_at)
        self._folder.beat()
        return output

    async def _ask(
        self, conversation: Conversation, prompt_ids: list[int], sampling: dict[str, Any], media: dict[str, Any]
    ) -> TokenOutput:
        turn = len(conversation.generations)
        parameters = {
            **sampling,
            "seed": sampling_seed(self._job.spec.training.seed, conversation.sampling_stream, 0, turn),
            "output_kind": RequestOutputKind.FINAL_ONLY,
            # Text is needed where it is looked into while it grows, and nowhere else.
            "detokenize": bool(sampling.get("stop")),
        }
        # A trajectory stays with one server, where its prefix is cached.
        slot = f"slot-{zlib.crc32(conversation.name.encode()) % NUM_SLOTS}"
        try:
            async with asyncio.timeout(self._job.spec.training.stall_timeout_seconds):
                output = await self._client.generate(slot, prompt_ids=prompt_ids, sampling_params=parameters, **media)
        except TimeoutError as error:
            raise self._failed(conversation, "the policy did not answer in time") from error
        except EpisodeError:
            raise
        except Exception as error:
            # No loop of a user's may take a dead engine for an answer.
            conversation.broken = error
            raise
        if not output.token_ids:
            raise self._failed(conversation, f"the policy answered with no token ({output.stop_reason})")
        return output

    def _failed(self, conversation: Conversation, what: str) -> InferenceError:
        error = InferenceError(f"{conversation.name}: {what}")
        conversation.fail(error)
        return error
