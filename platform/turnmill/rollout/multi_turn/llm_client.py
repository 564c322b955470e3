"""verl's client of the inference engines, as loops of one trajectory see it."""

import time
from typing import Any

from verl.workers.rollout.replica import TokenOutput

from turnmill.core.errors import EpisodeError, InferenceError
from turnmill.jobs import AgentTrainingJob
from turnmill.observability.run_folder import RunFolder
from turnmill.rollout.generation import generate, routing_key, sampling_seed
from turnmill.rollout.multi_turn.episode import CURRENT, Conversation


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
        with conversation.timing.measure("generation"):
            output = await self._ask(conversation, prompt_ids, sampling_params, media)
        await conversation.say(prompt_ids, output, asked_at=asked_at)
        self._folder.beat()
        return output

    async def _ask(
        self, conversation: Conversation, prompt_ids: list[int], sampling: dict[str, Any], media: dict[str, Any]
    ) -> TokenOutput:
        training = self._job.spec.training
        try:
            return await generate(
                self._client,
                routing_key(conversation.name),
                prompt_ids,
                # Text is needed where it is looked into while it grows, and nowhere else.
                {**sampling, "detokenize": bool(sampling.get("stop"))},
                seed=sampling_seed(training.seed, conversation.sampling_stream, 0, len(conversation.generations)),
                timeout_seconds=training.stall_timeout_seconds,
                requester=conversation.name,
                **media,
            )
        except InferenceError as error:
            conversation.fail(error)
            raise
        except EpisodeError:
            raise
        except Exception as error:
            # No loop of a user's may take a dead engine for an answer.
            conversation.broken = error
            raise
