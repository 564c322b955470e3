"""Arithmetic behind OpenEnv's protocol: a source with demonstrations, and the server whose tool is a calculator."""

import itertools
import json
from dataclasses import replace
from typing import Any, ClassVar

from support.openenv_servers import called, observation
from turnmill.openenv.tasks import OpenEnvTaskOptions, OpenEnvTasks
from turnmill.tasks.base import Task
from turnmill.tasks.calculator import Calculator


class OpenEnvCalculator(Calculator):
    """Tasks of the calculator, with what `turnmill.openenv:play` reads."""

    name: ClassVar[str] = "support.openenv_tasks:OpenEnvCalculator"
    Settings = OpenEnvTaskOptions

    def _task(self, stream: str, number: int) -> Task:
        info = OpenEnvTasks(self.options, self.seed).training(number).extra_info
        return replace(super()._task(stream, number), extra_info=info)


class CalculatorServer:
    """Rewards calls of the calculator, and every other session from its beginning, so that groups differ."""

    def __init__(self) -> None:
        self.num_calls = 0
        self._sessions = itertools.count()

    def __call__(self, connection: Any) -> None:
        """Serve a session."""
        opening = float(next(self._sessions) % 2)
        tool = {"name": "calculator", "description": "Computes.", "inputSchema": {"type": "object", "properties": {}}}
        for raw in connection:
            message = json.loads(raw)
            if message["type"] == "close":
                return
            if message["type"] == "reset":
                reply = observation({"text": ""}, opening)
            elif message["type"] == "mcp":
                reply = {"type": "mcp", "data": {"jsonrpc": "2.0", "id": 1, "result": {"tools": [tool]}}}
            else:
                self.num_calls += 1
                reply = observation(called("calculator", result={"content": [], "data": 714}), 1.0)
            connection.send(json.dumps(reply))
