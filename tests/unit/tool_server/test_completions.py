from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import CHECKS

from support.model_server import ScriptedModel, chatml
from support.tool_server import Count, Echo, MemoryStore, Raising, tool_context
from turnmill.core.errors import ToolFailedError
from turnmill.observability.tool_metrics import ToolMetrics
from turnmill.tool_server.app import Worker, build_app
from turnmill.tool_server.calls import CallExecutor
from turnmill.tool_server.completion_loop import CompletionLoop
from turnmill.tool_server.completions import Completions
from turnmill.tool_server.settings import ServerSettings
from turnmill.tool_server.tool_set import ToolSet
from turnmill.tool_server.upstream import Upstream
from turnmill.tools.base import Tool, ToolCall, ToolResult

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}]


class Tagged(Echo):
    """`<echo>TEXT</echo>` answers `[TEXT]`."""

    name: ClassVar[str] = "tagged"

    def parse(self, action: str) -> str | None:
        _, begins, rest = action.partition("<echo>")
        text, ends, _ = rest.partition("</echo>")
        return text if begins and ends else None

    async def call(self, call: ToolCall) -> ToolResult:
        return ToolResult(f"[{call.parsed}]", done=call.parsed == "end")


@asynccontextmanager
async def serving(
    model: ScriptedModel,
    *tools: Tool,
    stops: Sequence[str] = ("</echo>",),
    store: MemoryStore | None = None,
    **given: Any,
) -> AsyncIterator[httpx.AsyncClient]:
    chosen = ServerSettings(action_stop_tokens=tuple(stops), model_url="http://model/v1", **given)
    metrics = ToolMetrics()
    executor = CallExecutor(ToolSet(tools or [Tagged(tool_context())]), store or MemoryStore(), metrics)
    upstream = Upstream("http://model/v1", model=None, api_key="none", timeout_seconds=5, transport=model.transport())
    completions = Completions(chosen, CompletionLoop(chosen, executor, upstream), upstream)
    app = build_app(Worker(chosen, executor, metrics), completions)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as http:
        yield http


async def complete(
    model: ScriptedModel, *tools: Tool, fields: dict[str, Any] | None = None, **given: Any
) -> httpx.Response:
    async with serving(model, *tools, **given) as http:
        return await http.post("/completions", json={"model": "scripted", "prompt": "How many? ", **(fields or {})})


async def chat(
    model: ScriptedModel, *tools: Tool, fields: dict[str, Any] | None = None, **given: Any
) -> httpx.Response:
    async with serving(model, *tools, **given) as http:
        body = {"model": "scripted", "messages": MESSAGES, **(fields or {})}
        return await http.post("/chat/completions", json=body)


@pytest.mark.feature("verl-tool", "completions with tools inside")
async def test_observations_are_part_of_the_completion():
    model = ScriptedModel(["<echo>7</echo> never written", " so seven"])

    response = await complete(model)

    assert response.status_code == 200
    [choice] = response.json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("<echo>7</echo>[7] so seven", "stop")
    assert model.requests[1]["prompt"] == "How many? <echo>7</echo>[7]"


async def test_a_chat_continues_the_open_message_of_the_assistant():
    model = ScriptedModel(["<echo>7</echo>", " so seven"])

    response = await chat(model)

    assert response.json()["object"] == "chat.completion"
    assert response.json()["choices"][0]["message"] == {"role": "assistant", "content": "<echo>7</echo>[7] so seven"}
    assert model.requests[1]["messages"] == [*MESSAGES, {"role": "assistant", "content": "<echo>7</echo>[7]"}]
    assert model.requests[1]["continue_final_message"] is True


async def test_a_stop_string_that_is_not_reported_is_inferred():
    model = ScriptedModel(["<echo>7</echo>", " so seven"], tells_stop=False)

    assert (await complete(model)).json()["choices"][0]["text"] == "<echo>7</echo>[7] so seven"


async def test_text_without_an_action_is_the_whole_completion():
    model = ScriptedModel(["seven"])

    assert (await complete(model)).json()["choices"][0]["text"] == "seven"
    assert len(model.requests) == 1


async def test_no_action_follows_the_last_turn():
    model = ScriptedModel(["<echo>1</echo>", "<echo>2</echo>", "<echo>3</echo>"])

    response = await complete(model, max_turns=2)

    assert response.json()["choices"][0]["text"] == "<echo>1</echo>[1]<echo>2</echo>[2]<echo>3</echo>"
    assert model.requests[2]["stop"] is None


async def test_a_tool_that_is_done_ends_the_completion_without_its_observation():
    model = ScriptedModel(["<echo>end</echo>"])

    assert (await complete(model)).json()["choices"][0]["text"] == "<echo>end</echo>"


async def test_the_requests_own_stop_string_ends_the_completion():
    model = ScriptedModel(["seven. Next"])

    response = await complete(model, fields={"stop": ". Next"})

    assert response.json()["choices"][0]["text"] == "seven"
    assert model.requests[0]["stop"] == ["</echo>", ". Next"]


