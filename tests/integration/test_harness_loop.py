"""Agents that are programs: each is started for one trajectory, and asks the policy over HTTP."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web

from turnmill.core.errors import InferenceError
from turnmill.core.http_connections import listen
from turnmill.core.ports import free_port
from turnmill.core.trajectory import EpisodeFailure
from turnmill.jobs import AgentTrainingJob
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog
from turnmill.rollout.episode_id import EpisodeId
from turnmill.rollout.harness import service
from turnmill.rollout.harness.episode import EpisodeResult
from turnmill.rollout.harness.loop import HarnessLoop
from turnmill.rollout.journal import Journal, StoreJournal
from turnmill.rollout.rows import episode_rows
from turnmill.rollout.token_integrity import count_unsampled_tokens
from turnmill.tasks import Answer
from turnmill.testing.agent_loops import END, SAMPLING, TOKENIZER, job_of
from turnmill.testing.policies import Request, Script, ScriptedPolicy
from turnmill.training.sft.run_rows import chosen_episodes, trajectory_rows
from turnmill.trajectories.embedded import EmbeddedStore
from turnmill.trajectories.journal import TrajectoryJournal

ASK = """
import json, os, sys, time, urllib.request

task = json.load(sys.stdin)


def ask(messages, path="/chat/completions", key=os.environ["OPENAI_API_KEY"]):
    body = json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": messages}).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, body, headers)
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]["content"]


messages = list(task["messages"])
"""

THREE_TURNS = (
    ASK
    + """
for turn in range(3):
    text = ask(messages)
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"and {turn}?"}]
print("some words")
print(json.dumps({"reward": 0.25, "answer": text}))
"""
)

OPENAI = """
import json
import sys

import openai

task = json.load(sys.stdin)
client = openai.OpenAI()
parameters = {"type": "object", "properties": {"expression": {"type": "string"}}}
tools = [{"type": "function", "function": {"name": "calculator", "parameters": parameters}}]
messages = task["messages"]
while True:
    message = client.chat.completions.create(model="policy", messages=messages, tools=tools).choices[0].message
    messages.append(message)
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        result = str(eval(json.loads(call.function.arguments)["expression"]))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
print(json.dumps({"answer": message.content}))
"""

Begin = Callable[..., HarnessLoop]


@pytest.fixture
async def begin(tmp_path: Path) -> AsyncIterator[Begin]:
    loops: list[HarnessLoop] = []

    def create(
        program: str, script: Script = (f"one{END}", f"two{END}", f"three{END}"), *, journal: Journal | None = None,
        **agent: Any,
    ) -> HarnessLoop:  # fmt: skip
        (tmp_path / "agent.py").write_text(program)
        run_dir = tmp_path / f"run{len(loops)}"
        RunFolder(run_dir).create()
        loops.append(
            HarnessLoop(
                server_manager=ScriptedPolicy(TOKENIZER, script),
                tokenizer=TOKENIZER,
                job=job(tmp_path / "agent.py", **agent),
                run_dir=run_dir,
                journal=journal,
            )
        )
        return loops[-1]

    yield create
    for loop in loops:
        await loop.close()


def job(program: Path, **agent: Any) -> AgentTrainingJob:
    settings = {"type": "harness", "command": ["{python}", str(program)], "groupSize": 2} | agent
    settings = {name: value for name, value in settings.items() if value is not None}
    return job_of(settings, {"name": "arithmetic"}, algorithm={"type": "grpo"}, tasksPerStep=1)


async def play(loop: HarnessLoop, **row: Any) -> EpisodeResult | EpisodeFailure:
    return await loop.run(SAMPLING, **({"index": 0, "session_id": 0, "global_steps": 1} | row))


async def played(loop: HarnessLoop, **row: Any) -> EpisodeResult:
    result = await play(loop, **row)
    assert isinstance(result, EpisodeResult), result
    return result


async def failed(loop: HarnessLoop, **row: Any) -> EpisodeFailure:
    result = await play(loop, **row)
    assert isinstance(result, EpisodeFailure), result
    return result


async def test_a_programs_conversation_is_one_row_with_its_reward(begin: Begin):
    loop = begin(THREE_TURNS, reward="program")

    result = await played(loop)

    (row,) = result.rows
    assert TOKENIZER.decode(row.response.ids) == f"one{END}<usr>and 0?{END}<ast>two{END}<usr>and 1?{END}<ast>three{END}"
    assert (result.summary.reward, result.summary.stop_reason, result.summary.num_turns) == (0.25, "completed", 3)
    (verl_row,) = episode_rows(result.rows, result.summary)
    assert count_unsampled_tokens([(verl_row.response_ids, verl_row.response_mask)], result.summary.sampled_tokens) == 0
    assert sum(verl_row.response_mask) == len("one" + "two" + "three") + 3
    metrics = result.summary.metrics
    assert metrics["traj_actions_length"] == len("one" + "two" + "three") + 3
    # What the program added, in its turn of the chat: both have eight characters with their tags.
    assert metrics["traj_obs_length"] == len(row.response) - metrics["traj_actions_length"]
    # The mean of the three responses.
    assert metrics["per_action_length"] == metrics["traj_actions_length"] / 3
    records = list(TrajectoryLog(loop.folder).read_turns(validation=False))
    assert [record.response for record in records] == [f"one{END}", f"two{END}", f"three{END}"]
    assert [record.done for record in records] == [False, False, True]
    assert (records[-1].reward, records[-1].stop_reason) == (0.25, "completed")


async def test_a_script_with_the_openai_package_calls_its_tool_and_the_task_rewards_its_answer(begin: Begin):
    def script(request: Request) -> str:
        question = request.prompt.partition("=?")[0].rpartition(">")[2]
        if f"{END}<usr>" in request.prompt:
            return "answer:" + request.prompt.rpartition("<usr>")[2].partition(END)[0] + END
        arguments = json.dumps({"expression": question})
        return f'<tool_call>{{"name": "calculator", "arguments": {arguments}}}</tool_call>{END}'

    result = await played(begin(OPENAI, script))

    assert (result.summary.reward, result.summary.num_turns, len(result.rows)) == (1.0, 2, 1)


FUNCTIONS = (
    ASK.replace("task = json.load(sys.stdin)\n", "").replace('messages = list(task["messages"])\n', "")
    + """

