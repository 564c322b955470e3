"""Environments of verifiers, unmodified, with a scripted model that solves some of their tasks.

`make harnesses` installs verifiers and the sources of its environments into `.harnesses`.
"""

import json
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from support.gateway import bpe_tokenizer
from support.harnesses import FOLDER
from turnmill.core.trajectory import EpisodeFailure
from turnmill.observability.run_folder import RunFolder
from turnmill.rollout.harness.episode import EpisodeResult
from turnmill.rollout.harness.loop import HarnessLoop
from turnmill.testing.agent_loops import SAMPLING, job_of
from turnmill.testing.policies import ScriptedPolicy

PYTHON = FOLDER / "verifiers" / "bin" / "python"
SOURCES = FOLDER / "verifiers-source"
FIXTURES = SOURCES / "tests" / "v1" / "fixtures"

Settings = Mapping[str, Any]
Message = tuple[str, str]
"""Role and content, as the chat template renders them."""

LOCAL: Settings = {"runtime": {"type": "subprocess"}}
"""An agent whose programs are processes of this machine."""

OTHERS_MODEL = "{others model}"
"""What the address of the model of agents that do not learn stands for."""


def call(name: str, /, **arguments: object) -> str:
    """Return the text of an answer that calls a function."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def conversation(prompt: str) -> list[Message]:
    """Return the messages of a prompt; results of calls have the role `tool`."""
    found = re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", prompt, re.DOTALL)
    return [("tool" if content.startswith("<tool_response>") else role, content) for role, content in found]


def text_of(messages: Sequence[Message]) -> str:
    """Return the whole text of a conversation."""
    return "\n".join(content for _, content in messages)


def echo(messages: Sequence[Message]) -> str:
    return messages[-1][1].rpartition(": ")[2].replace("ping", "pong")


def echo_tool(messages: Sequence[Message]) -> str:
    return messages[-1][1] if messages[-1][0] == "tool" else call("echo_back", message="hello world")


def counter(messages: Sequence[Message]) -> str:
    return call("counter_bump") if "count=2" not in messages[-1][1] else "<answer>done</answer>"


def repeat(messages: Sequence[Message]) -> str:
    return messages[-1][1].replace("goodbye", "good night")


def write_file(messages: Sequence[Message]) -> str:
    return "done" if messages[-1][0] == "tool" else call("bash", command="echo 'Hello, World!' > answer.txt")


def look_up(messages: Sequence[Message]) -> str:
    name = re.findall(r'look up "([^"]*)"', text_of(messages))[0]
    if messages[-1][0] != "tool":
        return call("facts_lookup", name=name)
    # The names with an odd number of letters.
    return messages[-1][1] if len(name) % 2 else "<answer>I do not know</answer>"


def round_trip(messages: Sequence[Message]) -> str:
    word = re.findall(r'with word="(\w+)"', text_of(messages))[0]
    if messages[-1][0] != "tool":
        return call("scratchpad_roundtrip", word=word)
    return word if len(word) % 2 else "nothing"


def intercepted(messages: Sequence[Message]) -> str:
    # A judge is needed for the word with JUDGE in it.
    return messages[-1][1].rpartition(" ")[2].replace("JUDGE_BLOCK.", "no")


def intercepted_bash(messages: Sequence[Message]) -> str:
    commands = re.findall(r"run `([^`]*)`", messages[-1][1])
    return call("bash", command=commands[0]) if commands else "I was told not to."


def reverse(messages: Sequence[Message]) -> str:
    text = messages[-1][1]
    return f"<reversed_text>{text[::-1] if len(text) % 2 else text[::-1].upper()}</reversed_text>"


def poker(messages: Sequence[Message]) -> str:
    legal = re.findall(r"\[(\w+)\]", messages[-1][1].rpartition("legal")[2])
    return f"[{legal[-1 if re.search('card: [KJ]', text_of(messages)) else 0]}]"


def golf(messages: Sequence[Message]) -> str:
    programs = {"sum": "print(sum(range(101)))", "HELLO": "print('HELLO'[::-1])"}
    text = messages[-1][1]
    return f"```python\n{next((code for word, code in programs.items() if word in text), 'print(1)')}\n```"


@dataclass(frozen=True)
class Subject:
    """An environment, as a job names it."""

    task: str
    kind: str
    """What is special about it, in a few words."""

    num_tasks: int
    answer: Callable[[Sequence[Message]], str]
    agents: Mapping[str, Settings] = field(default_factory=lambda: {"agent": LOCAL})
    more: Settings = field(default_factory=dict)
    learner: str | None = None

    def settings(self, others_url: str) -> Settings:
        """Return verifiers' settings, with the address of the model of agents that do not learn."""
        text = json.dumps({**self.agents, **self.more}).replace(OTHERS_MODEL, others_url)
        return dict(json.loads(text))

    @property
    def script(self) -> Callable[[str], str]:
        """Return the model: the answer to a prompt."""
        return lambda prompt: self.answer(conversation(prompt))


