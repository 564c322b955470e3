"""Compares the rewards of NeMo Gym's own agents with those of turnmill's, on its environments as its package has them.

    .venv/bin/python benchmarks/nemo_gym.py --python /opt/nemo-gym/bin/python

The interpreter is of a virtual environment with `nemo-gym`. `ng_run` starts the resources servers, the agents and a
model server, whose model is a gateway with a script: in each pass over a data file it answers as the row expects, or
wrongly, calls a tool that there is not, or goes on and on. Rows are played by NeMo Gym's agent and by turnmill's. Their
rewards and the conversations that the model reads must be equal. Prints a table.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from runs import table

from support.gateway import RecordedTurns, ScriptedEngine, ScriptedTrajectories, bpe_tokenizer, scripted_model
from support.harnesses import addresses
from turnmill.core.ports import free_port
from turnmill.gateway.app import create_app
from turnmill.gateway.server import HttpServer
from turnmill.gateway.trajectory import Trajectory
from turnmill.nemo_gym.rows import Rows, RowsOptions
from turnmill.rollout.harness.program import entry_point_command, import_paths, run_program
from turnmill.tasks.dataset import read_rows

START_SECONDS, ROW_SECONDS, END_SECONDS = 300.0, 60.0, 30.0
KEY = "of-the-model"
PASSES = ("expected", "wrong", "unknown tool", "long")

Row = Mapping[str, object]
Call = tuple[str, Mapping[str, object]]


@dataclass(frozen=True)
class Environment:
    """One of NeMo Gym's environments, by the names of its package."""

    folder: str
    config: str
    server: str
    agent: str
    data: str = "example.jsonl"
    max_steps: int | None = None
    """As in its config."""

    kind: str = "simple_agent"


def _with_tools(name: str, server: str = "", **fields: object) -> Environment:
    return Environment(name, f"{name}.yaml", server or name, f"{name}_simple_agent", **fields)  # type: ignore[arg-type]


ENVIRONMENTS = (
    _with_tools("example_single_tool_call"),
    _with_tools("example_multi_step", "example_multi_step_resources_server"),
    _with_tools("example_session_state_mgmt", "example_session_state_mgmt_resources_server"),
    _with_tools("example_tool_call_multireward"),
    _with_tools("workplace_assistant", max_steps=6),
    _with_tools("xlam_fc"),
    _with_tools("mcqa"),
    Environment("equivalence_rule", "lc.yaml", "lc_equivalence_rule", "lc_equivalence_rule_simple_agent"),
    Environment(
        "format_verification", "freeform_formatting.yaml", "freeform_formatting", "freeform_formatting_simple_agent",
        "ds2_freeform_formatting_example.jsonl",
    ),
    Environment(
        "example_multi_turn_gymnasium", "example_multi_turn_gymnasium.yaml", "example_multi_turn_gymnasium",
        "example_multi_turn_gymnasium_agent", max_steps=5, kind="gymnasium_agent",
    ),
)  # fmt: skip


# ---- what the model answers ----


def _calls(row: Row) -> list[list[Call]]:
    """Return the calls that a row expects, by answers; none if it expects a text."""
    if "ground_truth" in row:
        return [[(call["name"], json.loads(call["arguments"]))] for call in row["ground_truth"]]  # type: ignore[attr-defined]
    if "expected_answers" in row:
        return [[(call["name"], call["arguments"]) for call in row["expected_answers"]]]  # type: ignore[attr-defined]
    if "expected_call" in row:
        return [[(row["expected_call"]["name"], row["expected_call"]["arguments"])]]  # type: ignore[index]
    if "expected_count" in row:
        added = int(str(row["expected_count"])) - int(str(row["initial_count"]))
        return [[("increment_counter", {"count": 1})], [("increment_counter", {"count": added - 1})],
                [("get_counter_value", {})]]  # fmt: skip
    if "expected_synonyms" in row:
        asked = [("get_synonym_value", {"synonym": synonym}) for synonym in row["expected_synonyms"]]  # type: ignore[attr-defined]
        return [asked, [("extract_synonym_values", {"synonym_values": row["expected_synonym_values"]})]]
    params = row["responses_create_params"]
    return [[("get_weather", {"city": "Paris"})]] if params.get("tools") else []  # type: ignore[attr-defined]


