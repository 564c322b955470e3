"""verifiers' interception server for `gateway_cost.py`, run by a Python that has `verifiers==0.4.0`.

PYTHON gateway_cost_verifiers.py ENGINE_URL MODEL_FOLDER SESSIONS: prints a line of JSON with the address and a key for
each session, and serves until a signal.
"""

import asyncio
import json
import signal
import sys

from renderers.configs import Qwen3RendererConfig
from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.client import TrainClientConfig
from verifiers.v1.interception import InterceptionServer
from verifiers.v1.session import RolloutSession
from verifiers.v1.task import TaskData
from verifiers.v1.trace import AgentInfo, Trace, TraceTask


async def serve(engine_url: str, model: str, sessions: int) -> None:
    """Serve until a signal."""
    client = TrainClientConfig(
        base_url=f"{engine_url}/v1", api_key_var="NO_KEY", renderer=Qwen3RendererConfig(), renderer_model_name=model
    )
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with InterceptionServer() as server:
        keys = []
        for number in range(sessions):
            task = TraceTask(type="Task", data=TaskData(idx=number, prompt="?"))
            session = RolloutSession(
                ctx=ModelContext(model="policy", client=client), trace=Trace(task=task, agent=AgentInfo(config={}))
            )
            keys.append(server.register(session)[0])
        print(json.dumps({"url": server.base_url, "keys": keys}), flush=True)
        await stopped.wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2], int(sys.argv[3])))
