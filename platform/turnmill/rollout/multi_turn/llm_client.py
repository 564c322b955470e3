"""Client of the inference engines for verl's agent loops."""

import time
from collections.abc import Sequence

from turnmill.core.errors import EpisodeError, InferenceError
from turnmill.core.pace import Pace
from turnmill.jobs import AgentTrainingJob
from turnmill.observability.run_folder import RunFolder
from turnmill.rollout.generation import RESPONSES, generate, sampling_seed
from turnmill.rollout.multi_turn.episode import CURRENT_EPISODE, MultiTurnEpisode
from turnmill.rollout.verl_classes import TokenOutput
from turnmill.rollout.verl_types import LLMClient, SamplingParams


class EpisodeClient:
    """Generates with a seed for every turn and a timeout, and records each response in its episode."""

    def __init__(self, client: LLMClient, job: AgentTrainingJob, folder: RunFolder) -> None:
        self._client = client
        self._job = job
        self._folder = folder
        self._responses = Pace(RESPONSES)

    def __getattr__(self, name: str) -> object:
        return getattr(self._client, name)

    async def generate(
        self, request_id: str, *, prompt_ids: Sequence[int], sampling_params: SamplingParams, **media: object
    ) -> TokenOutput:
        """Generate the next response of the current episode. Raises EpisodeError if the episode has failed."""
        episode = CURRENT_EPISODE.get()
        episode.raise_if_failed()
        if (output := episode.replay_response(prompt_ids)) is not None:
            return output
        asked_at = time.time()
        with episode.timing.measure("generation"):
            output = await self._generate(episode, prompt_ids, sampling_params, media)
        await self._responses.wait()
        await episode.record_response(prompt_ids, output, asked_at=asked_at)
        self._folder.beat()
        return output

    async def _generate(
        self,
        episode: MultiTurnEpisode,
        prompt_ids: Sequence[int],
        sampling_params: SamplingParams,
        media: dict[str, object],
    ) -> TokenOutput:
        training = self._job.spec.training
        try:
            return await generate(
                self._client,
                episode.name,
                prompt_ids,
                # vLLM needs the text only to find stop strings.
                {**sampling_params, "detokenize": bool(sampling_params.get("stop"))},
                seed=sampling_seed(training.seed, episode.sampling_stream, 0, len(episode.generations)),
                timeout_seconds=training.timeouts.request_seconds,
                **media,
            )
        except InferenceError as error:
            episode.fail(error)
            raise
        except EpisodeError:
            raise
        except Exception as error:
            # A user's loop must not treat the failure of an engine as a response.
            episode.run_error = error
            raise
