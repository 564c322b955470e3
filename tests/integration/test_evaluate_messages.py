"""Evaluations of agents of several types by an endpoint that takes messages: `turnmill evaluate URL`."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from verl.tools import function_tool

from support.agents import counter_agent, response_text
from support.model_server import ScriptedModel, served
from turnmill.cli.main import main
from turnmill.observability.evaluation import Results, read_results
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog

CALCULATOR = "pkg://turnmill/rollout/multi_turn/example_tools/calculator.py"
TOOL = {"type": "tool", "enableMtrl": True, "stopTokens": ["</python>"], "maxTurns": 2, "maxObsLength": 64}
MULTI_TURN = {"type": "multi_turn", "functionToolPath": CALCULATOR, "maxAssistantTurns": 3, "maxResponseLength": 96}
GRL = {
    "type": "grl", "agents": [counter_agent(useThinkAnswerToken=False)], "validationAgentGroupNum": [3],
    "maxPromptLength": 64, "maxResponseLength": 50,
}  # fmt: skip

Message = dict[str, Any]
Answer = Callable[[list[Message]], Message]
Evaluate = Callable[..., Results]


def job_with(agent: dict[str, Any], environment: str | None) -> str:
    """Return a job file."""
    training = {"steps": 7} | ({"tasksPerStep": 4} if environment else {})
    spec = {"model": {"warmStart": {}}, "agent": agent, "algorithm": {"type": "grpo"}, "training": training}
    spec |= {"environment": {"name": environment}} if environment else {"algorithm": {"type": "ppo"}}
    job = {"apiVersion": "turnmill.dev/v1alpha1", "kind": "AgentTrainingJob", "metadata": {"name": "a"}, "spec": spec}
    return yaml.safe_dump(job)


def model_that(answer: Answer, finish_reason: str = "stop") -> ScriptedModel:
    """Return a server whose message depends on those that it gets."""
    model = ScriptedModel([])

    def respond(body: dict[str, Any]) -> httpx.Response:
        message = {"role": "assistant", "content": None} | answer(body["messages"])
        choice = {"index": 0, "finish_reason": finish_reason, "message": message}
        return httpx.Response(200, json={"id": "1", "object": "chat.completion", "created": 0, "choices": [choice]})

    model.answer = respond
    return model


@pytest.fixture
def evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Evaluate:
    """Evaluates what a model server serves; returns the results in a folder."""
    monkeypatch.chdir(tmp_path)
    # verl keeps the functions that other tests have loaded.
    monkeypatch.setattr(function_tool, "FUNCTION_TOOL_REGISTRY", {})
    monkeypatch.setattr(function_tool, "_LOADED_FUNCTION_TOOL_PATHS", {})

    def run(model: ScriptedModel, job: str, *arguments: str) -> Results:
        Path("job.yaml").write_text(job)
        with served(model) as url:
            assert main(["evaluate", url, "--job", "job.yaml", "--output", "a", *arguments]) == 0
        results = read_results(Path("a"))
        assert results is not None
        assert results.failures() == {}
        return results

    return run


def test_what_a_tool_answers_is_a_message(evaluate: Evaluate):
    """The text after a call is cut off; a long answer of the tool is shortened as in training."""

    def answer(messages: list[Message]) -> Message:
        if not any(message["role"] == "assistant" for message in messages):
            question = re.findall(r"\d+[-+*]\d+", messages[-1]["content"])[-1]
            return {"content": f"<python>print({question}, 'é' * 400)</python> The result is 7."}
        result = re.findall(r"-?\d+", messages[-1]["content"])[0]
        return {"content": f"answer:{result}"}

    model = model_that(answer)

    results = evaluate(model, job_with(TOOL, "arithmetic"), "--episodes", "3", "--set", "agent.truncateObsSide=right")

    assert [(attempt.success, attempt.num_turns) for attempt in results.attempts] == [(True, 2)] * 3
    conversations = [body["messages"] for body in model.requests if len(body["messages"]) > 2]
    assert len(conversations) == 3
    for *_, call, observation in conversations:
        assert call["role"] == "assistant"
        assert call["content"].endswith(")</python>")
        assert observation["role"] == "user"
        kept = observation["content"].removesuffix("...(truncated)")
        # A character that was cut through is left out.
        odd = len(kept.rstrip("é").encode()) % 2
        assert len(kept.encode()) == 64 * 4 - odd
    assert all("stop" not in body for body in model.requests)
    assert max(body["max_tokens"] for body in model.requests) == 1024
    turns = list(TrajectoryLog(RunFolder("a")).read_turns(validation=True))
    assert {turn.stop_reason for turn in turns} == {None, "completed"}


@pytest.mark.parametrize(("agent", "environment"), [(TOOL, "arithmetic"), (MULTI_TURN, "calculator")])
def test_a_response_that_the_endpoint_cut_off_is_told(evaluate: Evaluate, agent: dict[str, Any], environment: str):
    model = model_that(lambda messages: {"content": "well"}, finish_reason="length")

    results = evaluate(model, job_with(agent, environment), "--episodes", "2")

    assert [attempt.stop_reason for attempt in results.attempts] == ["max_tokens"] * 2
    turns = TrajectoryLog(RunFolder("a")).read_turns(validation=True)
    assert [turn.stop_reason for turn in turns] == ["max_tokens"] * 2


def test_functions_are_called_as_the_api_calls_them(evaluate: Evaluate):
    """One call of a response is made, and the other is dropped, as `maxParallelCalls` says."""

    def answer(messages: list[Message]) -> Message:
        if messages[-1]["role"] == "tool":
            return {"content": f"answer:{messages[-1]['content']}"}
        expression = re.findall(r"\d+[-+*]\d+", messages[-1]["content"])[-1]
        function = {"name": "calculator", "arguments": json.dumps({"expression": expression})}
        calls = [{"id": f"theirs-{number}", "type": "function", "function": function} for number in range(2)]
        return {"content": "Let me see.", "tool_calls": calls}

    model = model_that(answer)

    results = evaluate(model, job_with(MULTI_TURN, "calculator"), "--episodes", "3", "--samples", "2")

    assert [(attempt.success, attempt.num_turns) for attempt in results.attempts] == [(True, 2)] * 6
    assert {body["tools"][0]["function"]["name"] for body in model.requests} == {"calculator"}
    assistant, tool = max((body["messages"] for body in model.requests), key=len)[-2:]
    assert assistant["content"] == "Let me see."
    (call,) = assistant["tool_calls"]
    assert call["function"]["name"] == "calculator"
    assert json.loads(call["function"]["arguments"]).keys() == {"expression"}
    assert tool["tool_call_id"] == call["id"]
    assert {body["max_tokens"] for body in model.requests if len(body["messages"]) == 1} == {96}


def test_a_loop_without_functions_answers_once(evaluate: Evaluate):
    model = model_that(lambda messages: {"content": "answer:7"})
    agent = MULTI_TURN | {"defaultAgentLoop": "single_turn_agent"}

    results = evaluate(model, job_with(agent, "calculator"), "--episodes", "2")

    assert [attempt.num_turns for attempt in results.attempts] == [1, 1]
    assert {body["max_tokens"] for body in model.requests} == {96}
    assert all("tools" not in body for body in model.requests)


def test_grls_agents_have_a_conversation(evaluate: Evaluate):
    """Its messages are longer than `maxPromptLength`, whose tokens the endpoint does not tell."""

    def answer(messages: list[Message]) -> Message:
        number = "1" if len(messages) < 4 else "3"
        return {"content": f"<think>{response_text(number)}"}

    model = model_that(answer)

    results = evaluate(model, job_with(GRL, None))

    assert [(attempt.success, attempt.reward) for attempt in results.attempts] == [(True, 4.0)] * 3
    longest = max((body["messages"] for body in model.requests), key=len)
    assert [message["role"] for message in longest] == ["system", "user", "assistant", "user"]
    assert longest[2]["content"] == f"<think>{response_text('1')}"
    assert {body["max_tokens"] for body in model.requests} == {50}


@pytest.mark.parametrize(
    ("agent", "environment", "told"),
    [
        (TOOL | {"enableMtrl": False}, "arithmetic", "Add `--set agent.enableMtrl=true`"),
        (TOOL | {"mtrlSep": "<x>{obs}</x>"}, "arithmetic", "spec.agent.mtrlSep ('<x>{obs}</x>')"),
        (MULTI_TURN | {"filterOverlongPrompts": True}, "calculator", "spec.agent.filterOverlongPrompts"),
        (GRL | {"agents": [counter_agent()]}, None, "agentConfig.useThinkAnswerToken"),
        ({"type": "harness", "command": ["true"]}, "arithmetic", "Agents of type 'harness' ask a gateway"),
    ],
)
def test_what_needs_tokens_is_refused_before_anything_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    agent: dict[str, Any], environment: str | None, told: str,
):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(job_with(agent, environment))

    assert main(["evaluate", "http://127.0.0.1:9/v1", "--job", "job.yaml"]) == 2

    message = capsys.readouterr().err
    assert told in message
    assert "--tokenizer" in message
    assert not Path("runs").exists()