def whole(task):
    print("some words")
    return {"reward": 0.25, "answer": ask(task["messages"])}


async def number(task):
    ask(task["messages"])
    return 1


def text(task):
    return ask(task["messages"]) and task["prompt"]


def nothing(task):
    ask(task["messages"])


def wrong(task):
    ask(task["messages"])
    return [1.0]
"""
)


@pytest.mark.parametrize(("function", "reward"), [("whole", 0.25), ("number", 1.0)])
async def test_a_function_is_called_with_the_task_and_returns_the_result(
    begin: Begin, tmp_path: Path, function: str, reward: float
):
    entry_point = f"{tmp_path / 'agent.py'}:{function}"

    result = await played(begin(FUNCTIONS, command=None, entryPoint=entry_point, reward="program"))

    assert (result.summary.reward, result.summary.stop_reason, result.summary.num_turns) == (reward, "completed", 1)
    assert result.detail == "exited"


@pytest.mark.parametrize("python", [None, sys.executable])
async def test_a_function_of_a_module_is_found_as_others_of_the_job_are(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str | None
):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "program.py").write_text(FUNCTIONS)
    settings = {"command": None, "entryPoint": "program:number", "python": python, "reward": "program"}

    if python is None:
        assert (await played(begin(FUNCTIONS, **settings))).summary.reward == 1.0
    else:
        # An interpreter of its own has modules of its own.
        assert "No module named 'program'" in (await failed(begin(FUNCTIONS, **settings))).message
        variables = {"PYTHONPATH": str(tmp_path)}
        assert (await played(begin(FUNCTIONS, **settings, variables=variables))).summary.reward == 1.0


async def test_numbers_that_a_program_gives_as_metrics_are_metrics(begin: Begin):
    given = '{"accuracy": 0.5, "right": true, "note": "well", "a/b": 1, "far": 1e999}'
    loop = begin(ASK + f'ask(messages)\nprint(\'{{"reward": 1, "metrics": {given}}}\')', reward="program")

    metrics = (await played(loop)).summary.metrics

    assert {name: value for name, value in metrics.items() if name.startswith("result_")} == {
        "result_accuracy": 0.5,
        "result_right": 1.0,
    }


async def test_a_functions_text_is_the_answer_that_is_rewarded(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    loop = begin(FUNCTIONS, command=None, entryPoint=f"{tmp_path / 'agent.py'}:text")
    task = loop.sources.task(EpisodeId(1, 0, 0, validate=False))
    rewarded: list[Answer] = []
    monkeypatch.setattr(
        type(loop.sources.training), "reward", lambda source, task, answer: rewarded.append(answer) or 0.5
    )

    result = await played(loop)

    assert result.summary.reward == 0.5
    assert [answer.last for answer in rewarded] == [task.messages[-1]["content"]]


@pytest.mark.parametrize(
    ("function", "message"),
    [("nothing", "no JSON object"), ("wrong", "returned a list"), ("missing", "has no attribute 'missing'")],
)
async def test_a_function_that_gives_no_reward_fails_its_trajectory(
    begin: Begin, tmp_path: Path, function: str, message: str
):
    entry_point = f"{tmp_path / 'agent.py'}:{function}"

    failure = await failed(begin(FUNCTIONS, command=None, entryPoint=entry_point, reward="program"))

    assert failure.cause == "harness"
    assert message in failure.message


# ---- services ----


Serve = Callable[[Callable[[web.Request], Awaitable[web.StreamResponse]]], Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    runners: list[web.AppRunner] = []

    async def start(handle: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> str:
        app = web.Application()
        app.router.add_post("/play", handle)
        runner = web.AppRunner(app, handler_cancellation=True)
        runners.append(runner)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}/play"

    yield start
    for runner in runners:
        await runner.cleanup()


async def ask_gateway(task: Mapping[str, Any], messages: Sequence[Any], path: str = "/v1/chat/completions") -> str:
    gateway = task["gateway"]
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {gateway['key']}"}) as session:
        body = {"model": gateway["model"], "messages": messages}
        async with session.post(gateway["url"] + path, json=body) as response:
            response.raise_for_status()
            return str((await response.json())["choices"][0]["message"]["content"])


async def test_a_service_plays_a_trajectory_for_a_request(begin: Begin, serve: Serve):
    tasks = []

    async def play_task(request: web.Request) -> web.Response:
        task = await request.json()
        tasks.append(task)
        messages = task["messages"]
        for turn in range(3):
            text = await ask_gateway(task, messages)
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"and {turn}?"}]
        return web.Response(text=json.dumps({"reward": 0.25, "answer": text}, indent=2))

    loop = begin("", command=None, url=await serve(play_task), reward="program")
    result = await played(loop)

    (row,) = result.rows
    assert TOKENIZER.decode(row.response.ids) == f"one{END}<usr>and 0?{END}<ast>two{END}<usr>and 1?{END}<ast>three{END}"
    assert (result.summary.reward, result.summary.stop_reason, result.detail) == (0.25, "completed", "exited")
    (task,) = tasks
    assert task["prompt"] == loop.sources.task(EpisodeId(1, 0, 0, validate=False)).messages[-1]["content"]
    assert "truth" not in task
    with pytest.raises(aiohttp.ClientResponseError, match="401"):
        await ask_gateway(task, task["messages"])


async def test_a_service_whose_trajectory_is_over_is_told_so(begin: Begin, serve: Serve):
    ended = asyncio.Event()

    async def go_on(request: web.Request) -> web.Response:
        task = await request.json()
        try:
            for number in range(2):
                await ask_gateway(task, [{"role": "user", "content": str(number)}])
            await asyncio.sleep(60)
        except (asyncio.CancelledError, aiohttp.ClientError):
            ended.set()
            raise
        return web.json_response({})

    url = await serve(go_on)
    limited = await played(begin("", command=None, url=url, maxTurns=1))
    async with asyncio.timeout(10):
        await ended.wait()
    ended.clear()
    late = await failed(begin("", command=None, url=url, timeoutSeconds=0.5))
    async with asyncio.timeout(10):
        await ended.wait()
    rewarded = await played(begin("", command=None, url=url, timeoutSeconds=0.5, onTimeout="reward"))

    assert (limited.summary.stop_reason, limited.summary.num_turns) == ("max_turns", 1)
    assert "took more than 0.5 s" in late.message
    assert (rewarded.summary.stop_reason, rewarded.summary.num_turns) == ("timeout", 2)


async def test_a_service_that_fails_fails_its_trajectory(begin: Begin, serve: Serve, monkeypatch: pytest.MonkeyPatch):
    async def break_down(request: web.Request) -> web.Response:
        return web.Response(status=503, text="no agent is free")

    async def break_connection(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    monkeypatch.setattr(service, "CONNECT_SECONDS", 0.2)
    ports = range(port := free_port(), port + 1)
    monkeypatch.setattr(service, "PAUSE_SECONDS", 0.01)
    for url, message in (
        (await serve(break_down), "ended with 503 and asked the policy for nothing: no agent is free"),
        (await serve(break_connection), "broke the connection"),
        (f"http://127.0.0.1:{free_port()}/play", "nothing listens"),
        ("http://turnmill.invalid/play", "no way from here to turnmill.invalid"),
    ):
        failure = await failed(begin("", command=None, url=url))
        assert (failure.cause, failure.num_turns) == ("harness", 0)
        assert message in failure.message
    monkeypatch.setattr(service, "PORTS", ports)
    with listen("127.0.0.1", port):
        failure = await failed(begin("", command=None, url="http://127.0.0.1:9/play"))
    assert f"the ports {port} to {port} of 127.0.0.1 are all taken" in failure.message


def test_the_teams_policy_opens_the_ports_of_gateways():
    policies = Path(__file__).parents[2] / "charts" / "turnmill-team" / "templates" / "network-policies.yaml"

    assert f"port: {service.PORTS[0]}, endPort: {service.PORTS[-1]}, protocol: TCP" in policies.read_text()


async def test_branches_of_a_program_are_rows_and_counted(begin: Begin):
    program = (
        ASK
        + """
