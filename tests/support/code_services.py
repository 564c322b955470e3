"""Services with the interfaces of Piston and SandboxFusion, which run only Python, with this interpreter."""

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from aiohttp import web

from support.web_site import WebSite


class CodeServices(WebSite):
    """`POST /api/v2/execute` and `POST /run_code`; `answer` replaces the response of both."""

    def __init__(self) -> None:
        super().__init__({})
        self.answer: web.Response | None = None
        self.bodies: list[dict[str, Any]] = []

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        await self.may_answer.wait()
        if self.answer is not None:
            return self.answer
        body = await request.json()
        self.bodies.append(body)
        return await {"/api/v2/execute": _piston, "/run_code": _sandbox_fusion}[request.path](body)


async def _piston(body: dict[str, Any]) -> web.Response:
    language, version = body["language"], body["version"]
    if language != "python":
        return web.json_response({"message": f"{language}-{version} runtime is unknown"}, status=400)
    code, out, err = await _run(body["files"], body["args"], body["stdin"], body["run_timeout"] / 1000)
    ended = {
        "code": code,
        "signal": None if code is not None else "SIGKILL",
        "status": None if code is not None else "TO",
    }
    run = {"stdout": out, "stderr": err, "output": out + err, "cpu_time": 12, "memory": 9_000_000, **ended}
    return web.json_response({"language": language, "version": "3.11.0", "run": run})


async def _sandbox_fusion(body: dict[str, Any]) -> web.Response:
    if body["language"] != "python":
        return web.json_response({"detail": [{"loc": ["body", "language"], "type": "literal_error"}]}, status=422)
    file = {"name": "main.py", "content": body["code"]}
    code, out, err = await _run([file], [], body.get("stdin") or "", body["run_timeout"])
    run = {
        "status": "TimeLimitExceeded" if code is None else "Finished",
        "execution_time": 0.0123,
        "return_code": code,
        "stdout": out,
        "stderr": err,
    }
    status = "Failed" if code != 0 else "Success"
    answer = {"status": status, "message": "", "compile_result": None, "run_result": run, "files": {}}
    return web.json_response(answer)


async def _run(files: list[dict[str, str]], args: list[str], stdin: str, seconds: float) -> tuple[int | None, str, str]:
    """Return the exit code, None after a timeout, and the output."""
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            (Path(folder) / file["name"]).write_text(file["content"])
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, files[0]["name"], *args),
            cwd=folder,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(stdin.encode()), seconds)
        except TimeoutError:
            process.kill()
            await process.wait()
            return None, "", ""
    return process.returncode, out.decode(), err.decode()