async def test_n_choices_are_n_trajectories():
    count = Count(tool_context())
    store = MemoryStore()
    model = ScriptedModel(["count", "count", "count", "", "", ""], tells_stop=False)
    # The tool takes `count` with nothing after it, so the stop string is the end of a word.
    response = await complete(model, count, fields={"n": 3}, stops=("nt",), store=store)

    assert response.status_code == 200
    choices = response.json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert [choice["text"] for choice in choices] == ["count1"] * 3
    assert store.states == {}


async def test_several_prompts_have_choices_in_their_order():
    model = ScriptedModel(["a", "b"])

    response = await complete(model, fields={"prompt": ["one", "two words"]})

    assert [choice["text"] for choice in response.json()["choices"]] == ["a", "b"]
    assert response.json()["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


async def test_usage_counts_observations_as_completion_tokens():
    model = ScriptedModel(["<echo>7 7</echo>", " so seven"])

    usage = (await complete(model)).json()["usage"]

    # `How many?`, then `<echo>7 7</echo>[7 7] so seven`.
    assert usage == {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7}


async def test_sampling_goes_to_the_model_server_as_it_is():
    model = ScriptedModel(["seven"])

    await complete(model, fields={"temperature": 0.3, "seed": 5, "max_tokens": 9, "n": 1})

    sent = model.requests[0]
    assert {name: sent[name] for name in ("temperature", "seed", "max_tokens", "top_p")} == {
        "temperature": 0.3,
        "seed": 5,
        "max_tokens": 9,
        "top_p": 1.0,
    }


async def test_max_tokens_defaults_to_512_per_turn():
    model = ScriptedModel(["seven"])

    await complete(model)

    assert model.requests[0]["max_tokens"] == 512


@pytest.mark.feature("verl-tool", "completions with tools inside")
async def test_another_model_is_a_500_as_in_verl_tool():
    response = await complete(ScriptedModel([]), fields={"model": "other"})

    assert response.status_code == 500
    assert response.json() == {"detail": "Internal server error: model mismatch: other != scripted"}


async def test_a_stream_is_refused():
    response = await complete(ScriptedModel([]), fields={"stream": True})

    assert response.status_code == 400
    assert "stream" in response.json()["detail"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"model": "scripted"},
        {"model": "scripted", "messages": []},
        {"model": "scripted", "messages": [{"role": "system", "content": "x"}]},
        {"model": "scripted", "messages": MESSAGES, "n": 0},
        {"model": "scripted", "messages": "hello"},
    ],
)
async def test_an_invalid_chat_is_refused(body: dict[str, Any]):
    async with serving(ScriptedModel([])) as http:
        assert (await http.post("/chat/completions", json=body)).status_code == 422


@pytest.mark.feature("verl-tool", "completions in the format of the training")
async def test_a_chat_with_turns_of_observations_is_continued_as_the_text_of_its_template():
    model = ScriptedModel(["<echo>7</echo>", "seven"])

    response = await chat(model, enable_mtrl=True, mtrl_role="tool")

    turn = "<|im_end|>\n<|im_start|>tool\n[7]<|im_end|>\n<|im_start|>assistant\n"
    assert response.json()["choices"][0]["message"]["content"] == f"<echo>7</echo>{turn}seven"
    assert model.requests[0]["prompt"] == chatml(MESSAGES)
    assert model.requests[1]["prompt"] == chatml(MESSAGES) + "<echo>7</echo>" + turn
    assert model.requests[0]["add_special_tokens"] is False


@pytest.mark.feature("verl-tool", "completions in the format of the training")
async def test_without_stop_strings_every_response_of_a_chat_is_an_action():
    model = ScriptedModel(["<echo>1</echo>", "no action", "<echo>end</echo>"])

    response = await chat(model, stops=(), enable_mtrl=True, mtrl_sep="\n({obs})\n", turn_end_token=";")

    notice = "\nYour action is not valid, please check the format and try again."
    assert response.json()["choices"][0]["message"]["content"] == (
        f"<echo>1</echo>;\n([1])\nno action;\n({notice})\n<echo>end</echo>"
    )


async def test_the_end_of_a_turn_that_the_model_wrote_is_not_added_again():
    model = ScriptedModel(["<echo>1</echo>;", ""])

    response = await complete(model, stops=(), enable_mtrl=True, mtrl_sep=";({obs})", turn_end_token=";", max_turns=1)

    assert response.json()["choices"][0]["text"] == "<echo>1</echo>;([1])"


@pytest.mark.feature("verl-tool", "completions in the format of the training")
async def test_the_first_turns_of_a_completion_are_forced_to_be_actions():
    model = ScriptedModel(["<echo>1", "<echo>2</echo>", "three"])

    response = await complete(model, min_turns=1)

    assert response.json()["choices"][0]["text"] == "<echo>1</echo>[1]<echo>2</echo>[2]three"


async def test_the_requests_own_stop_string_ends_a_turn_that_would_be_forced():
    model = ScriptedModel(["<echo>1. Next"])

    response = await complete(model, min_turns=1, fields={"stop": ". Next"})

    assert response.json()["choices"][0]["text"] == "<echo>1"


