"""verifiers' `ToolEnv` for `rollout_cost.py`, by a Python that has it: FOLDER SYSTEM SIZE, see the harness.

python3.11 -m venv .venv-rollout-verifiers && .venv-rollout-verifiers/bin/pip install verifiers==0.3.1 \
    renderers==0.1.10 transformers==5.10.4

`verifiers` has the client that is its default, which sends messages: templates, tokens and calls are the engine's work,
and none of it is done here. It returns the ids that vLLM adds with `return_token_ids`; those of its prompts are made
up, about as many as there would be. `verifiers_renderer` has the client for training, which makes prompts from the
tokens that were sampled and reads calls itself. Only it needs `transformers`, and it does not load with
`renderers==0.1.12`. Both read what they are sent as they would from a server, from JSON that is prepared before the
measurement.
"""

import json
from pathlib import Path
from typing import Any

import httpx
import verifiers as vf
from datasets import Dataset
from rollout_cost_harness import (
    ENDED,
    OBSERVATION_TOKENS,
    QWEN3,
    RESPONSE_TOKENS,
    Engine,
    Play,
    Played,
    Player,
    Response,
    main,
    name_of,
)

PROMPT_TOKENS, TEMPLATE_TOKENS = 160, 12
"""Of a first prompt, and around an observation."""


class Server:
    """The client of the `openai` package, as far as verifiers calls it."""

    base_url = "http://127.0.0.1:1/v1"

    def __init__(self, engine: Engine, bodies: list[bytes]) -> None:
        self._engine = engine
        self._bodies = bodies

    async def post(self, path: str, *, body: dict[str, Any], **_: Any) -> httpx.Response:
        """Return the next response of a trajectory."""
        name = (body.get("sampling_params") or body)["request_id"]
        turn = self._engine.num_responses(name)
        await self._engine.respond(name)
        return httpx.Response(200, content=self._bodies[turn])

    async def get(self, path: str, **_: Any) -> Any:
        """Return the models: none that says how long a context may be."""
        return {"data": []}


def _log_probs(engine: Engine, response: Response) -> dict[str, Any]:
    return {
        "content": [
            {"token": f"token_id:{token}", "logprob": value, "bytes": None, "top_logprobs": []}
            for token, value in zip(response.ids, engine.log_probs(), strict=True)
        ]
    }


def chat_completion(engine: Engine, texts: dict[str, list[str]], turn: int) -> bytes:
    """Return vLLM's answer at a turn to a request with messages."""
    response = engine.response(turn)
    content, _, call = texts[response.kind][response.number].partition("<tool_call>")
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if call:
        parsed = json.loads(call.partition("</tool_call>")[0])
        function = {"name": parsed["name"], "arguments": json.dumps(parsed["arguments"])}
        message["tool_calls"] = [{"id": f"call_{turn}", "type": "function", "function": function}]
    num_prompt = PROMPT_TOKENS + turn * (RESPONSE_TOKENS + OBSERVATION_TOKENS + TEMPLATE_TOKENS)
    choice = {
        "index": 0,
        "message": message,
        "logprobs": _log_probs(engine, response),
        "finish_reason": "tool_calls" if call else "stop",
        "token_ids": list(response.ids),
    }
    usage = {
        "prompt_tokens": num_prompt,
        "completion_tokens": RESPONSE_TOKENS,
        "total_tokens": num_prompt + RESPONSE_TOKENS,
    }
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": "policy"}
    prompt = [10_000 + number % 10_000 for number in range(num_prompt)]
    return json.dumps({**head, "choices": [choice], "usage": usage, "prompt_token_ids": prompt}).encode()


def generated(engine: Engine, turn: int) -> bytes:
    """Return vLLM's answer at a turn to a request with tokens."""
    response = engine.response(turn)
    choice = {
        "index": 0,
        "token_ids": list(response.ids),
        "logprobs": _log_probs(engine, response),
        "finish_reason": "stop",
    }
    return json.dumps({"request_id": str(turn), "choices": [choice]}).encode()


def prepare(engine: Engine, folder: Path, client: Any, sampling: dict[str, Any]) -> Play:
    """Return what plays a trajectory by an environment with a constant tool."""
    text = (folder / "observation.txt").read_text()
    prompt = json.loads((folder / "tasks.jsonl").read_text())["prompt"]

    async def look_up(name: str) -> str:
        """Return the text of a page.

        Args:
            name: The name of the page.
        """
        return text

    async def reward(completion: Any) -> float:
        return 1.0

    environment = vf.ToolEnv(
        dataset=Dataset.from_list([{"prompt": prompt, "answer": ""}]),
        tools=[look_up],
        max_turns=engine.turns,
        rubric=vf.Rubric(funcs=[reward]),
    )

    async def play(number: int) -> Played:
        output = await environment.run_rollout(
            {"prompt": prompt, "answer": "", "example_id": number},
            client,
            "policy",
            {**sampling, "extra_body": {"request_id": name_of(number), **sampling.get("extra_body", {})}},
            state_columns=["trajectory"],
        )
        played = Played()
        for tokens in (step["tokens"] for step in output["trajectory"]):
            played.add(
                tokens["prompt_ids"],
                tokens["completion_ids"],
                tokens["completion_mask"],
                tokens["completion_logprobs"],
            )
        return played

    return play


def chat(engine: Engine, folder: Path, run_dir: Path) -> Play:
    """Return what plays a trajectory with the client that is the default."""
    from verifiers.clients import OpenAIChatCompletionsClient

    texts = json.loads((folder / "texts.json").read_text())
    bodies = [chat_completion(engine, texts, turn) for turn in range(engine.turns)]
    sampling = {"max_tokens": RESPONSE_TOKENS, "logprobs": True, "extra_body": {"return_token_ids": True}}
    return prepare(engine, folder, OpenAIChatCompletionsClient(Server(engine, bodies)), sampling)


def renderer(engine: Engine, folder: Path, run_dir: Path) -> Play:
    """Return what plays a trajectory with the client for training."""
    from renderers.configs import Qwen3RendererConfig
    from verifiers.clients import RendererClient

    server = Server(engine, [generated(engine, turn) for turn in range(engine.turns)])

    class Client(RendererClient):  # type: ignore[misc]
        """The client, whose server is in the same process."""

        def setup_client(self, config: Any) -> Server:
            return server

    config = vf.ClientConfig(
        client_type="renderer", renderer_config=Qwen3RendererConfig(), renderer_model_name=str(folder / "qwen3")
    )
    return prepare(engine, folder, Client(config), {"max_tokens": RESPONSE_TOKENS})


if __name__ == "__main__":
    main({"verifiers": Player(ENDED, chat), "verifiers_renderer": Player(QWEN3, renderer)})