_CLIENT: Settings = {"type": "eval", "base_url": OTHERS_MODEL, "api_key_var": "NO_KEY"}
_OTHER: Settings = {**LOCAL, "model": "other", "client": _CLIENT}
_NULL: Settings = {"harness": {"id": "null"}}

SUBJECTS = {
    subject.task: subject
    for subject in (
        Subject("echo-v1", "one turn", 3, echo),
        Subject("reverse-text", "one turn, tasks from a data set", 8, reverse),
        Subject("code-golf", "one turn, runs the answer", 3, golf, {"golfer": LOCAL}, {"attempts": 1}),
        Subject("echo-user-sim-v1", "a scripted user", 1, repeat),
        Subject("echo-tool-v1", "a tool server for each episode", 1, echo_tool),
        Subject("counter-tool-v1", "a tool with state", 1, counter),
        Subject("glossary", "a tool server for each episode", 5, look_up),
        Subject("scratchpad", "a tool server that all episodes share", 20, round_trip),
        Subject("echo-agentic-v1", "a shell", 1, write_file),
        Subject("bash-interception", "a shell whose calls are changed", 2, intercepted_bash),
        Subject("interception", "answers that are changed", 4, intercepted),
        Subject(
            "kuhn-poker",
            "two agents",
            12,
            poker,
            {"player0": {**LOCAL, **_NULL}, "player1": {**_OTHER, **_NULL}},
            {},
            "player0",
        ),
        Subject("duet-v1", "two agents", 3, echo, {"a": {**LOCAL, **_NULL}, "b": {**_OTHER, **_NULL}}, {}, "a"),
    )
}


def is_installed() -> bool:
    """Return whether `make harnesses` has installed verifiers and the environments."""
    return PYTHON.exists() and FIXTURES.exists()


def with_data(subject: Subject, folder: Path) -> Settings:
    """Return settings of a subject whose tasks come from the hub with a data set of this machine in its place."""
    if subject.task != "reverse-text":
        return {}
    folder.mkdir(exist_ok=True)
    lines = (json.dumps({"prompt": "a cat sat on the mat"[: 4 + number]}) for number in range(subject.num_tasks))
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n")
    return {"taskset": {"dataset_name": str(folder)}}


# ---- the agent of type `harness` ----


def create_loop(subject: Subject, run_dir: Path, options: Settings, **agent: object) -> HarnessLoop:
    """Return the agent loop of a job whose policy is the scripted model."""
    given = {name: value for name, value in variables(subject).items() if name not in ("PATH", "HOME")}
    job = job_of(
        {"type": "harness", "groupSize": 2, "variables": given, **agent},
        {"name": "verifiers", "task": subject.task, "python": str(PYTHON), "options": options},
        algorithm={"type": "grpo"},
        tasksPerStep=1,
    )
    RunFolder(run_dir).create()
    tokenizer, script = bpe_tokenizer(), subject.script
    policy: Any = ScriptedPolicy(tokenizer, lambda request: script(request.prompt) + str(tokenizer.eos_token))
    return HarnessLoop(server_manager=policy, tokenizer=tokenizer, job=job, run_dir=run_dir)


async def play(subject: Subject, folder: Path) -> list[EpisodeResult | EpisodeFailure]:
    """Play each task of a subject once, as a validation of all tasks does."""
    with served(subject.script) as others_url:
        settings = {**subject.settings(others_url), **with_data(subject, folder / "data")}
        options = {"settings": settings, "validation": settings, "numTasks": subject.num_tasks}
        loop = create_loop(
            subject, folder / "played", options | ({"agent": subject.learner} if subject.learner else {})
        )
        try:
            return [
                await loop.run(SAMPLING, index=number, session_id=0, global_steps=1, validate=True)
                for number in range(subject.num_tasks)
            ]
        finally:
            await loop.close()


# ---- verifiers' own runner ----


@dataclass(frozen=True)
class Evaluated:
    """One task, as verifiers' runner has it."""

    reward: float
    num_turns: int
    stop_condition: str