text = ask(messages)
messages += [{"role": "assistant", "content": text}]
ask([*messages, {"role": "user", "content": "this?"}])
ask([*messages, {"role": "user", "content": "or that?"}])
"""
    )
    loop = begin(program)
    result = await played(loop)

    assert len(result.rows) == 2
    assert (result.summary.metrics["branches"], result.summary.metrics["branches_sibling"]) == (1, 1)
    assert sum(sum(row.response.mask) for row in result.rows) == len(result.summary.sampled_tokens) // 4
    # A fine-tuning on the log has the rows that the training had.
    loop.folder.write_job("spec: {agent: {type: harness}}")
    logged = trajectory_rows(loop.folder.path, chosen_episodes(loop.folder.path, 0.0, "fromRun"))
    trained = {(*row.prompt_ids, *row.response.ids): sum(row.response.mask) for row in result.rows}
    assert {row.ids: sum(row.mask) for row in logged} == trained


@pytest.mark.parametrize(
    ("program", "agent", "message"),
    [
        ("", {}, "asked the policy for nothing"),
        ("import sys\nsys.exit('no such module')", {}, "no such module"),
        (ASK + "ask(messages)\nprint('{}')", {"reward": "program"}, "no JSON object with a number `reward`"),
        (ASK + "ask(messages)\ntime.sleep(60)", {"timeoutSeconds": 2}, "more than 2 s"),
    ],
)
async def test_a_program_that_cannot_be_rewarded_fails_its_trajectory(
    begin: Begin, program: str, agent: dict[str, Any], message: str
):
    failure = await failed(begin(program, **agent))

    assert failure.cause == "harness"
    assert message in failure.message


async def test_a_program_that_does_not_exist_fails_its_trajectory(begin: Begin):
    failure = await failed(begin("", command=["/no/such/program"]))

    assert "'/no/such/program' cannot be started" in failure.message


async def test_an_engine_that_fails_fails_the_trajectory_of_a_program_that_gives_up(begin: Begin):
    loop = begin(ASK + "ask(messages)", script=[""])

    failure = await failed(loop)

    assert failure.cause == "inference"


async def test_a_program_out_of_time_may_be_rewarded_for_what_it_had(begin: Begin):
    loop = begin(ASK + "ask(messages)\ntime.sleep(60)", timeoutSeconds=2, onTimeout="reward")

    result = await played(loop)

    assert (result.summary.stop_reason, result.summary.num_turns) == ("timeout", 1)


async def test_the_turn_limit_ends_a_program(begin: Begin):
    loop = begin(ASK + "for turn in range(9):\n    ask([{'role': 'user', 'content': str(turn)}])", maxTurns=2)

    result = await played(loop)

    assert (result.summary.stop_reason, result.summary.num_turns) == ("max_turns", 2)


async def test_a_program_gets_neither_secrets_nor_the_answer(begin: Begin, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    program = (
        ASK
        + """
