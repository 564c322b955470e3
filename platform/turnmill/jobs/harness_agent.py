"""The agent loop that runs programs: agents of any make, which take the gateway for a model server."""

from typing import Annotated, Literal

from pydantic import Field

from turnmill.jobs.base_agent import BaseAgent
from turnmill.jobs.environment import EnvironmentSettings
from turnmill.jobs.settings import FilePath, Settings, Word
from turnmill.jobs.tool_agent import Tokens

Argument = Annotated[str, Field(max_length=4096)]


class HarnessSandbox(Settings):
    """Namespaces of a program's own, with no network but the gateway, and few of the machine's files."""

    paths: Annotated[tuple[FilePath, ...], Field(strict=False, max_length=64)] = ()
    """Files and folders that the program may read, besides those of the system and of its interpreter."""

    processes: int = Field(default=512, ge=1, le=65_536)
    """Processes and threads of a program at most."""


class HarnessAgent(BaseAgent):
    """The agent loop over programs: one program per trajectory, which asks the policy over HTTP."""

    implementation = "turnmill.training.agent_kinds.harness:HarnessKind"

    type: Literal["harness"] = "harness"
    """Agent loop: `harness` starts a program per trajectory, which takes the policy for a model server."""

    command: Annotated[tuple[Argument, ...], Field(strict=False, min_length=1, max_length=256)] | None = None
    """Program and its arguments, in which `{prompt}`, `{model}`, `{url}`, `{key}`, `{workspace}` and `{python}` are
    replaced. It runs in an empty folder of its own, and gets the task as JSON on its standard input."""

    entry_point: Annotated[str, Field(max_length=1024, pattern=r"^\S+:[A-Za-z_]\w*$")] | None = None
    """In place of `command`: a function of one argument, the task, as `package.module:function` or `FILE.py:function`.
    It is called in a process of its own, and what it returns is the result of the program."""

    python: FilePath | None = None
    """Interpreter for `entryPoint`, of a virtual environment with its packages; left out, that of the run."""

    preload: bool = False
    """Import the module of `entryPoint` once per agent loop worker, and call the function in a fork of that process:
    for packages whose import takes longer than a trajectory. What the module makes when it is imported is shared by
    all trajectories; it must start no threads, and must read the gateway's address later."""

    url: Annotated[str, Field(max_length=1024, pattern=r"^https?://[^\s/]+\S*$")] | None = None
    """In place of `command`: the address of a service that plays trajectories. It gets the task, and the address and
    the key of the gateway, by a `POST` per trajectory, and answers with the result when it is done."""

    sandbox: HarnessSandbox | None = None
    """Start each program in namespaces of its own, which the machine must allow: it reaches the gateway alone, reads
    what `paths` names, and writes in its folder. `{}` has the defaults; left out, it is a process like others of the
    run."""

    variables: Annotated[dict[str, Annotated[str, Field(max_length=1024)]], Field(max_length=256)] = Field(
        default_factory=dict
    )
    """Environment variables of the program, besides the address and the key of the gateway. Of those of the run it gets
    `PATH` and `LANG` alone, and for `entryPoint` with the run's interpreter `PYTHONPATH`."""

    reward: Literal["task", "program"] = "task"
    """Where the reward comes from: `task` computes it from the answer, `program` takes it from the field `reward` of
    the result, a JSON object: the last line of a program's output, or what a service answers."""

    on_timeout: Literal["fail", "reward"] = "fail"
    """Effect of `timeoutSeconds`: `fail` ends the trajectory as `failed`, without a part in baseline and loss; `reward`
    rewards what was answered until then, with 0 if the reward is the program's."""

    group_size: int = Field(default=8, ge=1, le=65_536)
    """Trajectories gathered per task and step; rewards are compared within this group."""

    max_turns: int = Field(default=64, ge=1, le=100_000)
    """Answers per trajectory, in all its branches; the request after the last ends the program."""

    timeout_seconds: float = Field(default=600, gt=0, le=86_400)
    """Seconds that a program may run, or a service may take."""

    max_prompt_length: Tokens = 4096
    """Tokens of a prompt. Together with `maxResponseLength` it limits the context, in which the two are not told
    apart."""

    max_response_length: Tokens = 4096
    """Tokens after the prompt."""

    max_answer_length: Tokens | None = None
    """Tokens of one answer; left out, the rest of the context. The program may ask for fewer."""

    tool_parser: Word | None = None
    """vLLM's parser of tool calls, such as `hermes`; left out, it is chosen by the chat template, if that has
    `<tool_call>`."""

    reasoning_parser: Word | None = None
    """vLLM's parser of reasoning, such as `qwen3`; left out, reasoning is part of the content."""

    max_concurrent_trajectories: int | None = Field(default=64, ge=1, le=1_000_000)
    """Programs, or requests to a service, at once, over all workers; null sets no limit."""

    temperature: float = Field(default=1.0, gt=0, le=10)
    """Temperature at which responses are sampled during training, whatever the program asks for."""

    @property
    def response_token_limit(self) -> int:
        """The tokens after the prompt that a training row may have."""
        return self.max_response_length

    def max_concurrency(self, environment: EnvironmentSettings) -> int | None:
        """Return the number of trajectories in flight at once, over all workers; None for no limit."""
        return self.max_concurrent_trajectories
