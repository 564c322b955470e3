"""An agent of type `harness` whose functions are the tools of an OpenEnv environment."""

import json
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from support.models import model_without_weights
from support.openenv_servers import Vault, error, observation, served
from turnmill.cli.main import main
from turnmill.core.errors import SettingsError
from turnmill.core.seeds import VALIDATION_SEEDS
from turnmill.core.trajectory import EpisodeFailure
from turnmill.observability.run_folder import RunFolder
from turnmill.openenv import agent
from turnmill.rollout.harness.episode import EpisodeResult
from turnmill.rollout.harness.loop import HarnessLoop
from turnmill.tasks import Answer, create_source
from turnmill.testing.agent_loops import END, SAMPLING, job_of
from turnmill.testing.policies import Script, ScriptedPolicy, character_tokenizer

PAGE = Path(__file__).parents[2] / "docs" / "openenv.md"
SOURCE = "turnmill.openenv.tasks:OpenEnvTasks"

TOKENIZER = character_tokenizer()
# The tiny model's template leaves out the functions.
TOKENIZER.chat_template = "{{ (tools or []) | tojson }}" + str(TOKENIZER.chat_template)

Begin = Callable[..., HarnessLoop]


def call(name: str, **arguments: Any) -> str:
    """Return a response of the policy that calls a tool."""
    return f'<tool_call>{{"name": "{name}", "arguments": {json.dumps(arguments)}}}</tool_call>{END}'


@pytest.fixture
async def begin(tmp_path: Path) -> AsyncIterator[Begin]:
    loops: list[HarnessLoop] = []

    def create(
        url: str, script: Script, settings: dict[str, object] | None = None, source: str = SOURCE, **options: object
    ) -> HarnessLoop:
        run_dir = tmp_path / f"run{len(loops)}"
        RunFolder(run_dir).create()
        harness = {"type": "harness", "entryPoint": "turnmill.openenv:play", "reward": "program", "groupSize": 2}
        lengths = {"maxPromptLength": 4096, "maxResponseLength": 4096}
        if source == SOURCE:
            options = {"url": url, "observationField": "metadata.question"} | options
        environment = {"name": source, "options": options}
        job = job_of(harness | lengths | (settings or {}), environment, algorithm={"type": "grpo"}, tasksPerStep=1)
        policy = ScriptedPolicy(TOKENIZER, script)
        loops.append(HarnessLoop(server_manager=policy, tokenizer=TOKENIZER, job=job, run_dir=run_dir))
        return loops[-1]

    yield create
    for loop in loops:
        await loop.close()


async def play(loop: HarnessLoop, **row: Any) -> EpisodeResult | EpisodeFailure:
    return await loop.run(SAMPLING, **({"index": 0, "session_id": 0, "global_steps": 1} | row))


async def played(loop: HarnessLoop, **row: Any) -> EpisodeResult:
    result = await play(loop, **row)
    assert isinstance(result, EpisodeResult), result
    return result


async def failed(loop: HarnessLoop) -> EpisodeFailure:
    result = await play(loop)
    assert isinstance(result, EpisodeFailure), result
    return result


def prompts(loop: HarnessLoop) -> list[str]:
    policy = loop.client
    assert isinstance(policy, ScriptedPolicy)
    return [request.prompt for request in policy.requests]


def secret_digit(url: str) -> int:
    """Return the digit that opens the vault of the first task."""
    task = create_source(SOURCE, {"url": url}).training(0)
    return int(task.extra_info["openenv"]["reset"]["seed"]) % 10


async def test_the_policy_calls_tools_and_the_environment_rewards(begin: Begin):
    vault = Vault()
    with served(vault) as url:
        script = [call("look"), call("wait"), call("open", digit=secret_digit(url))]
        loop = begin(url, script, instruction="Open the vault.")

        result = await played(loop)

    assert (result.summary.reward, result.summary.num_turns, result.summary.stop_reason) == (1.0, 3, "completed")
    first, second, third = prompts(loop)
    assert '"name": "open"' in first
    assert "Open the vault.\n\nWhich digit opens it?" in first
    assert second.rpartition("</tool_call>")[2].count("a lock, bare eyes") == 1
    assert '{"minutes": 5}' in third.rpartition("</tool_call>")[2]
    assert [message["type"] for message in vault.sessions[0]] == ["reset", "mcp", "step", "step", "step", "close"]
    assert vault.sessions[0][2]["data"] == {"type": "call_tool", "tool_name": "look", "arguments": {}}