def _text(row: Row) -> str:
    if "options" in row:
        return f"I think it is \\boxed{{{row['expected_answer']}}}"
    if "verifier" in row:
        return '1. "Ann": yes\n2. "Ben": no\n3. "Carl": maybe\n4. "Dora": never'
    return str(row.get("expected_answer", "Done."))


def answers_to(row: Row, how: str) -> list[str]:
    """Return the answers of the model to a row in one of the passes, first to last."""
    calls, text = _calls(row), _text(row)
    if how == "wrong":
        calls = [[(name, {**arguments, "unexpected": [1]} if number % 2 else {}) for name, arguments in answer]
                 for number, answer in enumerate(calls)]  # fmt: skip
        text = "It is \\boxed{Z}, or not."
    if how == "unknown tool":
        calls = [[("no such/tool", {"x": 1})], *calls]
    if how == "long":
        calls = calls[:1] * 9
    before = ["Let me see."] * len(list(row.get("follow_ups", ())))  # type: ignore[call-overload]
    return [*before, *("\n".join(map(_call_text, answer)) for answer in calls), text]


def _call_text(call: Call) -> str:
    return f"<tool_call>\n{json.dumps({'name': call[0], 'arguments': call[1]})}\n</tool_call>"


@dataclass
class Model:
    """The scripted model behind a gateway, and all that it has read."""

    rows: list[Row] = field(default_factory=list)
    how: str = PASSES[0]

    def __post_init__(self) -> None:
        self.engine = ScriptedEngine(self._answer)
        self._model = scripted_model(self.engine)
        self._trajectories: dict[str, Trajectory] = {}
        self.server = HttpServer(create_app(ScriptedTrajectories(self._model, self._trajectories)))

    def begin(self) -> None:
        """Forget what has been read and answered."""
        self.engine.prompts.clear()
        self._trajectories[KEY] = Trajectory("t", self._model, record=RecordedTurns(), max_turns=10_000)

    def read(self) -> list[str]:
        """Return all that has been read since then."""
        return sorted(map(bpe_tokenizer().decode, self.engine.prompts))

    def _answer(self, prompt: str) -> str:
        (row,) = [row for row in self.rows if _last_question(row) in prompt][:1]
        answers = answers_to(row, self.how)
        given = prompt.count("<|im_start|>assistant\n") - 1
        return answers[min(given, len(answers) - 1)]


def _last_question(row: Row) -> str:
    items = row["responses_create_params"]["input"]  # type: ignore[index]
    text = items if isinstance(items, str) else [item for item in items if item.get("role") == "user"][-1]["content"]
    return f"<|im_start|>user\n{text}<|im_end|>"


# ---- NeMo Gym's own servers ----


@asynccontextmanager
async def nemo_gym(python: Path, environments: Sequence[Environment], model_url: str) -> AsyncIterator[dict[str, str]]:
    """Start its servers by its own command; yield their addresses by name, and end them."""
    head = free_port()
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w+") as log:
        parts = {"responses_api_models/openai_model"}
        parts |= {f"responses_api_agents/{one.kind}" for one in environments}
        parts |= {f"resources_servers/{one.folder}" for one in environments}
        for part in parts:
            # It makes a virtual environment for each server, unless there is one.
            environment = Path(folder) / "environments" / part / ".venv"
            environment.parent.mkdir(parents=True)
            environment.symlink_to(python.parent.parent)
        configs = ["responses_api_models/openai_model/configs/openai_model.yaml"]
        configs += [f"resources_servers/{one.folder}/configs/{one.config}" for one in environments]
        process = subprocess.Popen(  # noqa: ASYNC220
            [
                python.parent / "ng_run", f"+config_paths=[{','.join(configs)}]", f"+uv_venv_dir={folder}/environments",
                "+skip_venv_if_present=true", "+default_host=127.0.0.1", f"+policy_base_url={model_url}/v1",
                f"+policy_api_key={KEY}", "+policy_model_name=policy",
                "+head_server.host=127.0.0.1", f"+head_server.port={head}",
            ],
            cwd=folder, stdout=log, stderr=log, start_new_session=True,
            env={"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": folder},
        )  # fmt: skip
        try:
            yield await _addresses(f"http://127.0.0.1:{head}/server_instances", process)
        except BaseException:
            log.seek(0)
            print(log.read()[-4000:], file=sys.stderr)
            raise
        finally:
            process.send_signal(signal.SIGINT)
            try:
                await asyncio.to_thread(process.wait, END_SECONDS)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


