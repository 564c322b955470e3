"""Piston and SandboxFusion with a service that answers as their documentation says."""

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp import web

from support.code_services import CodeServices
from turnmill.core.errors import ToolFailedError, ToolUnavailableError
from turnmill.testing.tool_calls import Dialogue, make_tool

XML = """<piston>
  <language>python</language>
  <version>3.11</version>
  <args>one two</args>
  <stdin>three</stdin>
  <file name="main.py">
import sys, helper
print(helper.greeting, sys.argv[1:], sys.stdin.read())
sys.exit(3)
  </file>
  <file name="helper.py">greeting = 'hello'</file>
</piston>"""


@pytest_asyncio.fixture
async def services() -> AsyncIterator[CodeServices]:
    async with CodeServices() as services:
        yield services


@pytest_asyncio.fixture
async def piston(services: CodeServices) -> AsyncIterator[Dialogue]:
    tool = make_tool("piston", PISTON_URL=services.url, PISTON_TIMEOUT_SECONDS="20")
    await tool.start()
    yield Dialogue(tool)
    await tool.close()


@pytest_asyncio.fixture
async def fusion(services: CodeServices) -> AsyncIterator[Dialogue]:
    tool = make_tool("sandbox_fusion", SANDBOX_FUSION_URL=services.url, SANDBOX_FUSION_RUN_SECONDS="2")
    await tool.start()
    yield Dialogue(tool)
    await tool.close()


@pytest.mark.feature("verl-tool", "Piston and SandboxFusion")
async def test_piston_reports_output_and_exit_of_a_program(piston: Dialogue):
    assert await piston.say(XML) == (
        "Execution result:\n\nLanguage: python\nVersion: 3.11.0\n\n"
        "--- STDOUT ---\nhello ['one', 'two'] three\n\n\n--- STDERR ---\n\n\n"
        "Exit code: 3\nSignal: None\nCPU time: 12ms\nMemory usage: 9.00MB\n"
    )
    assert (piston.result.done, piston.result.valid) == (True, True)


async def test_piston_takes_json_and_the_address_with_its_path(services: CodeServices):
    tool = make_tool("piston", PISTON_URL=f"{services.url}/api/v2")
    await tool.start()
    try:
        observation = await Dialogue(tool).say(
            json.dumps({"language": "python", "files": [{"name": "main.py", "content": "print(7)"}]})
        )
    finally:
        await tool.close()

    assert "--- STDOUT ---\n7\n" in observation
    assert services.bodies[0]["version"] == "*"


async def test_a_program_over_its_time_is_killed_and_reported(services: CodeServices):
    tool = make_tool("piston", PISTON_URL=services.url, PISTON_RUN_SECONDS="0.3")
    await tool.start()
    try:
        observation = await Dialogue(tool).say(
            '<piston><language>python</language><file name="a.py">import time; time.sleep(60)</file></piston>'
        )
    finally:
        await tool.close()

    assert "Exit code: None (TO)\nSignal: SIGKILL\n" in observation


async def test_an_unknown_language_is_an_observation_and_the_action_is_invalid(piston: Dialogue):
    observation = await piston.say("<piston><language>cobol</language><file>x</file></piston>")

    assert observation == "Error: HTTP 400: cobol-* runtime is unknown"
    assert (piston.result.done, piston.result.valid) == (True, False)


async def test_a_program_that_does_not_compile_is_reported(services: CodeServices, piston: Dialogue):
    stage = {"stdout": "", "stderr": "no such thing", "code": 1, "signal": None, "status": "RE"}
    services.answer = web.json_response({"language": "c", "version": "10", "compile": stage})

    assert await piston.say("<piston><language>c</language><file>x</file></piston>") == (
        "Compilation error:\n\n--- Compile output ---\n\n\n--- Compile error ---\nno such thing\n\n"
        "Compilation exit code: 1\nStatus: RE\n"
    )


@pytest.mark.parametrize(
    "action",
    [
        "text",
        "<piston>no program</piston>",
        "<piston><language>python</language></piston>",
        "<piston><language>python</file></piston>",
        '{"language": "python"}',
        '{"language": "python", "files": [1]}',
        "{broken}",
        'before {"language": "python", "files": [{"content": "x"}]}',
    ],
)
def test_piston_takes_only_complete_programs(action):
    assert make_tool("piston").parse(action) is None


@pytest.mark.feature("verl-tool", "Piston and SandboxFusion")
async def test_fusion_reports_the_output_of_a_program(fusion: Dialogue):
    assert await fusion.say("<think>so</think> <python>print(6 * 7)</python>") == (
        "Execution results:\n\nExecution: Finished (took 0.0123s)\n\nOutput:\n42\n"
    )
    assert (fusion.result.done, fusion.result.valid) == (False, True)