def evaluate(subject: Subject, folder: Path) -> list[Evaluated]:
    """Return what `vf-eval` finds for the tasks of a subject, in their order."""
    with served(subject.script) as url:
        settings = {**subject.settings(url), **with_data(subject, folder / "data")}
        command = [str(PYTHON.parent / "vf-eval"), subject.task, "--model", "policy", "--no-push", "--no-rich"]
        command += ["-n", str(subject.num_tasks), "-o", str(folder), "--run.dir", "run", "-c", "4"]
        command += ["--client.base-url", url, "--client.api-key-var", "NO_KEY", *flags("--env", settings)]
        run = subprocess.run(command, env=variables(subject), cwd=folder, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr[-3000:]
    lines = [json.loads(line) for line in (folder / "run" / "traces.jsonl").read_text().splitlines()]
    found = {}
    for episode in lines:
        assert episode["ok"], episode["errors"]
        traces = [each for each in episode["traces"] if subject.learner in (None, each["agent"].get("name"))]
        found[episode["task"]["data"]["idx"]] = Evaluated(
            sum(map(reward_of, traces)) / len(traces),
            sum(node.get("sampled", False) for trace in traces for node in trace["nodes"]),
            traces[0]["stop_condition"],
        )
    return [found[number] for number in range(subject.num_tasks)]


def reward_of(trace: Mapping[str, Any]) -> float:
    """Return the reward of a trace: the sum of its parts with their weights, as verifiers has it."""
    return float(sum(part["score"] * part.get("weight", 1.0) for part in trace["rewards"].values() if part))


def variables(subject: Subject) -> dict[str, str]:
    """Return the variables of verifiers' programs, with which they find the environment."""
    # With uv, which verifiers has install the packages of its programs.
    given = {name: os.environ[name] for name in ("HOME", "SSL_CERT_FILE") if name in os.environ}
    sources = SOURCES / "environments" / subject.task.replace("-", "_")
    path = f"{PYTHON.parent}:{os.environ['PATH']}"
    return given | {"PATH": path, "PYTHONPATH": f"{sources}:{FIXTURES}", "HF_HUB_OFFLINE": "1"}


def flags(name: str, value: object) -> list[str]:
    """Return settings as arguments of the command line."""
    if not isinstance(value, Mapping):
        return [name, str(value)]
    return [word for key, each in value.items() for word in flags(f"{name}.{key.replace('_', '-')}", each)]


@contextmanager
def served(script: Callable[[str], str]) -> Iterator[str]:
    """Serve a scripted model by OpenAI's Chat API, without any code of the gateway; yield its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            message = message_of(script(rendered(body["messages"], body.get("tools"))))
            reason = "tool_calls" if "tool_calls" in message else "stop"
            answer = {"id": "1", "created": 0, "model": body["model"]}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            choice: dict[str, object] = {"index": 0, "finish_reason": reason}
            if body.get("stream"):
                for number, each in enumerate(message.get("tool_calls", ())):
                    each["index"] = number
                part = {**answer, "object": "chat.completion.chunk", "choices": [choice | {"delta": message}]}
                text, kind = f"data: {json.dumps(part | {'usage': usage})}\n\ndata: [DONE]\n\n", "text/event-stream"
            else:
                whole = {**answer, "object": "chat.completion", "choices": [choice | {"message": message}]}
                text, kind = json.dumps(whole | {"usage": usage}), "application/json"
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def rendered(messages: Sequence[Mapping[str, Any]], tools: object) -> str:
    """Return the text of a prompt, by the chat template of the gateway's tests."""
    plain = []
    for message in messages:
        content = message.get("content") or ""
        if not isinstance(content, str):
            content = "".join(part["text"] for part in content)
        calls = [
            {"function": {"name": each["function"]["name"], "arguments": json.loads(each["function"]["arguments"])}}
            for each in message.get("tool_calls") or ()
        ]
        plain.append({"role": message["role"], "content": content, "tool_calls": calls})
    return str(bpe_tokenizer().apply_chat_template(plain, tools=tools, add_generation_prompt=True, tokenize=False))


def message_of(answer: str) -> dict[str, Any]:
    """Return an answer as a message of OpenAI's."""
    found = re.findall(r"<tool_call>\n(.*?)\n</tool_call>", answer, re.DOTALL)
    if not found:
        return {"role": "assistant", "content": answer}
    calls = [
        {"id": f"call_{number}", "type": "function",
         "function": {"name": each["name"], "arguments": json.dumps(each["arguments"])}}
        for number, each in enumerate(map(json.loads, found))
    ]  # fmt: skip
    return {"role": "assistant", "content": None, "tool_calls": calls}
