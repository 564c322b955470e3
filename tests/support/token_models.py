"""A scripted policy behind the API of vLLM's server that takes and returns tokens."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from transformers import Qwen2Config

from support.model_server import ScriptedModel
from turnmill.testing.policies import LOG_PROB, character_tokenizer

Respond = Callable[[str, dict[str, Any]], str]
"""Returns the response to a prompt; the second argument is the body of the request."""


class TokenModel(ScriptedModel):
    """Answers `/v1/completions` with the tokens of a response, of which each is a character."""

    def __init__(self, respond: Respond) -> None:
        super().__init__([])
        self.tokenizer = character_tokenizer()
        self.prompts: list[str] = []
        self._respond = respond
        self.answer = self._completion

    def save(self, folder: Path) -> Path:
        """Save the tokenizer with a configuration, as the folder of a model has them."""
        self.tokenizer.save_pretrained(folder)
        Qwen2Config(vocab_size=len(self.tokenizer), architectures=["Qwen2ForCausalLM"]).save_pretrained(folder)
        return folder

    def _completion(self, body: dict[str, Any]) -> httpx.Response:
        assert body["return_token_ids"]
        prompt = self.tokenizer.decode(body["prompt"])
        self.prompts.append(prompt)
        ids = self.tokenizer.encode(self._respond(prompt, body), add_special_tokens=False)[: body["max_tokens"]]
        choice = {"index": 0, "finish_reason": "stop", "text": "", "token_ids": ids}
        if "logprobs" in body:
            choice["logprobs"] = {"token_logprobs": [LOG_PROB] * len(ids)}
        completion = {"id": "1", "object": "text_completion", "created": 0, "model": "scripted", "choices": [choice]}
        return httpx.Response(200, json=completion)
