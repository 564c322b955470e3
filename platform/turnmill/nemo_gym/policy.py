"""The policy, as NeMo Gym's agents ask a model server: by OpenAI's Responses."""

import os
import time

from turnmill.core.errors import InferenceError
from turnmill.nemo_gym.http import FAILED, Json, Reply, post

PAUSES_SECONDS = (1.0, 2.0, 4.0)
"""Pauses before the repeats of a request that failed; the gateway answers a repeat from its record."""

TOO_LONG = "context_length_exceeded"


class Policy:
    """The gateway, at the address and with the key of one trajectory."""

    def __init__(self) -> None:
        self._url = os.environ["OPENAI_BASE_URL"] + "/responses"
        self._headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
        self._model = os.environ["OPENAI_MODEL"]

    def respond(self, params: Json, items: list[Json]) -> Json | None:
        """Return the response to a conversation; None if that is too long. Raises InferenceError."""
        given = {name: value for name, value in params.items() if value is not None}
        reply = self._ask({**given, "model": self._model, "input": items})
        try:
            body = reply.json_object()
        except ValueError as error:
            raise InferenceError(f"The gateway answered {reply.status} and no JSON object: {error}.") from error
        if reply.status < 400:
            return body
        error_body = body.get("error")
        if isinstance(error_body, dict) and error_body.get("code") == TOO_LONG:
            return None
        raise InferenceError(f"The gateway answered {reply.status}: {error_body}")

    def _ask(self, body: Json) -> Reply:
        for pause in PAUSES_SECONDS:
            try:
                # Without a limit of its own: the gateway has one, and the agent's `timeoutSeconds` ends this process.
                reply = post(self._url, body, self._headers)
                if reply.status < 500 and reply.status != 429:
                    return reply
            except FAILED:
                pass
            time.sleep(pause)
        try:
            return post(self._url, body, self._headers)
        except FAILED as error:
            raise InferenceError(f"The gateway did not answer: {error!r}.") from error