async def test_a_group_has_one_seed_and_validations_have_others(begin: Begin):
    vault = Vault()
    with served(vault) as url:
        loop = begin(url, [f"no{END}"] * 4, reset={"level": 3})
        for row in ({}, {"session_id": 1}, {"index": 1}, {"validate": True, "global_steps": 0}):
            await played(loop, **row)

    resets = [messages[0]["data"] for messages in vault.sessions]
    assert [reset["level"] for reset in resets] == [3] * 4
    one, other, next_task, validation = (reset["seed"] for reset in resets)
    assert one == other != next_task
    assert min(one, next_task) >= VALIDATION_SEEDS > validation


@pytest.mark.parametrize(("reward", "expected"), [("last", -0.1), ("total", -0.2)])
async def test_the_reward_is_the_last_or_the_sum(begin: Begin, reward: str, expected: float):
    with served(Vault()) as url:
        result = await played(begin(url, [call("look"), call("look"), call("wait"), f"no idea{END}"], reward=reward))

    assert result.summary.reward == pytest.approx(expected)
    assert result.summary.num_turns == 4


async def test_the_limit_of_turns_leaves_the_reward(begin: Begin):
    with served(Vault()) as url:
        result = await played(begin(url, [call("look"), call("look")], {"maxTurns": 2}, reward="total"))

    assert (result.summary.reward, result.summary.num_turns) == (pytest.approx(-0.2), 2)


async def test_a_full_conversation_leaves_the_reward(begin: Begin):
    with served(Vault()) as url:
        loop = begin(url, [call("look", **{"with": "x" * 3000})] * 3, {"maxResponseLength": 1024})

        result = await played(loop)

    assert (result.summary.reward, result.summary.num_turns) == (-0.1, 1)


async def test_an_answer_without_a_call_has_the_reward_of_the_reset_or_none(begin: Begin):
    with served(Vault()) as url, served(Vault(0.5)) as rewarding:
        assert (await played(begin(url, [f"no{END}"]))).summary.reward == 0.0
        assert (await played(begin(rewarding, [f"no{END}"]))).summary.reward == 0.5


async def test_a_wrong_call_is_the_policys_to_mend(begin: Begin):
    vault = Vault()
    with served(vault) as url:
        no_object = f'<tool_call>{{"name": "look", "arguments": [1]}}</tool_call>{END}'
        loop = begin(url, [no_object, call("dig"), f"no{END}"])

        await played(loop)

    _, second, third = prompts(loop)
    assert "Error: the arguments are no JSON object." in second
    assert "Error: Unknown tool: dig" in third
    assert [message["type"] for message in vault.sessions[0]].count("step") == 1


async def test_calls_after_the_end_are_not_sent(begin: Begin):
    vault = Vault()
    with served(vault) as url:
        both = call("open", digit=-1).removesuffix(END) + call("look")

        result = await played(begin(url, [both]))

    assert (result.summary.reward, result.summary.num_turns) == (0.0, 1)
    assert [message["type"] for message in vault.sessions[0]].count("step") == 1


async def test_a_lost_session_fails_the_trajectory_whatever_reward_it_had(begin: Begin):
    with served(Vault(0.5)) as url:
        failure = await failed(begin(url, [call("look"), call("burst")]))

    assert failure.cause == "harness"
    assert "connection to the OpenEnv server failed during a step" in failure.message
    assert "The session is lost" in failure.message


async def test_a_tool_that_the_environment_does_not_reach_fails_the_trajectory(begin: Begin):
    with served(Vault(0.5)) as url:
        failure = await failed(begin(url, [call("phone"), f"no{END}"]))

    assert "The environment did not reach a tool: Unknown tool: phone" in failure.message


