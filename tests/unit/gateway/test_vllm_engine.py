"""A vLLM server as the engine, in the formats of vLLM's own classes."""

import json

import httpx
import pytest
from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest, GenerateResponse

from turnmill.gateway.errors import RequestError, UnavailableError
from turnmill.gateway.vllm_engine import VllmEngine

SAMPLING = {"max_tokens": 5, "temperature": 0.5, "stop": ["x"], "include_stop_str_in_output": True, "seed": 3}


def engine(answer: httpx.Response, requests: list[httpx.Request] | None = None) -> VllmEngine:
    def respond(request: httpx.Request) -> httpx.Response:
        if requests is not None:
            requests.append(request)
        return answer

    return VllmEngine("http://engine:8000/v1", timeout_seconds=5, transport=httpx.MockTransport(respond))


async def test_a_request_and_its_response_are_those_of_vllm():
    content = [{"token": "a", "logprob": -0.5, "bytes": None, "top_logprobs": []}] * 2
    choice = {"index": 0, "token_ids": [7, 8], "logprobs": {"content": content}, "finish_reason": "stop"}
    requests: list[httpx.Request] = []
    response = GenerateResponse.model_validate({"choices": [choice]}).model_dump(mode="json")

    sample = await engine(httpx.Response(200, json=response), requests).generate(
        [1, 2, 3], SAMPLING, trajectory="t", sample=1
    )

    assert (sample.token_ids, sample.log_probs) == ((7, 8), (-0.5, -0.5))
    assert str(requests[0].url) == "http://engine:8000/inference/v1/generate"
    sent = GenerateRequest.model_validate(json.loads(requests[0].content))
    assert sent.token_ids == [1, 2, 3]
    assert (sent.sampling_params.max_tokens, sent.sampling_params.logprobs, sent.sampling_params.seed) == (5, 0, 4)
    assert (sent.sampling_params.temperature, sent.sampling_params.stop) == (0.5, ["x"])


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (httpx.Response(503, text="starting"), UnavailableError),
        (httpx.Response(429, text="too many"), UnavailableError),
        (httpx.Response(400, text="too long"), RequestError),
        (httpx.Response(200, json={"choices": []}), UnavailableError),
        (httpx.Response(200, text="no JSON"), UnavailableError),
    ],
)
async def test_a_failure_is_repeated_by_clients_and_a_refusal_is_not(response: httpx.Response, error: type[Exception]):
    with pytest.raises(error):
        await engine(response).generate([1], SAMPLING, trajectory="t", sample=0)