ask(messages)
print(json.dumps({"reward": 1, "seen": [sorted(os.environ), sorted(task), os.listdir()]}))
"""
    )
    seen: list[Any] = []
    loop = begin(program, reward="program", variables={"MINE": "1"})
    program_reward = loop._reward

    async def spy(episode: Any, ended: Any) -> float:
        seen.extend(ended.result["seen"])
        return await program_reward(episode, ended)

    monkeypatch.setattr(loop, "_reward", spy)

    await played(loop)

    environment, task, files = seen
    assert "WANDB_API_KEY" not in environment
    assert {"MINE", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "HOME"} <= set(environment)
    assert (task, files) == (["info", "maxTurns", "messages", "number", "prompt"], [])


async def test_children_that_a_program_leaves_are_ended(begin: Begin, tmp_path: Path):
    pid_file = tmp_path / "pid"
    program = (
        ASK
        + f"""
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(pid_file)!r}, "w").write(str(child.pid))
ask(messages)
"""
    )
    await played(begin(program))

    pid = int(pid_file.read_text())
    for _ in range(500):
        if not is_running(pid):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{pid} runs")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_key_is_of_no_use_after_its_program(begin: Begin, tmp_path: Path):
    program = (
        ASK
        + f"""
open({str(tmp_path / "key")!r}, "w").write(os.environ["OPENAI_API_KEY"])
ask(messages)
"""
    )
    loop = begin(program)
    await played(loop)
    late = (
        ASK
        + f"""