async def _addresses(url: str, process: subprocess.Popen[bytes]) -> dict[str, str]:
    async with asyncio.timeout(START_SECONDS), httpx.AsyncClient(timeout=10) as client:
        while process.poll() is None:
            await asyncio.sleep(1)
            try:
                found = {server["process_name"]: server["url"] for server in (await client.get(url)).json()}
                for address in found.values():
                    await client.get(address)
                if found:
                    return found
            except httpx.TransportError:
                continue
    raise RuntimeError(f"ng_run has ended with {process.returncode}")


# ---- rows ----


@dataclass
class Compared:
    """The rewards of one environment by both agents."""

    rows: int = 0
    rewards: list[float] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)


async def play(environment: Environment, servers: Mapping[str, str], file: Path, model: Model) -> Compared:
    """Return the rewards of all rows of a file, in all passes."""
    options = {"path": str(file), "validationPath": str(file), "url": servers[environment.server]}
    source = Rows(RowsOptions.model_validate(options | {"maxSteps": environment.max_steps}, by_alias=True), 0)
    model.rows = list(read_rows(file, "path"))
    compared = Compared(len(model.rows))
    for model.how in PASSES:
        for number, row in enumerate(model.rows):
            model.begin()
            theirs = await _by_nemo_gym(servers[environment.agent], row)
            their_prompts = model.read()
            model.begin()
            task = {"info": source.validation(number).extra_info, "maxTurns": 64}
            ours = await _by_turnmill(environment, task, model.server.url)
            compared.rewards.append(theirs)
            if (theirs, their_prompts) != (ours, model.read()):
                compared.differing.append(f"{model.how}, row {number}: {theirs}, turnmill {ours}")
    return compared


async def _by_nemo_gym(agent_url: str, row: Row) -> float:
    """Return the reward as `ng_collect_rollouts` gets it."""
    async with httpx.AsyncClient(timeout=ROW_SECONDS) as client:
        response = await client.post(f"{agent_url}/run", json=row)
        return float(response.raise_for_status().json()["reward"])


async def _by_turnmill(environment: Environment, task: Mapping[str, object], gateway: str) -> float:
    """Return the reward of the program that a run starts."""
    with tempfile.TemporaryDirectory() as folder:
        ended = await run_program(
            entry_point_command(f"turnmill.nemo_gym:{environment.kind}", None),
            task=task, variables=addresses(gateway, KEY) | import_paths(None),
            workspace=Path(folder), timeout_seconds=ROW_SECONDS, stop=asyncio.Event(),
        )  # fmt: skip
    if "reward" not in ended.result:
        raise RuntimeError(ended.last_words)
    return float(str(ended.result["reward"]))


async def compare(python: Path, environments: Sequence[Environment]) -> list[str]:
    """Print the table; return the trajectories that differ."""
    data = next(python.parent.parent.glob("lib/python*/site-packages")) / "resources_servers"
    model, lines, differing = Model(), [], []
    model.server.start()
    async with nemo_gym(python, environments, model.server.url) as servers:
        for one in environments:
            compared = await play(one, servers, data / one.folder / "data" / one.data, model)
            rewards, wrong = compared.rewards, len(compared.differing)
            row = [
                f"`{one.folder}`",
                f"`{one.kind}`",
                compared.rows,
                len(rewards),
                f"{sum(rewards) / len(rewards):.2f}",
            ]
            lines.append([*row, f"{len(rewards) - wrong} of {len(rewards)}"])
            differing += [f"{one.folder}, {line}" for line in compared.differing]
    await model.server.close()
    print(table(["environment", "agent", "rows", "trajectories", "mean reward", "equal"], lines))
    return differing


def main() -> None:
    """Compare the environments that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--environments", nargs="*", choices=[one.folder for one in ENVIRONMENTS])
    given = parser.parse_args()
    names = given.environments or [one.folder for one in ENVIRONMENTS]
    if differing := asyncio.run(compare(given.python, [one for one in ENVIRONMENTS if one.folder in names])):
        sys.exit("\n".join(differing))


if __name__ == "__main__":
    main()
