"""A model behind OpenAI's API, and what its errors mean for an evaluation."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import openai

from turnmill.core.errors import InferenceError, SettingsError

KEY_VARIABLE = "OPENAI_API_KEY"
"""Environment variable with the key of an endpoint; the command line can be read by everyone on the machine."""

MAX_RETRIES = 6
_REFUSED = (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a model is served."""

    url: str
    """Base URL of the API, such as `http://127.0.0.1:8000/v1`."""

    model: str | None = None
    """Name of the model; None for the first that the endpoint lists."""

    key: str | None = None
    """Key of the endpoint; None for that of the environment."""

    def client(self, timeout_seconds: float) -> openai.AsyncOpenAI:
        """Return a client, which repeats requests that an overloaded or restarting server has refused."""
        # A local server asks for no key, but the client needs one.
        key = self.key or os.environ.get(KEY_VARIABLE) or "none"
        return openai.AsyncOpenAI(base_url=self.url, api_key=key, timeout=timeout_seconds, max_retries=MAX_RETRIES)


async def find_model(client: openai.AsyncOpenAI, endpoint: Endpoint) -> str:
    """Return the name of the model. Raises SettingsError if the endpoint does not answer, or has no model."""
    if endpoint.model is not None:
        return endpoint.model
    try:
        listed = await client.models.list()
    except openai.APIError as error:
        raise SettingsError(
            f"{endpoint.url} does not tell its models ({reason_of(error)}). Give the base URL of an API like OpenAI's, "
            f"such as http://127.0.0.1:8000/v1, its key in {KEY_VARIABLE}, and the model's name with --model-name."
        ) from error
    if not listed.data:
        raise SettingsError(f"{endpoint.url} lists no model. Give the name of one with --model-name.")
    return listed.data[0].id


@asynccontextmanager
async def plain_errors(endpoint: Endpoint, episode: str) -> AsyncIterator[None]:
    """Raise SettingsError where no request can succeed, and InferenceError where the episode has failed."""
    try:
        yield
    except _REFUSED as error:
        raise SettingsError(
            f"{endpoint.url} refuses requests ({reason_of(error)}). Check the URL, the model's name (--model-name) and "
            f"the key in {KEY_VARIABLE}."
        ) from error
    except openai.APIError as error:
        raise InferenceError(f"{episode}: {endpoint.url} gave no response ({reason_of(error)})") from error


def reason_of(error: openai.APIError) -> str:
    """Return the first line of what an API says of an error."""
    body = error.body
    told = body.get("message") if isinstance(body, Mapping) else None
    return str(told or error.message or type(error).__name__).strip().splitlines()[0]
