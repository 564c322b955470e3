"""OpenAI's and Anthropic's own client packages against the gateway over HTTP."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import anthropic
import httpx
import openai
import pytest

from support.gateway import RecordedTurns, ScriptedEngine, ScriptedTrajectories, scripted_model, tool
from turnmill.gateway import app
from turnmill.gateway.app import create_app
from turnmill.gateway.errors import UnavailableError
from turnmill.gateway.server import HttpServer
from turnmill.gateway.trajectory import Trajectory

CALL = 'I look.<tool_call>\n{"name": "bash", "arguments": {"command": "ls -la"}}\n</tool_call>'
Start = Callable[..., "Gateway"]


class Gateway:
    """A gateway over HTTP with one trajectory."""

    def __init__(self, script: Any, **model: Any) -> None:
        self.engine = ScriptedEngine(script)
        self.model = scripted_model(self.engine, **model)
        self.record = RecordedTurns()
        self.trajectory = Trajectory("t", self.model, record=self.record, max_turns=20)
        self.server = HttpServer(create_app(ScriptedTrajectories(self.model, {"secret": self.trajectory})))
        self.server.start()
        self.openai = openai.AsyncOpenAI(base_url=f"{self.server.url}/v1", api_key="secret", max_retries=0)
        self.anthropic = anthropic.AsyncAnthropic(base_url=self.server.url, api_key="secret", max_retries=0)

    def require_one_row(self) -> None:
        """The conversation was linear: no token is foreign, and one row has all turns."""
        (row,) = self.trajectory.rows()
        assert len(row.generations) == len(self.engine.prompts) == len(self.record.turns)


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    gateways: list[Gateway] = []

    def begin(script: Any, **model: Any) -> Gateway:
        gateways.append(Gateway(script if callable(script) else scripted(*script), **model))
        return gateways[-1]

    yield begin
    for gateway in gateways:
        await gateway.openai.close()
        await gateway.anthropic.close()
        await gateway.server.close()


def scripted(*texts: str) -> Callable[[str], str]:
    rest = list(texts)
    return lambda prompt: rest.pop(0)


async def test_a_chat_with_a_tool_is_one_row(start: Start):
    gateway = start([CALL, "done"])
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Look."}]

    first = await gateway.openai.chat.completions.create(model="policy", messages=messages, tools=[tool("bash")])
    message = first.choices[0].message
    messages += [message.model_dump(), {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "total 4"}]
    second = await gateway.openai.chat.completions.create(model="policy", messages=messages, tools=[tool("bash")])

    assert first.choices[0].finish_reason == "tool_calls"
    assert (message.content, message.tool_calls[0].function.name) == ("I look.", "bash")
    assert message.tool_calls[0].function.arguments == '{"command": "ls -la"}'
    assert (second.choices[0].message.content, second.choices[0].finish_reason) == ("done", "stop")
    assert second.usage.prompt_tokens == len(gateway.engine.prompts[1])
    gateway.require_one_row()


async def test_a_streamed_chat_has_the_same_parts(start: Start):
    gateway = start([CALL])

    async with gateway.openai.chat.completions.stream(
        model="policy", messages=[{"role": "user", "content": "Look."}], tools=[tool("bash")],
        stream_options={"include_usage": True},
    ) as stream:  # fmt: skip
        whole = await stream.get_final_completion()

    message = whole.choices[0].message
    assert message.content == "I look."
    assert message.tool_calls[0].function.arguments == '{"command": "ls -la"}'
    assert whole.choices[0].finish_reason == "tool_calls"
    assert whole.usage.completion_tokens == len(gateway.engine.samples[0])


async def test_several_answers_with_log_probs_and_stop_strings(start: Start):
    gateway = start(["one STOP", "two STOP"])

    answer = await gateway.openai.chat.completions.create(
        model="policy", messages=[{"role": "user", "content": "Count."}], n=2, logprobs=True, stop=["STOP"], seed=7,
        temperature=0.5, max_tokens=50,
    )  # fmt: skip

    assert [choice.message.content for choice in answer.choices] == ["one ", "two "]
    tokens = answer.choices[0].logprobs.content
    assert "".join(token.token for token in tokens) == "one STOP<|im_end|>"
    assert [token.logprob for token in tokens] == [-0.5 - index / 1000 for index in range(len(tokens))]
    assert gateway.engine.sampling[0] == {
        "temperature": 0.5, "seed": 7, "max_tokens": 50, "stop": ["STOP"], "include_stop_str_in_output": True,
        "detokenize": True,
    }  # fmt: skip


async def test_text_completions(start: Start):
    gateway = start([" two", " four"])

    first = await gateway.openai.completions.create(model="policy", prompt="one", max_tokens=20)
    second = await gateway.openai.completions.create(
        model="policy", prompt="one" + first.choices[0].text + " three", max_tokens=20
    )

    assert (first.choices[0].text, second.choices[0].text) == (" two", " four")
    gateway.require_one_row()


@pytest.mark.parametrize("stream", [False, True])
async def test_responses_with_a_tool_are_one_row(start: Start, stream: bool):
    gateway = start([CALL, "done"])
    items: list[Any] = [{"role": "user", "content": "Look."}]
    function = tool("bash")["function"]
    given: dict[str, Any] = {
        "model": "policy", "instructions": "Be brief.", "tools": [{"type": "function", "strict": False, **function}]
    }  # fmt: skip

    async def respond() -> Any:
        if not stream:
            return await gateway.openai.responses.create(input=items, **given)
        async with gateway.openai.responses.stream(input=items, **given) as events:
            return await events.get_final_response()

    first = await respond()
    (text, call) = first.output
    items += [item.model_dump(exclude={"parsed_arguments"}) for item in first.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "total 4"})
    second = await respond()

    assert (text.content[0].text, call.name, call.arguments) == ("I look.", "bash", '{"command": "ls -la"}')
    assert (second.output_text, second.status) == ("done", "completed")
    gateway.require_one_row()


@pytest.mark.parametrize("stream", [False, True])
async def test_messages_with_a_tool_are_one_row(start: Start, stream: bool):
    gateway = start([CALL, "done"])
    function = tool("bash")["function"]
    tools: Any = [{"name": "bash", "description": "Runs it.", "input_schema": function["parameters"]}]
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "Look."}]}]
    turn = 0

    async def respond() -> Any:
        nonlocal turn
        turn += 1
        given: Any = {
            "model": "policy", "max_tokens": 100, "tools": tools, "messages": messages,
            "system": [
                {"type": "text", "text": f"x-anthropic-billing-header: {turn}"},
                {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
            ],
        }  # fmt: skip
        if not stream:
            return await gateway.anthropic.messages.create(**given)
        async with gateway.anthropic.messages.stream(**given) as events:
            return await events.get_final_message()

    first = await respond()
    (text, call) = first.content
    messages[0]["content"] = "Look."
    messages.append(
        {"role": "assistant", "content": [block.model_dump(exclude={"parsed_output"}) for block in first.content]}
    )
    answer = [{"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "total 4"}]}]
    messages.append({"role": "user", "content": answer})
    second = await respond()

    assert (text.text, call.name, call.input, first.stop_reason) == (
        "I look.",
        "bash",
        {"command": "ls -la"},
        "tool_use",
    )
    assert (second.content[0].text, second.stop_reason) == ("done", "end_turn")
    assert second.usage.input_tokens == len(gateway.engine.prompts[1])
    gateway.require_one_row()


async def test_the_models_are_listed_for_both_clients(start: Start):
    gateway = start([])

    assert [model.id async for model in gateway.openai.models.list()] == ["policy"]
    assert [model.id async for model in gateway.anthropic.models.list()] == ["policy"]
    assert (await gateway.openai.models.retrieve("policy")).id == "policy"
    with pytest.raises(openai.NotFoundError):
        await gateway.openai.models.retrieve("other")


async def test_tokens_are_counted_without_a_turn(start: Start):
    gateway = start([])

    counted = await gateway.anthropic.messages.count_tokens(
        model="policy", messages=[{"role": "user", "content": "Look."}]
    )

    assert counted.input_tokens > 5
    assert gateway.engine.prompts == []


async def test_the_key_may_be_in_the_path_of_the_base_url(start: Start):
    gateway = start(["here"])
    client = openai.AsyncOpenAI(base_url=f"{gateway.server.url}/secret/v1", api_key="none", max_retries=0)

    answer = await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "Look."}])

    await client.close()
    assert answer.choices[0].message.content == "here"


USER: Any = [{"role": "user", "content": "Look."}]


async def test_an_unknown_key_is_refused_in_each_form(start: Start):
    gateway = start([])
    with pytest.raises(openai.AuthenticationError, match="unknown"):
        await gateway.openai.with_options(api_key="other").chat.completions.create(model="policy", messages=USER)
    with pytest.raises(anthropic.AuthenticationError, match="unknown"):
        await gateway.anthropic.with_options(api_key="other").messages.create(
            model="policy", messages=USER, max_tokens=9
        )


async def test_a_prompt_that_is_too_long_is_refused_with_the_code_that_agents_know(start: Start):
    gateway = start([], max_context_tokens=5)

    with pytest.raises(openai.BadRequestError) as refused:
        await gateway.openai.chat.completions.create(model="policy", messages=USER)

    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(anthropic.BadRequestError, match="maximum context length is 5 tokens"):
        await gateway.anthropic.messages.create(model="policy", messages=USER, max_tokens=9)


async def test_a_malformed_body_is_refused_with_the_field(start: Start):
    gateway = start([])

    with pytest.raises(openai.BadRequestError, match="messages"):
        await gateway.openai.chat.completions.create(model="policy", messages=[])
    with pytest.raises(openai.BadRequestError, match="role 'robot' is unknown"):
        await gateway.openai.chat.completions.create(model="policy", messages=[{"role": "robot", "content": "x"}])


async def test_clients_repeat_a_request_that_the_engine_failed_and_get_one_answer(start: Start):
    gateway = start(["here"])
    gateway.engine.errors = [UnavailableError("no engine")]
    client = gateway.openai.with_options(max_retries=2)

    answer = await client.chat.completions.create(model="policy", messages=USER)

    assert answer.choices[0].message.content == "here"
    assert len(gateway.record.turns) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
async def test_a_client_that_runs_out_of_time_says_so_and_its_repeat_gets_one_answer(
    start: Start, api: str, stream: bool
):
    gateway = start(["here"])
    held, generate = asyncio.Event(), gateway.engine.generate

    async def late(*words: Any, **named: Any) -> Any:
        await held.wait()
        return await generate(*words, **named)

    gateway.engine.generate = late  # type: ignore[method-assign]

    async def ask(seconds: float) -> Any:
        if api == "messages":
            timed = gateway.anthropic.with_options(timeout=seconds)
            return await timed.messages.create(model="policy", messages=USER, max_tokens=50, stream=stream)
        client = gateway.openai.with_options(timeout=seconds)
        if api == "chat":
            return await client.chat.completions.create(model="policy", messages=USER, stream=stream)
        return await client.responses.create(model="policy", input=USER, stream=stream)

    with pytest.raises((openai.APITimeoutError, anthropic.APITimeoutError)):
        await ask(0.2)
    held.set()
    answer = await ask(30)

    if stream:
        assert "here" in "".join([part.model_dump_json() async for part in answer])
    else:
        assert "here" in answer.model_dump_json()
    gateway.require_one_row()


async def test_a_stream_that_was_cut_is_repeated_with_the_recorded_answer(start: Start):
    gateway = start(["The quick brown fox"])
    body = {"model": "policy", "messages": USER, "stream": True}
    async with httpx.AsyncClient(base_url=gateway.server.url, headers={"Authorization": "Bearer secret"}) as client:
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            await anext(response.aiter_lines())

        repeated = await client.post("/v1/chat/completions", json=body)

    assert "The quick brown fox" in repeated.text
    assert repeated.text.endswith("data: [DONE]\n\n")
    assert len(gateway.engine.prompts) == 1


async def test_an_unknown_path_is_refused_as_json(start: Start):
    gateway = start([])
    async with httpx.AsyncClient(base_url=gateway.server.url) as client:
        response = await client.post("/v1/embeddings", json={})

    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"


async def events(gateway: Gateway, api: str) -> tuple[str, str]:
    """Return the text that is streamed by an API, and what the client raises in place of its end."""
    messages: list[Any] = [{"role": "user", "content": "Look."}]
    text = ""
    try:
        if api == "chat":
            async for chunk in await gateway.openai.chat.completions.create(
                model="policy", messages=messages, stream=True
            ):
                text += chunk.choices[0].delta.content or ""
        elif api == "responses":
            async for part in await gateway.openai.responses.create(model="policy", input="Look.", stream=True):
                text += part.delta if part.type == "response.output_text.delta" else ""
        else:
            async with gateway.anthropic.messages.stream(model="policy", messages=messages, max_tokens=50) as stream:
                async for piece in stream.text_stream:
                    text += piece
    except (openai.APIError, anthropic.APIError) as error:
        return text, error.message
    return text, ""


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
async def test_a_stream_that_waits_long_for_its_answer_has_comments_before_it(
    start: Start, api: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(app, "QUIET_SECONDS", 0.01)
    monkeypatch.setattr(app, "COMMENT_SECONDS", 0.01)
    gateway = start(["done"])
    answer, waiting = gateway.trajectory.answer, asyncio.Event()

    async def late(request: Any) -> Any:
        await waiting.wait()
        return await answer(request)

    monkeypatch.setattr(gateway.trajectory, "answer", late)
    asking = asyncio.create_task(events(gateway, api))
    await asyncio.sleep(0.2)
    assert not asking.done()
    waiting.set()

    assert await asking == ("done", "")


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
async def test_a_failure_after_the_stream_has_begun_is_an_error_in_it(
    start: Start, api: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(app, "QUIET_SECONDS", 0.01)
    gateway = start(["done"])

    async def failing(request: Any) -> Any:
        await asyncio.sleep(0.1)
        raise UnavailableError("The engine is gone.")

    monkeypatch.setattr(gateway.trajectory, "answer", failing)

    text, problem = await events(gateway, api)

    assert text == ""
    assert "The engine is gone." in problem


async def test_a_repeat_with_its_fields_in_another_order_samples_nothing(start: Start):
    gateway = start(["first", "second"])
    body = {"model": "policy", "metadata": {"a": "1", "b": "2"}, "messages": [{"role": "user", "content": "Look."}]}
    again = {"messages": body["messages"], "metadata": {"b": "2", "a": "1"}, "model": "policy"}
    headers = {"authorization": "Bearer secret"}

    async with httpx.AsyncClient(base_url=gateway.server.url, headers=headers) as client:
        answers = [(await client.post("/v1/chat/completions", json=sent)).json() for sent in (body, again)]

    assert [answer["choices"][0]["message"]["content"] for answer in answers] == ["first", "first"]
    gateway.require_one_row()
