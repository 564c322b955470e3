"""The gateway's engine in a run: verl's client, with the sampling parameters of the run."""

import asyncio
from collections.abc import Mapping, Sequence

from PIL import Image
from vllm.sampling_params import StructuredOutputsParams

from turnmill.gateway.engine import Sample
from turnmill.gateway.pictures import Picture
from turnmill.rollout.generation import generate, policy_versions, sampling_seed
from turnmill.rollout.token_integrity import token_checksum
from turnmill.rollout.verl_types import LLMClient, SamplingParams

FROM_PROGRAM = ("max_tokens", "stop", "include_stop_str_in_output", "detokenize", "min_tokens")
"""Parameters that a program decides; what shapes the policy's distribution is the run's."""


class EpisodeEngine:
    """Generates the responses of one episode."""

    def __init__(
        self, client: LLMClient, sampling: SamplingParams, *, seed: int, stream: str, timeout_seconds: float
    ) -> None:
        self._client = client
        self._sampling = sampling
        self._seed = seed
        self._stream = stream
        self._timeout_seconds = timeout_seconds

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Mapping[str, object],
        *,
        trajectory: str,
        sample: int,
        pictures: Sequence[Picture] = (),
    ) -> Sample:
        """Return one response to a prompt. Raises InferenceError."""
        params = {**self._sampling, **{name: sampling[name] for name in FROM_PROGRAM if name in sampling}}
        structure = sampling.get("structured_outputs")
        if isinstance(structure, Mapping):
            params["structured_outputs"] = StructuredOutputsParams(**structure)
        media = {"image_data": await asyncio.to_thread(_images, pictures)} if pictures else {}
        output = await generate(
            self._client,
            trajectory,
            list(prompt_ids),
            params,
            # Of the prompt, not of a number: parallel branches come in any order.
            seed=sampling_seed(self._seed, self._stream, token_checksum(prompt_ids), sample),
            timeout_seconds=self._timeout_seconds,
            **media,
        )
        return Sample(tuple(output.token_ids), tuple(output.log_probs or ()), policy_versions(output))


def _images(pictures: Sequence[Picture]) -> list[Image.Image]:
    return [picture.image() for picture in pictures]