async def test_an_error_of_the_server_fails_the_trajectory(begin: Begin):
    def broken(connection: Any) -> None:
        for raw in connection:
            kind = json.loads(raw)["type"]
            tools = {"type": "mcp", "data": {"result": {"tools": [{"name": "look"}]}}}
            replies = {"reset": observation({"metadata": {"question": "?"}}, 1.0), "mcp": tools}
            connection.send(json.dumps(replies.get(kind, error("the disk is full", "EXECUTION_ERROR"))))

    with served(broken) as url:
        failure = await failed(begin(url, [call("look"), f"no{END}"]))

    assert failure.cause == "harness"
    assert "refused a step: EXECUTION_ERROR the disk is full" in failure.message


async def test_an_environment_without_tools_is_reported_with_the_way_out(begin: Begin):
    def without_tools(connection: Any) -> None:
        for raw in connection:
            rpc = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32603, "message": "Environment does not support MCP"}}
            is_reset = json.loads(raw)["type"] == "reset"
            connection.send(json.dumps(observation({}) if is_reset else {"type": "mcp", "data": rpc}))

    with served(without_tools) as url:
        failure = await failed(begin(url, [f"no{END}"], observationField=None))

    assert "lists no tools: -32603 Environment does not support MCP" in failure.message
    assert "take type verlog" in failure.message


async def test_rows_of_a_data_set_name_server_and_reset(begin: Begin, tmp_path: Path):
    vault = Vault()
    with served(vault) as url:
        info = {"openenv": {"url": url, "reset": {"seed": 7}}}
        rows = [json.dumps({"prompt": "Open it.", "extra_info": info})] * 2
        (tmp_path / "rows.jsonl").write_text("\n".join(rows))

        loop = begin(url, [call("open", digit=7)], source="dataset", path=str(tmp_path / "rows.jsonl"))

        assert (await played(loop)).summary.reward == 1.0
    assert vault.sessions[0][0]["data"] == {"seed": 7}


async def test_tasks_without_a_server_are_reported_with_the_way_out(begin: Begin):
    failure = await failed(begin("", [f"no{END}"], source="arithmetic"))

    assert "Take turnmill.openenv.tasks:OpenEnvTasks" in failure.message


def test_the_job_of_the_page_passes_its_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    jobs = re.findall(r"```yaml\n(apiVersion.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "job.yaml").write_text(
        jobs[0].replace("/models/Qwen3-4B", str(model_without_weights(tmp_path / "model")))
    )

    assert main(["check", str(tmp_path / "job.yaml")]) == 0, capsys.readouterr().err


@pytest.fixture
def statuses(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A gateway that answers with these statuses, one after the other; what is left has not been asked for."""
    left: list[int] = []

    class Gateway(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(left.pop(0))
            self.end_headers()
            self.wfile.write(b'{"choices": [{"message": {"content": "hi"}}], "error": {"code": "unavailable"}}')

    monkeypatch.setattr(agent, "PAUSES_SECONDS", (0.01, 0.01))
    with ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        monkeypatch.setenv("OPENAI_MODEL", "policy")
        yield left
        server.shutdown()


def test_an_engine_that_is_away_for_a_moment_is_asked_again(statuses: list[int]):
    statuses += [503, 503, 200]

    assert agent.complete([], []) == {"content": "hi"}


@pytest.mark.parametrize("answers", [[503, 503, 503, 200], [400, 200]])
def test_a_request_that_stays_refused_fails(statuses: list[int], answers: list[int]):
    statuses += answers

    with pytest.raises(HTTPError):
        agent.complete([], [])
    assert statuses == [200]


def test_a_job_that_rewards_by_the_task_is_told_to_take_the_programs_reward():
    source = create_source(SOURCE, {"url": "http://127.0.0.1:1"})

    with pytest.raises(SettingsError, match=r"Set agent\.reward: program"):
        source.reward(source.training(0), Answer("", "", ""))
