"""Environments of OpenEnv from its sources, unmodified: rewards through turnmill, and by OpenEnv's own client.

python benchmarks/openenv_environments.py --python /opt/openenv/bin/python --sources OpenEnv/envs

Each is served by its own server on this machine. Environments with texts as actions are played by the environment
`openenv`, those with tools (MCP) by an agent of type `harness` whose policy is a script. Exits with 1 if a reward
differs. The other Python needs `openenv==0.10.0` and what the environments need.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from runs import table

from support.programs import end
from turnmill.core.ports import free_port
from turnmill.core.trajectory import EpisodeFailure
from turnmill.environments import create
from turnmill.observability.run_folder import RunFolder
from turnmill.rollout.harness.loop import HarnessLoop
from turnmill.testing.agent_loops import END, SAMPLING, TOKENIZER, job_of
from turnmill.testing.policies import ScriptedPolicy

START_SECONDS = 120
PLAY_SECONDS = 300
SEED = 7

Actions = tuple[str, ...]
"""Answers of the policy, or, with tools, calls as JSON: `["name", {"argument": ...}]`."""


@dataclass(frozen=True, slots=True)
class Environment:
    """One environment, and what is played in it."""

    name: str
    """Its folder in OpenEnv's `envs`, without `_env`."""

    episodes: tuple[Actions, ...]
    options: Mapping[str, object] = field(default_factory=dict)
    has_tools: bool = False

    @property
    def turns(self) -> str:
        """The number of turns of its episodes."""
        return ", ".join(str(len(actions)) for actions in self.episodes)


@dataclass(frozen=True, slots=True)
class Played:
    """Rewards of the steps of an episode, and whether the environment ended it; with tools, its reward alone."""

    rewards: tuple[float, ...]
    done: bool


ENVIRONMENTS = (
    Environment(
        "grid_world",
        (("LEFT", *["DOWN"] * 4, *["RIGHT"] * 4), ("up", "down")),
        {"actionField": "action", "actions": ["UP", "DOWN", "LEFT", "RIGHT"]},
    ),
    Environment("connect4", (tuple("0101010"), tuple("0123"), ("6", "9")), {"actionField": "column"}),
    Environment("maze", (tuple("2333311331311" + "11"), tuple("13")), {"actionField": "action"}),
    Environment(
        "reasoning_gym",
        (("188",), ("190",), ("many",)),
        {"actionField": "answer", "reset": {"dataset_name": "leg_counting", "size": 1}},
    ),
    Environment("coding", (("x = 6 * 7\nprint(x)", "import os", "print("),), {"actionField": "code"}),
    Environment(
        "repl",
        (("x = 6 * 7", "1 / 0", "print(f'FINAL({x})')"), ("print('FINAL(41)')",)),
        {"actionField": "code", "reset": {"task_prompt": "6 * 7?", "expected_answer": "42"}},
    ),
    Environment("wildfire", (('{"action": "wait"}', '{"action": "water", "x": 3, "y": 4}', '{"action": "break"}'),)),
    Environment(
        "finqa",
        (
            (
                '["get_descriptions", {"company_name": "acme"}]',
                '["sql_query", {"company_name": "acme", "table_name": "sales", '
                '"query": "select total from sales where year = 2024"}]',
                '["submit_answer", {"answer": "13.6%"}]',
            ),
            ('["get_descriptions", {"company_name": "nobody"}]', '["submit_answer", {"answer": "15%"}]'),
            ('["get_descriptions", {"company_name": "acme"}]',),
        ),
        {"observationField": "metadata.question"},
        has_tools=True,
    ),
    Environment("echo", (('["echo_message", {"message": "hi"}]', '["no_such_tool", {}]'),), has_tools=True),
)


def write_finqa(folder: Path) -> None:
    """Write data for `finqa`: one question on one table. Its own has to be downloaded."""
    (folder / "benchmark_questions").mkdir()
    question = "By how much did the sales of Acme grow in 2024?"
    row = f'1,{question},acme,{question},13.6%,plain,""\n'
    header = "id,user_query,company,question,answer,question_type,explanation\n"
    (folder / "benchmark_questions" / "finqa.csv").write_text(header + row)
    (folder / "input_companies" / "acme").mkdir(parents=True)
    sales = [{"year": 2023, "total": 11.0}, {"year": 2024, "total": 12.5}]
    (folder / "input_companies" / "acme" / "sales.json").write_text(json.dumps(sales))


@contextmanager
def served(name: str, python: str, sources: Path, folder: Path) -> Iterator[str]:
    """Serve an environment, and yield the address."""
    port = free_port()
    command = [python, "-m", "uvicorn", f"{name}.server.app:app", "--host", "127.0.0.1", "--port", str(port)]
    paths = os.pathsep.join((str(sources), str(sources / name)))
    variables = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": paths, "FINQA_DATA_PATH": str(folder)}
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, env=variables, stdout=log, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_healthy(url, server, folder / "server.log")
        yield url
    finally:
        end(server, 10)


