"""Evaluations of models behind OpenAI's API: `turnmill evaluate`."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.model_server import ScriptedModel, served
from turnmill.cli.main import main
from turnmill.core.errors import SettingsError
from turnmill.evaluation.message_tokens import END, MESSAGE, RESPONSE, MessageTokenizer
from turnmill.observability.evaluation import read_results
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog

ENVIRONMENT = "support.environments:Hostile"
SETTINGS = ("agent.maxTurns=3", "environment.count=4", "environment.resetTimeoutSeconds=600")
OVERRIDES = [word for setting in SETTINGS for word in ("--set", setting)]

Answer = Callable[[dict[str, Any]], str]


def chat(text: str, finish_reason: str = "stop") -> httpx.Response:
    """Return a chat completion."""
    choice = {"index": 0, "finish_reason": finish_reason, "message": {"role": "assistant", "content": text}}
    return httpx.Response(200, json={"id": "1", "object": "chat.completion", "created": 0, "choices": [choice]})


def episode_seed(body: dict[str, Any]) -> int:
    """Return the seed of the episode that a request is part of."""
    found = re.search(r"seed (\d+)", body["messages"][-1]["content"])
    assert found is not None
    return int(found[1])


def model_that(answer: Answer) -> ScriptedModel:
    """Return a model server whose response depends on the request."""
    model = ScriptedModel([])
    model.answer = lambda body: chat(answer(body))
    return model


@pytest.fixture
def evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Evaluates what a model server serves."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")

    def run(model: ScriptedModel, output: str, *arguments: str, environment: str = ENVIRONMENT) -> int:
        with served(model) as url:
            return main(["evaluate", url, "--environment", environment, "--output", output, *OVERRIDES, *arguments])

    return run


def test_a_model_behind_a_chat_endpoint_is_evaluated_with_several_attempts(evaluate, capsys):
    """Odd episodes are solved at every attempt, half of the even ones at some."""

    def answer(body: dict[str, Any]) -> str:
        return "ACTION: win" if episode_seed(body) % 2 or body["seed"] % 3 == 0 else "ACTION: look"

    model = model_that(answer)

    assert evaluate(model, "evaluation", "--episodes", "6", "--samples", "4", "--temperature", "0.7") == 0

    results = read_results(Path("evaluation"))
    assert results is not None
    assert len(results.attempts) == 24
    tasks = results.tasks()
    assert [task.total for task in tasks] == [4] * 6
    assert {task.successes for task in tasks[1::2]} == {4} or {task.successes for task in tasks[::2]} == {4}
    assert list(results.estimates()) == [1, 2, 4]
    shares = [estimate.value for estimate in results.estimates().values()]
    assert shares == sorted(shares)
    assert model.requests[0]["temperature"] == 0.7
    assert {message["role"] for body in model.requests for message in body["messages"]} >= {"system", "user"}
    # Attempts have seeds of their own, and the same in every evaluation.
    assert len({body["seed"] for body in model.requests}) == len(model.requests)
    written = json.loads(Path("evaluation/evaluation.json").read_text())
    assert written["pass_at"]["1"]["value"] == shares[0]
    assert "| pass@4 |" in Path("evaluation/evaluation.md").read_text()
    assert f"pass@1  {shares[0]:.1%} (95 % interval" in capsys.readouterr().out
    assert not any(
        "secret-key" in file.read_text(errors="ignore") for file in Path("evaluation").rglob("*.*") if file.is_file()
    )


def test_evaluations_of_two_models_are_compared_by_their_episodes(evaluate, capsys):
    assert evaluate(model_that(lambda _: "ACTION: look"), "a", "--episodes", "5", "--samples", "2") == 0
    assert evaluate(model_that(lambda body: "ACTION: win"), "b", "--episodes", "5", "--samples", "2") == 0
    capsys.readouterr()

    assert main(["report", "a", "b"]) == 0

    text = capsys.readouterr().out
    assert "| pass@1 | 0.0% (0.0% to 43.4%) | 100.0% (56.6% to 100.0%) | +100.0 points (+38.6 to +100.0) |" in text
    assert evaluate(model_that(lambda body: "ACTION: win"), "c", "--episodes", "2", "--seed", "1") == 0
    capsys.readouterr()
    assert main(["report", "a", "c"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("| other episodes |")
    assert main(["report", "a"]) == 0
    assert main(["trajectories", "a", "--validation"]) == 0


def test_an_evaluation_repeated_asks_the_same(evaluate):
    first, second = (model_that(lambda body: "ACTION: look") for _ in range(2))

    evaluate(first, "a", "--episodes", "3", "--samples", "2")
    evaluate(second, "b", "--episodes", "3", "--samples", "2")

    def asked(model: ScriptedModel) -> list[str]:
        return sorted(json.dumps(body, sort_keys=True) for body in model.requests)

    assert asked(first) == asked(second)


def test_attempts_that_fail_are_no_failures_of_the_model(evaluate, monkeypatch):
    """The endpoint breaks down for one episode: it is reported, and in no estimate."""
    monkeypatch.setattr("turnmill.evaluation.endpoint.MAX_RETRIES", 0)
    model = ScriptedModel([])

    def answer(body: dict[str, Any]) -> httpx.Response:
        if episode_seed(body) == 0:
            return httpx.Response(500, json={"error": {"message": "out of memory"}})
        return chat("ACTION: win")

    model.answer = answer

    assert evaluate(model, "evaluation", "--episodes", "3", "--samples", "2") == 0

    results = read_results(Path("evaluation"))
    assert results is not None
    assert results.failures() == {"inference": 2}
    assert [task.total for task in results.tasks()] == [0, 2, 2]
    assert results.estimates()[1].value == 1.0
    assert "| failed, and in no figure above: inference | 2 |" in Path("evaluation/evaluation.md").read_text()
    failed = [turn for turn in TrajectoryLog(RunFolder("evaluation")).read_turns(validation=True) if turn.failed_cause]
    assert "out of memory" in failed[0].observation


def test_an_overloaded_endpoint_is_asked_again(evaluate):
    model = ScriptedModel([])
    refused: set[str] = set()

    def answer(body: dict[str, Any]) -> httpx.Response:
        key = json.dumps(body)
        if key not in refused:
            refused.add(key)
            return httpx.Response(429, headers={"Retry-After": "0"}, json={"error": {"message": "slow down"}})
        return chat("ACTION: win")

    model.answer = answer

    assert evaluate(model, "evaluation", "--episodes", "2") == 0
    results = read_results(Path("evaluation"))
    assert results is not None
    assert results.failures() == {}


@pytest.mark.parametrize(
    ("status", "told"), [(401, "the key in OPENAI_API_KEY"), (404, "the model's name (--model-name)")]
)
def test_an_endpoint_that_refuses_every_request_ends_the_evaluation(evaluate, capsys, status: int, told: str):
    model = ScriptedModel([])
    model.answer = lambda body: httpx.Response(status, json={"error": {"message": "no such model"}})

    assert evaluate(model, "evaluation", "--episodes", "4") == 2

    message = capsys.readouterr().err
    assert "refuses requests (no such model)" in message
    assert told in message
    assert len(model.requests) <= 4


def test_what_cannot_be_evaluated_is_refused_before_anything_is_asked(evaluate, capsys):
    model = model_that(lambda _: "")

    assert evaluate(model, "a", "--set", "agent.stopTokens=[</python>]", environment="arithmetic") == 2
    message = capsys.readouterr().err
    assert "give its tokenizer's folder with --tokenizer" in message
    assert "Add `--set agent.enableMtrl=true`" in message
    assert main(["evaluate", "http://127.0.0.1:9/v1", "--environment", "babyay"]) == 2
    assert "babyai" in capsys.readouterr().err
    assert main(["evaluate", "http://127.0.0.1:9/v1"]) == 2
    assert "--environment, or a job file with --job" in capsys.readouterr().err
    assert main(["evaluate", "models/none", "--environment", "babyai"]) == 2
    assert "models/none" in capsys.readouterr().err
    Path("runs/trained").mkdir(parents=True)
    Path("runs/trained/job.yaml").touch()
    assert main(["evaluate", "runs/trained", "--environment", "babyai"]) == 2
    assert "Run `turnmill export runs/trained --output FOLDER`" in capsys.readouterr().err
    judged = ["--environment", "dataset", "--set", "environment.options={path: tasks.jsonl, reward: judge}"]
    Path("tasks.jsonl").write_text('{"prompt": "1 + 1?", "answer": "2"}\n' * 2)
    turns = ["--set", "agent.enableMtrl=true", "--set", "rewardModel={path: /m}"]
    assert main(["evaluate", "http://127.0.0.1:9/v1", *judged, *turns]) == 2
    assert "spec.rewardModel: an evaluation serves no second model" in capsys.readouterr().err
    assert model.requests == []


def test_an_endpoint_that_does_not_answer_is_named(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("turnmill.evaluation.endpoint.MAX_RETRIES", 0)

    assert main(["evaluate", "http://127.0.0.1:9/v1", "--environment", ENVIRONMENT, "--episodes", "1"]) == 2

    assert "http://127.0.0.1:9/v1 does not tell its models" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    ["plain", "Grüße 日本 🙂", 'quotes " and \\ and {braces: [1]}', END, f"{MESSAGE}{{}}{RESPONSE}", "\n\t\x01", ""],
)
def test_messages_survive_the_way_through_tokens(text: str):
    tokenizer = MessageTokenizer.create()
    messages = [{"role": "system", "content": text}, {"role": "user", "content": f"{text}{text}"}]

    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    response = tokenizer.response_ids(text, ended=True)

    assert tokenizer.conversation(prompt).messages == messages
    assert tokenizer.decode(response[:-1]) == text
    assert response.count(tokenizer.eos_token_id) == 1
    answered = [*prompt, *response, *tokenizer.encode(RESPONSE)]
    answer = [{"role": "assistant", "content": text}] if text else []
    assert tokenizer.conversation(answered).messages == messages + answer


def test_a_response_that_has_begun_is_no_message():
    tokenizer = MessageTokenizer.create()
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "?"}], add_generation_prompt=True, tokenize=False
    )

    with pytest.raises(SettingsError, match="goes on with a response that has begun"):
        tokenizer.conversation(tokenizer.encode(f"{prompt}<think>"))