try:
    ask(messages, key=open({str(tmp_path / "key")!r}).read())
except urllib.error.HTTPError as error:
    assert error.code == 401
    ask(messages)
"""
    )
    (tmp_path / "agent.py").write_text(late)

    result = await played(loop, session_id=1)

    assert result.summary.num_turns == 1


async def test_a_closed_loop_has_no_gateway(begin: Begin):
    loop, unused = begin(THREE_TURNS), begin(THREE_TURNS)
    await played(loop)
    address = urlsplit(loop._serve().url)

    await loop.close()
    await unused.close()

    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(address.hostname, address.port)


@pytest.fixture(scope="module")
def store():
    with EmbeddedStore() as store:
        yield store


async def test_recorded_answers_are_served_to_the_program_that_starts_again(
    begin: Begin, store: EmbeddedStore, tmp_path: Path
):
    crashed = asyncio.Event()

    def crash(request: Request) -> str:
        if "and 1?" in request.prompt:
            crashed.set()
            raise InferenceError("the engine is gone")
        return ("two" if "and 0?" in request.prompt else "one") + END

    def journal() -> StoreJournal:
        return StoreJournal(TrajectoryJournal.from_url(store.url, tmp_path.name))

    first = begin(THREE_TURNS, crash, reward="program", journal=journal())
    playing = asyncio.create_task(play(first))
    await crashed.wait()
    playing.cancel()
    await asyncio.wait([playing])
    second = begin(THREE_TURNS, [f"three{END}"], reward="program", journal=journal())

    result = await played(second)

    assert [request.prompt.count("and") for request in second.client.requests] == [2]
    assert result.summary.metrics["turns_carried_on"] == 2
    assert (result.summary.num_turns, len(result.rows)) == (3, 1)
