"""verl's agent loop and turnmill's for `rollout_cost.py`, and the engine alone: FOLDER SYSTEM SIZE, see the harness."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollout_cost_harness import (
    CUT,
    ENDED,
    OBSERVATION_TOKENS,
    RESPONSE_TOKENS,
    Engine,
    Play,
    Played,
    Player,
    main,
    name_of,
)

# ---- the systems ----


class Client:
    """verl's client of an inference engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def generate(self, request_id: str, **_: object) -> Any:
        """Return the next response of a trajectory, in objects of its own."""
        from verl.workers.rollout.replica import TokenOutput

        response = await self.engine.respond(request_id)
        return TokenOutput(
            token_ids=response.ids.tolist(),
            log_probs=self.engine.log_probs(),
            stop_reason="completed",
            extra_fields={"min_global_steps": 1, "max_global_steps": 1},
        )


def engine_alone(engine: Engine, folder: Path, run_dir: Path) -> Play:
    client = Client(engine)

    async def play(number: int) -> Played:
        for _ in range(engine.turns):
            await client.generate(name_of(number), prompt_ids=[])
        return Played()

    return play


def verl_loop(engine: Engine, folder: Path, run_dir: Path, *, function: Path | None = None) -> Play:
    """Prepare verl's loop, with the tool in a file."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

    from turnmill.testing.agent_loops import SAMPLING

    class Worker(AgentLoopWorker):
        """Returns what the loop returns."""

        async def _agent_loop_postprocess(self, output: Any, validate: bool, **row: object) -> Any:
            return output

    worker = Worker(config_of(chat_job(folder, engine.turns, function), folder, run_dir), Client(engine), None, None)
    prompt = json.loads((folder / "tasks.jsonl").read_text())["prompt"]

    async def play(number: int) -> Played:
        where = {"step": 1, "sample_index": number, "rollout_n": 0, "validate": False}
        row = {"raw_prompt": prompt, "index": number, "extra_info": {}, "tools_kwargs": {}}
        output = await worker._run_agent_loop(dict(SAMPLING), where, agent_name="tool_agent", trace=False, **row)
        return played_rows([output])

    return play


def multi_turn(engine: Engine, folder: Path, run_dir: Path, *, function: Path | None = None) -> Play:
    """Prepare `multi_turn`, with the tool in a file."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

    from turnmill.core.garbage import collect_rarely
    from turnmill.rollout.journal import NoJournal
    from turnmill.rollout.multi_turn.worker_mixin import MultiTurnWorkerMixin
    from turnmill.testing.agent_loops import SAMPLING

    class Worker(MultiTurnWorkerMixin, AgentLoopWorker):
        """Returns the rows that it would put into the queue."""

    collect_rarely()
    worker = Worker(
        config_of(chat_job(folder, engine.turns, function), folder, run_dir),
        Client(engine),
        None,
        None,
        journal=NoJournal(),
    )

    async def play(number: int) -> Played:
        row = {"uid": f"task-{number}", "index": number, "session_id": 0, "global_steps": 1}
        return played_rows(await worker.play(SAMPLING, validate=False, **row))

    return play


def tool(engine: Engine, folder: Path, run_dir: Path, *, url: str = "") -> Play:
    """Prepare `tool`, whose tool answers in the same process, or by the server at an address."""
    from turnmill.rollout.tool_agent.loop import ToolLoop
    from turnmill.rollout.tool_agent.rows import verl_rows
    from turnmill.testing.agent_loops import SAMPLING

    job = tool_job(folder, engine.turns)
    loop = loop_of(ToolLoop, job, engine, folder, run_dir, tool_server_url=url or "http://127.0.0.1:1")
    if not url:
        loop.tools = constant_tool(folder)

    async def play(number: int) -> Played:
        result = await loop.run(SAMPLING, index=number, session_id=0, global_steps=1)
        return played_rows(verl_rows(result, log_probs=True))

    return play


def loop_of(kind: type, job: Any, engine: Engine, folder: Path, run_dir: Path, **more: object) -> Any:
    """Return one of turnmill's agent loops, with garbage collected as in its workers."""
    from transformers import AutoTokenizer

    from turnmill.core.garbage import collect_rarely
    from turnmill.rollout.verl_classes import DictConfigWrap

    collect_rarely()
    config = config_of(job, folder, run_dir)
    return kind(
        trainer_config=DictConfigWrap(config),
        server_manager=Client(engine),
        tokenizer=AutoTokenizer.from_pretrained(folder / "model"),
        processor=None,
        hf_model_type="qwen2",
        dataset_cls=None,
        data_config=DictConfigWrap(config.data),
        job=job,
        run_dir=run_dir,
        **more,
    )


def constant_tool(folder: Path) -> Any:
    """Return a client of tool servers that answers itself."""
    from turnmill.rollout.tool_agent.replies import ToolReply

    class Tool:
        """Answers with the same text."""

        text = (folder / "observation.txt").read_text()

        async def call(self, request: object) -> ToolReply:
            return ToolReply(self.text, done=False, valid=True)

        async def finish(self, trajectory_id: str) -> bool:
            return True

        async def close(self) -> None:
            """Do nothing."""

    return Tool()


def played_rows(rows: Sequence[Any]) -> Played:
    played = Played()
    for row in rows:
        played.add(row.prompt_ids, row.response_ids, row.response_mask, row.response_logprobs)
    return played


PLAYERS = {
    "engine": Player(ENDED, engine_alone, has_rows=False),
    "verl": Player(ENDED, verl_loop),
    "multi_turn": Player(ENDED, multi_turn),
    "tool": Player(CUT, tool),
}
"""What is measured, by name."""

# ---- jobs, model and tasks ----


def chat_job(folder: Path, turns: int, function: Path | None = None) -> Any:
    from turnmill.testing.conversations import conversation_job

    return conversation_job(
        folder / "tasks.jsonl",
        functionToolPath=str(function or folder / "tool.py"),
        maxToolResponseLength=10_000,
        maxResponseLength=max_tokens(turns),
    )


def tool_job(folder: Path, turns: int) -> Any:
    from turnmill.testing import agent_loops

    options = {
        "path": str(folder / "tasks.jsonl"),
        "validationTasks": 0,
        "reward": "turnmill.testing.conversations:says_done",
    }
    return agent_loops.tool_job(
        {"name": "dataset", "options": options},
        stopTokens=["</tool_call>"],
        enableMtrl=True,
        maxTurns=turns,
        maxResponseLength=max_tokens(turns),
        maxConcurrentTrajectories=None,
        toolCallTimeout=60.0,
        toolOutageTimeout=60.0,
    )


def max_tokens(turns: int) -> int:
    return turns * (RESPONSE_TOKENS + OBSERVATION_TOKENS + 32) + RESPONSE_TOKENS


def config_of(job: Any, folder: Path, run_dir: Path) -> Any:
    from omegaconf import OmegaConf

    from turnmill.observability.run_folder import RunFolder
    from turnmill.training.verl.config import build_verl_config

    RunFolder(run_dir).create()
    config = build_verl_config(job, model=folder / "model", run_dir=run_dir, device="cpu")
    OmegaConf.set_struct(config, False)
    OmegaConf.resolve(config)
    return config


if __name__ == "__main__":
    main(PLAYERS)