def wait_until_healthy(url: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait until a server answers. Raises AssertionError with its log."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            if httpx.get(f"{url}/health", timeout=5).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    raise AssertionError(f"the server is not ready:\n{log.read_text()[-2000:]}")


def play_by_client(environment: Environment, url: str, python: str, folder: Path) -> list[Played]:
    """Play by OpenEnv's own client."""
    work = {"url": url, "tools": environment.has_tools, "episodes": list(client_episodes(environment))}
    script = Path(__file__).with_name("openenv_client.py")
    ended = subprocess.run(
        [python, str(script)], input=json.dumps(work), cwd=folder, capture_output=True, text=True, timeout=PLAY_SECONDS
    )
    assert not ended.returncode, ended.stderr
    episodes = [Played(tuple(each["rewards"]), each["done"]) for each in json.loads(ended.stdout.splitlines()[-1])]
    return [last_reward(episode) for episode in episodes] if environment.has_tools else episodes


def client_episodes(environment: Environment) -> Iterator[dict[str, object]]:
    """Yield what OpenEnv's client resets with and sends."""
    options = environment.options
    for actions in environment.episodes:
        if environment.has_tools:
            calls = map(json.loads, actions)
            yield {"reset": {}, "actions": [{"tool_name": name, "arguments": given} for name, given in calls]}
        else:
            field, known = options.get("actionField"), {word.lower(): word for word in options.get("actions", ())}
            sent = [json.loads(each) if field is None else {field: known.get(each.lower(), each)} for each in actions]
            yield {"reset": {"seed": SEED, **options.get("reset", {})}, "actions": sent}


def last_reward(episode: Played) -> Played:
    """Return the reward of an episode as OpenEnv's rollouts have it: that of the last step with one."""
    given = [reward for reward in episode.rewards if reward is not None]
    return Played(tuple(given[-1:]) or (0.0,), False)


def play_texts(environment: Environment, url: str) -> list[Played]:
    """Play by the environment `openenv`."""
    played = []
    session = create("openenv", options={"url": url, **environment.options})
    for actions in environment.episodes:
        session.reset(SEED)
        results = [session.step(session.match_action(action) or session.default_action) for action in actions]
        played.append(Played(tuple(result.reward for result in results), results[-1].terminated))
    session.close()
    return played


async def play_tools(environment: Environment, url: str, folder: Path) -> list[Played]:
    """Play by an agent of type `harness`, whose policy is a script."""
    played = []
    for number, actions in enumerate(environment.episodes):
        calls = [dict(zip(("name", "arguments"), json.loads(action), strict=True)) for action in actions]
        script = [f"<tool_call>{json.dumps(call)}</tool_call>{END}" for call in calls] + [f"done{END}"]
        RunFolder(run_dir := folder / f"run{number}").create()
        loop = HarnessLoop(
            server_manager=ScriptedPolicy(TOKENIZER, script),
            tokenizer=TOKENIZER,
            job=job_of(
                {"type": "harness", "entryPoint": "turnmill.openenv:play", "reward": "program", "groupSize": 2}
                | {"maxPromptLength": 30_000, "maxResponseLength": 30_000},
                {"name": "turnmill.openenv.tasks:OpenEnvTasks", "options": {"url": url, **environment.options}},
                algorithm={"type": "grpo"},
                tasksPerStep=1,
            ),
            run_dir=run_dir,
        )
        result = await loop.run(SAMPLING, index=0, session_id=0, global_steps=1)
        await loop.close()
        assert not isinstance(result, EpisodeFailure), result.message
        played.append(Played((result.summary.reward,), False))
    return played


def compare(environment: Environment, python: str, sources: Path) -> tuple[list[Played], list[Played]]:
    """Return what was played through turnmill, and by OpenEnv's own client."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_finqa(folder)
        with served(f"{environment.name}_env", python, sources, folder) as url:
            if environment.has_tools:
                ours = asyncio.run(play_tools(environment, url, folder))
            else:
                ours = play_texts(environment, url)
        # A server of its own, as some environments go on with random numbers from episode to episode.
        with served(f"{environment.name}_env", python, sources, folder) as url:
            return ours, play_by_client(environment, url, python, folder)


def main(arguments: Sequence[str]) -> int:
    """Compare all environments, or those named; print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="Python with openenv")
    parser.add_argument("--sources", type=Path, required=True, help="folder `envs` of OpenEnv's repository")
    parser.add_argument("names", nargs="*", help="environments; all if left out")
    given = parser.parse_args(arguments)
    rows, same = [], True
    for environment in ENVIRONMENTS:
        if given.names and environment.name not in given.names:
            continue
        ours, theirs = compare(environment, given.python, given.sources.resolve())
        same = same and ours == theirs
        rewards = "; ".join(" ".join(f"{reward:g}" for reward in episode.rewards) for episode in ours)
        actions = "tools" if environment.has_tools else "texts"
        rows.append((environment.name, actions, environment.turns, rewards, "yes" if ours == theirs else theirs))
        print(rows[-1], file=sys.stderr)
    print(table(("environment", "actions", "turns of each episode", "rewards", "equal"), rows))
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