@pytest.mark.feature("verl-tool", "completions in the format of the training")
@pytest.mark.parametrize(
    ("side", "kept"),
    [
        ("left", "(truncated)...45]"),
        ("right", "[12...(truncated)"),
        ("middle", "[...(truncated)...5]"),
    ],
)
async def test_observations_are_cut_in_tokens_and_marked_as_in_training(side: str, kept: str):
    model = ScriptedModel(["<echo>12345</echo>", ""])

    response = await complete(model, max_obs_length=3, truncate_obs_side=side)

    assert response.json()["choices"][0]["text"] == f"<echo>12345</echo>{kept}"


async def test_an_observation_of_the_maximum_length_is_whole():
    model = ScriptedModel(["<echo>12345</echo>", ""])

    response = await complete(model, max_obs_length=7)

    assert response.json()["choices"][0]["text"] == "<echo>12345</echo>[12345]"


async def test_a_model_server_without_tokenizer_is_named_with_the_flags_that_need_it():
    model = ScriptedModel(["<echo>12345</echo>", ""])
    model.tokenizes = False

    response = await complete(model, max_obs_length=3)

    assert response.status_code == 503
    assert "has no /tokenize, which --enable-mtrl and --max-obs-length need" in response.text


async def test_long_observations_are_cut_on_the_configured_side():
    left = await complete(ScriptedModel(["<echo>12345</echo>", ""]), max_obs_characters=3)
    right = await complete(ScriptedModel(["<echo>12345</echo>", ""]), max_obs_characters=3, truncate_obs_side="right")

    assert left.json()["choices"][0]["text"] == "<echo>12345</echo>45]"
    assert right.json()["choices"][0]["text"] == "<echo>12345</echo>[12"


async def test_a_model_server_that_does_not_answer_is_a_503():
    model = ScriptedModel([])
    model.answer = lambda body: httpx.Response(502, text="gone")

    response = await complete(model)

    assert response.status_code == 503
    assert response.json()["cause"] == "inference"


async def test_a_request_that_the_model_server_refuses_is_a_400():
    model = ScriptedModel([])
    model.answer = lambda body: httpx.Response(400, json={"error": "prompt too long"})

    response = await complete(model)

    assert response.status_code == 400
    assert "prompt too long" in response.json()["detail"]


async def test_a_completion_that_exceeds_the_context_has_the_finish_reason_length():
    model = ScriptedModel(["<echo>7</echo>"])
    model.answer = lambda body: httpx.Response(400, text="too long") if "[7]" in body["prompt"] else None

    response = await complete(model)

    [choice] = response.json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("<echo>7</echo>[7]", "length")


async def test_an_infrastructure_failure_is_a_503_and_not_text():
    broken = Raising(tool_context(), [ToolFailedError("The retriever is down.")])

    response = await complete(ScriptedModel(["raise"], tells_stop=False), broken, stops=("ise",))

    assert response.status_code == 503
    assert response.json() == {"detail": "The retriever is down.", "cause": "tool"}


async def test_the_served_model_is_listed():
    async with serving(ScriptedModel([])) as http:
        assert (await http.get("/models")).json()["data"][0]["id"] == "scripted"


async def test_a_model_server_that_does_not_list_its_models_is_a_503():
    model = ScriptedModel([])
    model.listing = httpx.Response(401, text="the key is wrong")

    async with serving(model) as http:
        response = await http.get("/models")

    assert (response.status_code, response.json()["cause"]) == (503, "inference")
    assert "the key is wrong" in response.json()["detail"]


@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
def test_completions_conform_to_their_openapi_description(mode: str):
    model = ScriptedModel([])
    model.answer = lambda body: httpx.Response(200, json={"choices": [{"text": "seven", "finish_reason": "stop"}]})
    metrics, given_settings = ToolMetrics(), ServerSettings(model_url="http://model/v1")
    executor = CallExecutor(ToolSet([Tagged(tool_context())]), MemoryStore(), metrics)
    upstream = Upstream("http://model/v1", model=None, api_key="x", timeout_seconds=5, transport=model.transport())
    completions = Completions(given_settings, CompletionLoop(given_settings, executor, upstream), upstream)
    schema = schemathesis.openapi.from_asgi(
        "/openapi.json", build_app(Worker(given_settings, executor, metrics), completions)
    )
    # A stream is refused, and bodies may have more fields than are described.
    other = ("negative_data_rejection", "positive_data_acceptance", "not_a_server_error")
    checks = [check for check in CHECKS.get_all() if check.__name__ not in other]

    for path in ("/completions", "/chat/completions"):

        @settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(case=schema[path]["POST"].as_strategy(generation_mode=schemathesis.GenerationMode[mode]))
        def call(case: schemathesis.Case) -> None:
            response = case.call()
            case.validate_response(response, checks=checks)
            # Another model is the one error of ours that verl-tool's clients know as a 500.
            assert response.status_code < 500 or "model mismatch" in response.text

        call()
