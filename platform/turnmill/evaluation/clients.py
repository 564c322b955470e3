"""Clients by which agent loops generate from an endpoint, in place of verl's client of the engines."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import cast

import openai
from openai.types.chat import ChatCompletionMessageParam
from vllm.sampling_params import StructuredOutputsParams

from turnmill.core.errors import InferenceError, SettingsError
from turnmill.evaluation.endpoint import Endpoint, plain_errors
from turnmill.evaluation.message_calls import text_of, with_calls
from turnmill.evaluation.message_tokens import MessageTokenizer
from turnmill.rollout.token_output import TokenOutput
from turnmill.rollout.verl_types import SamplingParams

_OF_VLLM = (
    *("top_k", "min_p", "repetition_penalty", "stop_token_ids", "include_stop_str_in_output", "ignore_eos"),
    "min_tokens",
)
"""Sampling parameters that OpenAI's API does not have, and vLLM's server does."""

_TOKENS = {"return_token_ids": True, "skip_special_tokens": False}
_WITH_MESSAGES = ("max_tokens", "temperature", "top_p", "seed")
# Chat endpoints leave stop strings out of the text, and most do not tell which: loops find them themselves.
_OF_BOTH = (*_WITH_MESSAGES, "stop")


class TokenClient:
    """Sends tokens to vLLM's server and gets tokens, so that loops see what they see in training."""

    def __init__(self, client: openai.AsyncOpenAI, endpoint: Endpoint, model: str) -> None:
        self._client = client
        self._endpoint = endpoint
        self._model = model

    async def generate(
        self, request_id: str, *, prompt_ids: Sequence[int], sampling_params: SamplingParams, **media: object
    ) -> TokenOutput:
        """Return the tokens of a response. Raises InferenceError, or SettingsError for a server without tokens."""
        _refuse_media(media)
        async with plain_errors(self._endpoint, request_id):
            completion = await self._client.completions.create(
                model=self._model,
                prompt=list(prompt_ids),
                extra_body=_known(sampling_params, _OF_BOTH + _OF_VLLM) | _vllm_only(sampling_params),
            )
        choice = completion.choices[0]
        tokens = (choice.model_extra or {}).get("token_ids")
        if tokens is None:
            raise SettingsError(
                f"{self._endpoint.url} returns no tokens, as only vLLM's server does. Omit --tokenizer: then the agent "
                "sends messages."
            )
        log_probs = choice.logprobs.token_logprobs if choice.logprobs is not None else None
        return TokenOutput(token_ids=list(tokens), log_probs=log_probs, stop_reason=choice.finish_reason)


class ChatClient:
    """Sends messages to any chat endpoint, and gets a text."""

    def __init__(self, client: openai.AsyncOpenAI, endpoint: Endpoint, model: str, tokenizer: MessageTokenizer) -> None:
        self._client = client
        self._endpoint = endpoint
        self._model = model
        self._tokenizer = tokenizer

    async def generate(
        self, request_id: str, *, prompt_ids: Sequence[int], sampling_params: SamplingParams, **media: object
    ) -> TokenOutput:
        """Return a response, one token per byte. Raises InferenceError, or SettingsError for a request that is
        refused."""
        _refuse_media(media)
        conversation = self._tokenizer.conversation(prompt_ids)
        messages, tools = conversation.messages, conversation.tools
        if tools:
            messages = list(with_calls(messages, self._tokenizer))
        async with plain_errors(self._endpoint, request_id):
            completion = await self._client.chat.completions.create(
                model=self._model,
                messages=cast("list[ChatCompletionMessageParam]", messages),
                extra_body=_known(sampling_params, _WITH_MESSAGES) | ({"tools": tools} if tools else {}),
            )
        if not completion.choices:
            raise InferenceError(f"{request_id}: {self._endpoint.url} returned no choice")
        choice = completion.choices[0]
        tokens = self._tokenizer.response_ids(text_of(choice.message), ended=choice.finish_reason != "length")
        return TokenOutput(token_ids=tokens, stop_reason=choice.finish_reason)


def _known(sampling_params: SamplingParams, names: Sequence[str]) -> dict[str, object]:
    return {name: sampling_params[name] for name in names if name in sampling_params}


def _vllm_only(sampling_params: SamplingParams) -> dict[str, object]:
    """Return parameters that have another form in the API of vLLM's server, which takes tokens."""
    structure = sampling_params.get("structured_outputs")
    # 0 asks for the log-probs of the sampled tokens alone.
    return (
        _TOKENS
        | ({"logprobs": 0} if sampling_params.get("logprobs") else {})
        | ({"structured_outputs": _public_fields(structure)} if isinstance(structure, StructuredOutputsParams) else {})
    )


def _public_fields(structure: StructuredOutputsParams) -> dict[str, object]:
    return {name: value for name, value in asdict(structure).items() if value and not name.startswith("_")}


def _refuse_media(media: dict[str, object]) -> None:
    if any(media.values()):
        raise SettingsError(
            "Prompts with images cannot be evaluated by an endpoint. Use `turnmill run JOB.yaml --evaluate`."
        )