async def test_fusion_reports_errors(fusion: Dialogue):
    observation = await fusion.say("```python\nprint(1)\nraise ValueError('no')\n```")

    assert observation.startswith(
        "Execution results:\n\nExecution: Finished (took 0.0123s)\n\nOutput:\n1\n\nErrors:\nTraceback"
    )
    assert observation.endswith("ValueError: no\n\nStatus: Failed")


async def test_fusion_reports_a_timeout(fusion: Dialogue):
    assert await fusion.say("<py>import time; time.sleep(60)</py>") == (
        "Execution results:\n\nExecution: TimeLimitExceeded (took 0.0123s)\n\nStatus: Failed"
    )


async def test_fusion_reports_compilation_errors(services: CodeServices, fusion: Dialogue):
    compiled = {"status": "Finished", "return_code": 1, "stderr": "main.cpp:1: error"}
    services.answer = web.json_response(
        {"status": "Failed", "message": "", "compile_result": compiled, "run_result": None}
    )

    assert await fusion.say("<cpp>int main( {}</cpp>") == (
        "Execution results:\n\nCompilation: Finished\nCompilation errors:\nmain.cpp:1: error\n\n"
    )


@pytest.mark.parametrize(
    ("action", "language"),
    [
        ("<python>a</python> <js>b</js>", "python"),
        ("<think>a</think>```js\nb\n```", "nodejs"),
        ("```\na\n```", "python"),
        ("```c++\na\n```", "cpp"),
        ("<r>a</r>", "R"),
        ("<answer>a</answer>", None),
        ("```text\na\n```", None),
        ("<python> </python>", None),
    ],
)
def test_fusion_takes_the_first_block_in_a_language(action, language):
    parsed = make_tool("sandbox_fusion").parse(action)

    assert (parsed and json.loads(parsed)["language"]) == language


async def test_blocked_words_are_refused_without_a_request_to_the_service(services: CodeServices, fusion: Dialogue):
    assert await fusion.say("<python>import subprocess</python>") == (
        "Execution blocked: Code contains potentially dangerous operations that are not allowed."
    )
    assert services.bodies == []


async def test_lone_surrogates_are_replaced(piston: Dialogue, fusion: Dialogue):
    assert "Output:\n?" in await fusion.say("<python>print('\ud800')</python>")
    assert "--- STDOUT ---\n?" in await piston.say(
        '<piston><language>python</language><file name="a.py">print("\ud800")</file></piston>'
    )


OUTAGES = {
    "status 503": lambda: web.Response(status=503, text="overloaded"),
    "status 429": lambda: web.Response(status=429, text="later"),
    "no JSON": lambda: web.Response(text="<html>"),
    "no object": lambda: web.json_response([1]),
    "neither stage": lambda: web.json_response({"language": "python", "version": "3"}),
}


@pytest.mark.parametrize("answer", OUTAGES.values(), ids=OUTAGES)
async def test_a_failure_of_the_service_fails_the_call(answer, services: CodeServices, piston, fusion):
    services.answer = answer()
    with pytest.raises(ToolFailedError, match=r"^piston: the service"):
        await piston.say(XML)

    services.answer = answer()
    with pytest.raises(ToolFailedError, match=r"^sandbox_fusion: the service"):
        await fusion.say("<python>1</python>")


async def test_an_internal_error_of_the_service_fails_the_call(services: CodeServices, piston, fusion):
    services.answer = web.json_response({"status": "SandboxError", "message": "no cgroup"})
    with pytest.raises(ToolFailedError, match="no cgroup"):
        await fusion.say("<python>1</python>")

    services.answer = web.json_response({"run": {"status": "XX", "message": "no isolate", "code": None}})
    with pytest.raises(ToolFailedError, match="no isolate"):
        await piston.say(XML)


async def test_a_timeout_of_the_service_fails_the_call(services: CodeServices):
    services.may_answer.clear()
    tool = make_tool("piston", PISTON_URL=services.url, PISTON_TIMEOUT_SECONDS="0.2")
    await tool.start()
    try:
        with pytest.raises(ToolFailedError, match=r"PISTON_URL \(http://127.0.0.1:\d+\) failed"):
            await Dialogue(tool).say(XML)
    finally:
        await tool.close()


async def test_an_unreachable_service_fails_the_call(services: CodeServices, piston: Dialogue):
    await services.__aexit__(None, None, None)

    with pytest.raises(ToolFailedError, match="failed: All connection attempts failed"):
        await piston.say(XML)


def test_an_address_without_a_scheme_is_refused_at_the_start():
    with pytest.raises(ToolUnavailableError, match=r"PISTON_URL \('piston:2000'\) must be an address"):
        make_tool("piston", PISTON_URL="piston:2000")
