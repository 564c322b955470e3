"""Agents of others, as their packages have them: what starts each, and what tells it the gateway's address.

`make harnesses` installs them into `.harnesses`; their versions are in `requirements/harnesses/`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".harnesses"
NODE = FOLDER / "node_modules" / ".bin"
PYTHON = FOLDER / "python" / "bin"
PATH = f"{NODE}:{PYTHON}:/usr/local/bin:/usr/bin:/bin"

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


@dataclass(frozen=True)
class Harness:
    """One agent, as a job of type `harness` names it."""

    command: tuple[str, ...]
    """Program and arguments, with the job's placeholders."""

    api: str
    """Path of the API that it uses."""

    call: tuple[str, Mapping[str, object]]
    """A call that makes it run `echo` or add two numbers, as the policy would write it: name and arguments."""

    end: tuple[str, Mapping[str, object]] | None = None
    """The call with which the policy ends; None if an answer without a call is the end."""

    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_installed(self) -> bool:
        """Return whether `make harnesses` has installed it."""
        return any(Path(word).exists() for word in self.command if word.startswith(str(FOLDER)))


def addresses(url: str, key: str) -> dict[str, str]:
    """Return the variables that a run gives a program."""
    return {
        "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": key,
        "OPENAI_MODEL": "policy", "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": key, "ANTHROPIC_MODEL": "policy",
    }  # fmt: skip


def _without_input(*command: str) -> tuple[str, ...]:
    """Return a command whose standard input is empty: command-line coders add what is there to their prompt."""
    return ("sh", "-c", 'exec "$@" < /dev/null', "sh", *command)


SDK = """\
import json, sys

task = json.load(sys.stdin)
prompt, form = task["prompt"], sys.argv[1]


def add(a: int, b: int) -> int:
    \"\"\"Add two numbers.\"\"\"
    return a + b


if form.startswith("agents"):
    from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool
    from openai import AsyncOpenAI

    model = OpenAIChatCompletionsModel("policy", AsyncOpenAI()) if form == "agents-chat" else "policy"
    agent = Agent(name="adder", instructions="Be short.", tools=[function_tool(add)], model=model)
    print(Runner.run_sync(agent, prompt, max_turns=4).final_output)
elif form.startswith("langgraph"):
    from langchain.agents import create_agent

    if form == "langgraph-messages":
        from langchain_anthropic import ChatAnthropic

        model = ChatAnthropic(model="policy", max_tokens=64)
    else:
        from langchain_openai import ChatOpenAI

        model = ChatOpenAI(model="policy")
    agent = create_agent(model, tools=[add], system_prompt="Be short.")
    print(agent.invoke({"messages": [("user", prompt)]}, {"recursion_limit": 12})["messages"][-1].content)
elif form == "openai":
    import openai

    messages = [{"role": "user", "content": prompt}]
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    tools = [{"type": "function", "function": {"name": "add", "description": add.__doc__, "parameters": parameters}}]
    for _ in range(4):
        completion = openai.OpenAI().chat.completions.create(model="policy", messages=messages, tools=tools)
        message = completion.choices[0].message
        messages.append(message)
        for call in message.tool_calls or ():
            result = add(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
        if not message.tool_calls:
            break
    print(message.content)
elif form == "anthropic":
    import anthropic

    messages = [{"role": "user", "content": prompt}]
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    tools = [{"name": "add", "description": add.__doc__, "input_schema": schema}]
    for _ in range(4):
        with anthropic.Anthropic().messages.stream(
            model="policy", messages=messages, tools=tools, max_tokens=64
        ) as stream:
            message = stream.get_final_message()
        messages.append({"role": "assistant", "content": message.content})
        uses = [block for block in message.content if block.type == "tool_use"]
        if not uses:
            break
        results = [{"type": "tool_result", "tool_use_id": use.id, "content": str(add(**use.input))} for use in uses]
        messages.append({"role": "user", "content": results})
    print(message.content[-1].text if message.content else "")
"""
"""Programs as the packages' documentation has them."""

ADD = ("add", {"a": 2, "b": 40})
ECHO = "echo found-$((6 * 7))"


def _sdk(form: str, api: str) -> Harness:
    quiet = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "LANGSMITH_TRACING": "false"}
    return Harness((str(PYTHON / "python"), "-c", SDK, form), api, ADD, variables=quiet)


# Its settings name variables, not their values: the key is another one for each trajectory.
OPENCODE = {
    "provider": {
        "gateway": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": "{env:OPENAI_BASE_URL}", "apiKey": "{env:OPENAI_API_KEY}"},
            "models": {"policy": {"limit": {"context": 32768, "output": 1024}}},
        }
    },
    "model": "gateway/policy",
    "small_model": "gateway/policy",
    "autoupdate": False,
    "share": "disabled",
    "permission": {"*": "allow"},
}

HARNESSES = {
    "openai": _sdk("openai", CHAT),
    "anthropic": _sdk("anthropic", MESSAGES),
    "openai-agents": _sdk("agents-responses", RESPONSES),
    "openai-agents-chat": _sdk("agents-chat", CHAT),
    "langgraph": _sdk("langgraph-chat", CHAT),
    "langgraph-messages": _sdk("langgraph-messages", MESSAGES),
    "mini-swe-agent": Harness(
        (
            str(PYTHON / "mini"), "-m", "openai/policy", "-t", "{prompt}", "-y", "--exit-immediately",
            "-o", "{workspace}/t.json",
        ),
        CHAT,
        call=("bash", {"command": ECHO}),
        end=("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}),
        variables={
            "MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_SILENT_STARTUP": "1",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
    ),
    "codex": Harness(
        _without_input(
            str(NODE / "codex"), "exec", "--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check",
            "--json", "-c", "model=policy", "-c", "model_provider=gateway",
            "-c", "model_providers.gateway.name=gateway",
            "-c", "model_providers.gateway.base_url={url}/v1", "-c", "model_providers.gateway.env_key=OPENAI_API_KEY",
            "-c", "model_providers.gateway.wire_api=responses", "-c", "check_for_update_on_startup=false",
            "-c", "analytics.enabled=false", "{prompt}",
        ),
        RESPONSES,
        call=("exec_command", {"cmd": ECHO}),
    ),
    "claude-code": Harness(
        _without_input(
            str(NODE / "claude"), "-p", "{prompt}", "--dangerously-skip-permissions", "--output-format", "json"
        ),
        MESSAGES,
        call=("Bash", {"command": ECHO, "description": "Print"}),
        variables={
            "IS_SANDBOX": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1", "DISABLE_AUTOUPDATER": "1",
        },
    ),
    "opencode": Harness(
        _without_input(str(NODE / "opencode"), "run", "-m", "gateway/policy", "{prompt}"),
        CHAT,
        call=("bash", {"command": ECHO, "description": "Print"}),
        variables={
            "OPENCODE_CONFIG_CONTENT": json.dumps(OPENCODE), "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        },
    ),
    "qwen-code": Harness(
        _without_input(str(NODE / "qwen"), "--yolo", "--auth-type", "openai", "-p", "{prompt}"),
        CHAT,
        call=("run_shell_command", {"command": ECHO, "is_background": False}),
    ),
}  # fmt: skip
