"""Evaluations of agents of every type by an endpoint that takes tokens: `turnmill evaluate URL --tokenizer FOLDER`."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from verl.tools import function_tool

from support.agents import counter_agent, response_text
from support.model_server import served
from support.token_models import Respond, TokenModel
from turnmill.cli.main import main
from turnmill.observability.evaluation import Results, read_results
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog, TurnRecord
from turnmill.testing.agent_loops import END

CALCULATOR = "pkg://turnmill/rollout/multi_turn/example_tools/calculator.py"

ASK = """
import json, os, sys, urllib.request

task = json.load(sys.stdin)
messages = list(task["messages"])
for turn in range(2):
    fields = {"model": os.environ["OPENAI_MODEL"], "messages": messages, "logprobs": True, "max_tokens": 50}
    if turn:
        fields["response_format"] = {"type": "json_object"}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(fields).encode(), headers)) as response:
        choice = json.load(response)["choices"][0]
    assert choice["logprobs"]["content"][0]["logprob"] == -0.5
    messages += [choice["message"], {"role": "user", "content": "sure?"}]
print(json.dumps({"answer": choice["message"]["content"]}))
"""

Evaluate = Callable[..., Results]


def job_with(agent: dict[str, Any], environment: dict[str, Any] | None = None, algorithm: str = "grpo") -> str:
    """Return a job file; its model and steps are those of a training."""
    spec = {
        "model": {"warmStart": {}},
        "agent": agent,
        **({"environment": environment} if environment else {}),
        "algorithm": {"type": algorithm},
        "training": {"steps": 7} | ({"tasksPerStep": 4} if environment else {}),
    }
    job = {"apiVersion": "turnmill.dev/v1alpha1", "kind": "AgentTrainingJob", "metadata": {"name": "a"}, "spec": spec}
    return yaml.safe_dump(job)


MULTI_TURN = {
    "type": "multi_turn", "functionToolPath": CALCULATOR, "maxAssistantTurns": 3, "maxPromptLength": 400,
    "maxResponseLength": 400, "tokenizationSanityCheckMode": "ignore_strippable",
}  # fmt: skip
GRL = {"type": "grl", "agents": [counter_agent()], "validationAgentGroupNum": [5], "validationSeed": 40}


@pytest.fixture
def evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Evaluate:
    """Evaluates what a model server with tokens serves; returns the results in a folder."""
    monkeypatch.chdir(tmp_path)
    # verl keeps the functions that other tests have loaded.
    monkeypatch.setattr(function_tool, "FUNCTION_TOOL_REGISTRY", {})
    monkeypatch.setattr(function_tool, "_LOADED_FUNCTION_TOOL_PATHS", {})

    def run(model: TokenModel, job: str, output: str, *arguments: str) -> Results:
        Path("job.yaml").write_text(job)
        tokenizer = ["--tokenizer", str(model.save(tmp_path / "tokenizer"))]
        with served(model) as url:
            assert main(["evaluate", url, *tokenizer, "--job", "job.yaml", "--output", output, *arguments]) == 0
        results = read_results(Path(output))
        assert results is not None
        assert results.failures() == {}
        return results

    return run


def turns_of(output: str) -> list[TurnRecord]:
    """Return the turns of all attempts, as the page of trajectories reads them."""
    return list(TrajectoryLog(RunFolder(output)).read_turns(validation=True))


def calculates(*, well: bool) -> Respond:
    """Return a policy that calls the function, and then answers with its result, or with another number."""

    def respond(prompt: str, body: dict[str, Any]) -> str:
        if (result := re.search(r"<usr>(-?\d+)<\|im_end\|><ast>$", prompt)) is not None:
            return (f"answer:{result[1]}" if well else "no") + END
        expression = re.findall(r"\d+[-+*]\d+", prompt)[-1]
        arguments = json.dumps({"expression": expression})
        return f'<tool_call>{{"name": "calculator", "arguments": {arguments}}}</tool_call>{END}'

    return respond


def test_verls_agent_loops_are_evaluated_with_their_functions(evaluate: Evaluate, capsys: pytest.CaptureFixture[str]):
    job = job_with(MULTI_TURN, {"name": "calculator"})
    good, bad = TokenModel(calculates(well=True)), TokenModel(calculates(well=False))

    results = evaluate(good, job, "good", "--episodes", "4", "--samples", "2", "--temperature", "0.5")
    evaluate(bad, job, "bad", "--episodes", "4", "--samples", "2")

    assert [attempt.success for attempt in results.attempts] == [True] * 8
    assert {(attempt.num_turns, attempt.stop_reason) for attempt in results.attempts} == {(2, "completed")}
    assert {body["temperature"] for body in good.requests} == {0.5}
    assert len({body["seed"] for body in good.requests}) == 16
    turns = turns_of("good")
    assert len({turn.episode for turn in turns}) == 8
    assert {turn.action for turn in turns} == {"calculator", ""}
    assert all(turn.response_ids for turn in turns)
    capsys.readouterr()
    assert main(["report", "bad", "good"]) == 0
    assert "| pass@1 | 0.0% (0.0% to 49.0%) | 100.0% (51.0% to 100.0%) | +100.0 points" in capsys.readouterr().out


def test_loops_that_set_no_limit_have_that_of_verls_engines(evaluate: Evaluate):
    model = TokenModel(lambda prompt, body: f"1{END}")
    agent = MULTI_TURN | {"defaultAgentLoop": "single_turn_agent", "maxPromptLength": 32, "maxResponseLength": 60}

    results = evaluate(model, job_with(agent, {"name": "calculator"}), "a", "--episodes", "2")

    assert [attempt.num_turns for attempt in results.attempts] == [1, 1]
    assert {body["max_tokens"] for body in model.requests} == {60}


def test_a_folder_with_a_tokenizer_alone_does(evaluate: Evaluate, tmp_path: Path):
    model = TokenModel(calculates(well=True))
    model.save = lambda folder: (model.tokenizer.save_pretrained(folder), folder)[1]  # type: ignore[method-assign]

    results = evaluate(model, job_with(MULTI_TURN, {"name": "calculator"}), "a", "--episodes", "1")

    assert results.attempts[0].success


def test_settings_of_verl_are_those_of_training(evaluate: Evaluate):
    job = yaml.safe_load(job_with(MULTI_TURN, {"name": "calculator"}))
    tool = {"type": "tool", "enableAgent": False, "maxPromptLength": 400}
    verl = {
        "data.apply_chat_template_kwargs": {"style": "brief"},
        "actor_rollout_ref.rollout.val_kwargs.top_p": 0.5,
    }
    models = [TokenModel(lambda prompt, body: f"1{END}") for _ in range(2)]

    for model, agent in zip(models, (MULTI_TURN, tool), strict=True):
        template = model.tokenizer.chat_template + "{{- style or '' }}"
        model.tokenizer.chat_template = template
        job["spec"] |= {"agent": agent, "verl": verl}
        evaluate(model, yaml.safe_dump(job), str(agent["type"]), "--episodes", "1")

    assert [model.prompts[0][-5:] for model in models] == ["brief"] * 2
    assert [model.requests[0]["top_p"] for model in models] == [0.5] * 2


def test_grls_agents_play_one_episode_from_the_state_of_every_group(
    evaluate: Evaluate, capsys: pytest.CaptureFixture[str]
):
    """The first turn has a penalty, and the second ends the episode; agents of odd seeds give up."""

    def respond(prompt: str, body: dict[str, Any]) -> str:
        if "Turn 2:" not in prompt:
            return "no" + END
        seed = int(re.findall(r"of seed (\d+)", prompt)[0])
        return response_text("3" if seed % 2 == 0 else "1") + END

    model = TokenModel(respond)

    results = evaluate(model, job_with(GRL, algorithm="ppo"), "all", "--samples", "2")

    assert (results.episodes, results.seed, results.environment) == (5, 40, "counter")
    assert [attempt.success for attempt in results.attempts] == [True, True, False, False] * 2 + [True, True]
    assert [attempt.reward for attempt in results.attempts][:2] == [2.9, 2.9]
    assert sorted({turn.seed for turn in turns_of("all")}) == [40, 41, 42, 43, 44]
    assert len({turn.episode for turn in turns_of("all")}) == 10
    some = evaluate(model, job_with(GRL, algorithm="ppo"), "some", "--episodes", "2", "--seed", "50")
    assert (len(some.attempts), {turn.seed for turn in turns_of("some")}) == (2, {50, 51})
    capsys.readouterr()
    assert main(["report", "all", "some"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("| other episodes |")
    assert "agent `grl`" in Path("all/evaluation.md").read_text()


def test_programs_are_evaluated_behind_a_gateway(evaluate: Evaluate, tmp_path: Path):
    def respond(prompt: str, body: dict[str, Any]) -> str:
        return ('{"sure": true}' if "sure?" in prompt else "perhaps") + END

    (tmp_path / "agent.py").write_text(ASK)
    agent = {"type": "harness", "command": [sys.executable, str(tmp_path / "agent.py")], "maxTurns": 4}
    model = TokenModel(respond)

    results = evaluate(model, job_with(agent, {"name": "arithmetic"}), "a", "--episodes", "3", "--samples", "2")

    assert {(attempt.num_turns, attempt.stop_reason) for attempt in results.attempts} == {(2, "completed")}
    assert {body["max_tokens"] for body in model.requests} == {50}
    structured = [body["structured_outputs"] for body in model.requests if "structured_outputs" in body]
    assert structured == [{"json_object": True}] * 6
    turns = turns_of("a")
    assert len({turn.episode for turn in turns}) == 6
    assert [turn.response for turn in turns][:2] == [f"perhaps{END}", f'{{"sure": true}}{END}']


@pytest.mark.parametrize(
    ("agent", "arguments", "told"),
    [
        (GRL, ["--episodes", "6"], "--episodes (6) must be at most the number of groups in a validation (5)"),
        (MULTI_TURN | {"toolConfigPath": "none.yaml"}, [], "spec.agent.toolConfigPath: 'none.yaml' is not a file"),
        (GRL | {"validationRewardFunction": "math:sqrt"}, [], "`turnmill run JOB.yaml --evaluate`"),
        ({"type": "harness", "entryPoint": "none.py:play"}, [], "spec.agent.entryPoint"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_anything_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    agent: dict[str, Any], arguments: list[str], told: str,
):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    environment, algorithm = (None, "ppo") if agent["type"] == "grl" else ({"name": "calculator"}, "grpo")
    Path("job.yaml").write_text(job_with(agent, environment, algorithm))
    model = TokenModel(lambda prompt, body: "")
    folder = model.save(tmp_path / "tokenizer")

    with served(model) as url:
        assert main(["evaluate", url, "--tokenizer", str(folder), "--job", "job.yaml", *arguments]) == 2

    assert told in capsys.readouterr().err
    assert model.requests == []
    assert not Path("runs").exists()
