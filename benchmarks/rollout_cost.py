"""What a rollout costs beside generation: agent loops with an engine that answers at once, by canned tokens.

OMP_NUM_THREADS=1 .venv/bin/python benchmarks/rollout_cost.py [--sizes 64x10 64x40 64x128] [--rounds 5]
OMP_NUM_THREADS=1 .venv/bin/python benchmarks/rollout_cost.py --sizes 4096x10 --delay 20 --rounds 3   # lag
OMP_NUM_THREADS=1 .venv/bin/python benchmarks/rollout_cost.py --sizes 65536x10 --at-once 1024 --rounds 1   # memory

Systems: verl's `ToolAgentLoop` in verl's own worker, and turnmill's agents `multi_turn` and `tool`, each in a process
of its own, in an order that changes with every round; a cell is the median of the rounds. Responses have 200 tokens,
observations of a constant tool in the same process 64. verl's rows are recorded nowhere; turnmill writes its log of
trajectories. The engine alone is measured as well: no system can be faster. Every turn must be played, every trained
token sampled, and the rows of all rounds the same; those of `multi_turn` must be verl's. Rows are kept until the end,
as numbers of four and eight bytes. All trajectories are in flight at once, or as many as `--at-once` says: what
`maxConcurrentTrajectories` is in a job, where it is 1,024 by default.
"""

import argparse
import asyncio
import cProfile
import hashlib
import itertools
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runs import table

ROOT = Path(__file__).parents[1]
SYSTEMS = ("engine", "verl", "multi_turn", "tool")
RESPONSE_TOKENS, OBSERVATION_TOKENS, NUM_RESPONSES = 200, 64, 32
VOCABULARY = 32_000
TICK_SECONDS = 0.005
MIB = 2**20
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

TEMPLATE = """
{%- if tools %}{{- '<|im_start|>system\\nAnswer the question. You may call these functions:\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + tool | tojson }}{% endfor %}
{{- '\\n</tools>\\nCall one as <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{% endif %}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson + '}\\n' }}
{{- '</tool_call>' }}{% endfor %}
{{- '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
"""A template like those of Qwen's models."""

CALL = '<tool_call>\n{"name": "look_up", "arguments": {"name": "page %d"}}\n</tool_call>'
TOOL = '''
from pathlib import Path

from verl.tools.function_tool import function_tool

TEXT = Path(__file__).with_name("observation.txt").read_text()


@function_tool
def look_up(name: str):
    """Return the text of a page.

    Args:
        name: The name of the page.
    """
    return TEXT
'''


def main() -> None:
    """Measure every system at every size, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["64x10", "64x40", "64x128"], help="trajectories x turns")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--delay", type=float, default=0.0, help="seconds of a generation, at most")
    parser.add_argument("--at-once", type=int, help="trajectories in flight at a time")
    parser.add_argument("--profile", type=Path, help="a file for cProfile, with one system and one size")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    sizes = [tuple(map(int, size.split("x"))) for size in given.sizes]
    if given.one:
        (system,), ((trajectories, turns),) = given.systems, sizes
        at_once = given.at_once or trajectories
        print(json.dumps(measure(system, trajectories, turns, given.one, given.delay, at_once, given.profile)))
        return
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        command = [sys.executable, __file__, "--one", folder, "--delay", str(given.delay)]
        command += ["--profile", str(given.profile)] if given.profile else []
        command += ["--at-once", str(given.at_once)] if given.at_once else []
        found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for number in range(given.rounds):
            for size in given.sizes:
                systems = given.systems[:: 1 if number % 2 else -1]
                for system in systems:
                    arguments = [*command, "--systems", system, "--sizes", size]
                    ended = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=True)
                    found[size, system].append(json.loads(ended.stdout.splitlines()[-1]))
            # After every round: what is measured stays known if a later round is interrupted.
            print(report(given.sizes, given.systems, found), flush=True)


def report(sizes: Sequence[str], systems: Sequence[str], found: dict[tuple[str, str], list[dict[str, Any]]]) -> str:
    """Return the medians of the rounds, checked, as a table."""
    columns = ("turns_per_cpu_second", "cpu_ms_per_turn", "lag_p99_ms", "memory_mib")
    lines = []
    for size, system in itertools.product(sizes, systems):
        rounds = found[size, system]
        assert all(each["missing_turns"] == each["foreign_tokens"] == 0 for each in rounds), (size, system, rounds)
        digests = {each["digest"] for each in rounds}
        assert len(digests) == 1, f"{size}, {system}: the rounds have different rows"
        if system == "multi_turn" and found[size, "verl"]:
            assert digests == {each["digest"] for each in found[size, "verl"]}, f"{size}: rows that are not verl's"
        values = [statistics.median(each[column] for each in rounds) for column in columns]
        peers = [each["turns_per_cpu_second"] for each in found[size, "verl"]]
        ratio = values[0] / statistics.median(peers) if peers and system != "verl" else 1.0
        lines.append(
            (size, system, f"{values[0]:,.0f}", f"{ratio:.2f}", *(f"{value:.3g}" for value in values[1:]),
             min(digests)[:8])
        )  # fmt: skip
    return table(("size", "system", "turns/CPU s", "verl's", "CPU ms/turn", "lag p99 ms", "MiB", "rows"), lines)


# ---- one system at one size ----


def measure(
    system: str, trajectories: int, turns: int, folder: Path, delay: float, at_once: int, profile: Path | None
) -> dict[str, Any]:
    """Play all trajectories; return what they took, and what is wrong with their rows."""
    with tempfile.TemporaryDirectory(dir=folder) as run_dir:
        engine = Engine(json.loads((folder / "canned.json").read_text())[system == "tool"], turns, delay)
        return asyncio.run(_measure(system, trajectories, turns, engine, folder, Path(run_dir), at_once, profile))


async def _measure(
    system: str,
    trajectories: int,
    turns: int,
    engine: "Engine",
    folder: Path,
    run_dir: Path,
    at_once: int,
    profile: Path | None,
) -> dict[str, Any]:
    play = PLAYERS[system](engine, folder, run_dir, turns)
    # Imports and caches of the first trajectory are no cost of a turn.
    await play(trajectories)
    engine.emitted.clear()
    _reset_peak()
    before_bytes = _status("VmRSS")
    started, started_cpu = time.monotonic(), _cpu_seconds()
    with cProfile.Profile(time.thread_time) if profile else nullcontext() as profiler:
        episodes, lags = await _play_all(play, trajectories, at_once)
    cpu_seconds, seconds = _cpu_seconds() - started_cpu, time.monotonic() - started
    peak_bytes = _status("VmHWM")
    if profile and profiler:
        profiler.dump_stats(profile)
    num_turns = sum(engine.num_responses(name) for name in engine.emitted)
    return {
        "turns_per_cpu_second": num_turns / cpu_seconds,
        "cpu_ms_per_turn": 1000 * cpu_seconds / num_turns,
        "turns_per_second": num_turns / seconds,
        "lag_p99_ms": 1000 * statistics.quantiles(lags, n=100)[98] if len(lags) > 1 else 0.0,
        "memory_mib": (peak_bytes - before_bytes) / MIB,
        "missing_turns": trajectories * turns - num_turns,
        "foreign_tokens": _foreign_tokens(episodes, engine) if system != "engine" else 0,
        "digest": _digest(episodes),
    }


@dataclass
class Played:
    """The rows of a trajectory: prompt, response, mask and log-probs of each."""

    rows: list[tuple["array[int]", "array[int]", "array[int]", "array[float]"]] = field(default_factory=list)


Play = Callable[[int], Awaitable[Played]]


async def _play_all(play: Play, trajectories: int, at_once: int) -> tuple[list[Played], list[float]]:
    lags: list[float] = []
    ticking = asyncio.create_task(_tick(lags))
    limit = asyncio.Semaphore(at_once)

    async def limited(number: int) -> Played:
        async with limit:
            return await play(number)

    episodes = await asyncio.gather(*(limited(number) for number in range(trajectories)))
    ticking.cancel()
    return list(episodes), lags


async def _tick(lags: list[float]) -> None:
    """Add how late each of the times that are `TICK_SECONDS` apart is reached, also those that are missed."""
    due = time.monotonic() + TICK_SECONDS
    while True:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        now = time.monotonic()
        while due <= now:
            lags.append(now - due)
            due += TICK_SECONDS


class Engine:
    """verl's client of an inference engine, which has an answer for every turn of every trajectory."""

    def __init__(self, canned: dict[str, list[list[int]]], turns: int, delay: float) -> None:
        self.emitted: dict[str, bytearray] = defaultdict(bytearray)
        """All tokens of a trajectory, packed."""

        self._calls = [array("i", ids) for ids in canned["calls"]]
        self._answers = [array("i", ids) for ids in canned["answers"]]
        generator = random.Random(0)
        self._log_probs = array("d", (-generator.random() for _ in range(RESPONSE_TOKENS)))
        self._turns = turns
        self._delay = delay
        self._random = generator

    def num_responses(self, name: str) -> int:
        return len(self.emitted[name]) // (4 * RESPONSE_TOKENS)

    async def generate(self, request_id: str, **_: object) -> Any:
        """Return the next response of a trajectory, in objects of its own."""
        from verl.workers.rollout.replica import TokenOutput

        if self._delay:
            await asyncio.sleep(self._random.uniform(0, self._delay))
        else:
            await asyncio.sleep(0)
        number = self.num_responses(request_id)
        canned = self._calls if number + 1 < self._turns else self._answers
        ids = canned[number % len(canned)]
        self.emitted[request_id] += ids.tobytes()
        return TokenOutput(
            token_ids=ids.tolist(),
            log_probs=self._log_probs.tolist(),
            stop_reason="completed",
            extra_fields={"min_global_steps": 1, "max_global_steps": 1},
        )


# ---- the systems ----


def engine_alone(engine: Engine, folder: Path, run_dir: Path, turns: int) -> Play:
    async def play(number: int) -> Played:
        for _ in range(turns):
            await engine.generate(f"trajectory-{number}", prompt_ids=[])
        return Played()

    return play


def verl_loop(engine: Engine, folder: Path, run_dir: Path, turns: int) -> Play:
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

    from turnmill.testing.agent_loops import SAMPLING

    class Worker(AgentLoopWorker):
        """Returns what the loop returns."""

        async def _agent_loop_postprocess(self, output: Any, validate: bool, **row: object) -> Any:
            return output

    worker = Worker(_config(_chat_job(folder, turns), folder, run_dir), engine, None, None)
    prompt = json.loads((folder / "tasks.jsonl").read_text())["prompt"]

    async def play(number: int) -> Played:
        where = {"step": 1, "sample_index": number, "rollout_n": 0, "validate": False}
        row = {"raw_prompt": prompt, "index": number, "extra_info": {}, "tools_kwargs": {}}
        output = await worker._run_agent_loop(dict(SAMPLING), where, agent_name="tool_agent", trace=False, **row)
        return _played([output])

    return play


def multi_turn(engine: Engine, folder: Path, run_dir: Path, turns: int) -> Play:
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

    from turnmill.core.garbage import collect_rarely
    from turnmill.rollout.journal import NoJournal
    from turnmill.rollout.multi_turn.worker_mixin import MultiTurnWorkerMixin
    from turnmill.testing.agent_loops import SAMPLING

    class Worker(MultiTurnWorkerMixin, AgentLoopWorker):
        """Returns the rows that it would put into the queue."""

    collect_rarely()
    worker = Worker(_config(_chat_job(folder, turns), folder, run_dir), engine, None, None, journal=NoJournal())

    async def play(number: int) -> Played:
        row = {"uid": f"task-{number}", "index": number, "session_id": 0, "global_steps": 1}
        return _played(await worker.play(SAMPLING, validate=False, **row))

    return play


def tool(engine: Engine, folder: Path, run_dir: Path, turns: int) -> Play:
    from transformers import AutoTokenizer

    from turnmill.core.garbage import collect_rarely
    from turnmill.rollout.tool_agent.loop import ToolLoop
    from turnmill.rollout.tool_agent.replies import ToolReply
    from turnmill.rollout.tool_agent.rows import verl_rows
    from turnmill.rollout.verl_classes import DictConfigWrap
    from turnmill.testing.agent_loops import SAMPLING

    class Tool:
        """A client of tool servers that answers itself."""

        text = (folder / "observation.txt").read_text()

        async def call(self, request: object) -> ToolReply:
            return ToolReply(self.text, done=False, valid=True)

        async def finish(self, trajectory_id: str) -> bool:
            return True

    collect_rarely()
    job = _tool_job(folder, turns)
    config = _config(job, folder, run_dir)
    loop = ToolLoop(
        trainer_config=DictConfigWrap(config),
        server_manager=engine,
        tokenizer=AutoTokenizer.from_pretrained(folder / "model"),
        processor=None,
        hf_model_type="qwen2",
        dataset_cls=None,
        data_config=DictConfigWrap(config.data),
        job=job,
        run_dir=run_dir,
        tool_server_url="http://127.0.0.1:1",
    )
    loop.tools = Tool()

    async def play(number: int) -> Played:
        result = await loop.run(SAMPLING, index=number, session_id=0, global_steps=1)
        return _played(verl_rows(result, log_probs=True))

    return play


PLAYERS = {"engine": engine_alone, "verl": verl_loop, "multi_turn": multi_turn, "tool": tool}


def _played(rows: Sequence[Any]) -> Played:
    return Played(
        [
            (
                array("i", row.prompt_ids),
                array("i", row.response_ids),
                array("i", row.response_mask),
                array("d", row.response_logprobs),
            )
            for row in rows
        ]
    )


# ---- jobs, model and tasks ----


def _chat_job(folder: Path, turns: int) -> Any:
    from turnmill.testing.conversations import conversation_job

    return conversation_job(
        folder / "tasks.jsonl",
        functionToolPath=str(folder / "tool.py"),
        maxToolResponseLength=10_000,
        maxResponseLength=_max_tokens(turns),
    )


def _tool_job(folder: Path, turns: int) -> Any:
    from turnmill.testing.agent_loops import tool_job

    options = {
        "path": str(folder / "tasks.jsonl"),
        "validationTasks": 0,
        "reward": "turnmill.testing.conversations:says_done",
    }
    return tool_job(
        {"name": "dataset", "options": options},
        stopTokens=["</tool_call>"],
        enableMtrl=True,
        maxTurns=turns,
        maxResponseLength=_max_tokens(turns),
        maxConcurrentTrajectories=None,
    )


def _max_tokens(turns: int) -> int:
    return turns * (RESPONSE_TOKENS + OBSERVATION_TOKENS + 32) + RESPONSE_TOKENS


def _config(job: Any, folder: Path, run_dir: Path) -> Any:
    from omegaconf import OmegaConf

    from turnmill.observability.run_folder import RunFolder
    from turnmill.training.verl.config import build_verl_config

    RunFolder(run_dir).create()
    config = build_verl_config(job, model=folder / "model", run_dir=run_dir, device="cpu")
    OmegaConf.set_struct(config, False)
    OmegaConf.resolve(config)
    return config


def write_model(folder: Path) -> None:
    """Write a tokenizer made from texts of the repository, and the canned texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import Qwen2Config, Qwen2Tokenizer

    texts = [path.read_text() for pattern in ("docs/**/*.md", "platform/**/*.py", "tests/**/*.py")
             for path in sorted(ROOT.glob(pattern))]  # fmt: skip
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    )
    model = json.loads(trained.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=model["vocab"],
        merges=[tuple(merge) for merge in model["merges"]],
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=list(SPECIAL),
        chat_template=TEMPLATE,
    )
    tokenizer.save_pretrained(folder / "model")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    sizes["max_position_embeddings"] = 2**17
    Qwen2Config(vocab_size=len(tokenizer), architectures=["Qwen2ForCausalLM"], **sizes).save_pretrained(
        folder / "model"
    )
    prose = (ROOT / "docs" / "architecture.md").read_text() + (ROOT / "docs" / "tool-agent.md").read_text()
    words = tokenizer.encode(" ".join(prose.replace("`", "").replace("|", "").split()), add_special_tokens=False)
    (folder / "canned.json").write_text(
        json.dumps([_canned(tokenizer, words, end=end) for end in ("<|im_end|>", "")])
    )  # fmt: skip
    (folder / "observation.txt").write_text(tokenizer.decode(words[:OBSERVATION_TOKENS]))
    (folder / "tool.py").write_text(TOOL)
    task = {"prompt": [{"role": "user", "content": "Which page says how a tool is called? Look pages up."}],
            "reward_model": {"ground_truth": ""}}  # fmt: skip
    (folder / "tasks.jsonl").write_text(json.dumps(task) + "\n")


def _canned(tokenizer: Any, words: Sequence[int], *, end: str) -> dict[str, list[list[int]]]:
    """Return responses that end with a call, and some that are answers."""
    canned: dict[str, list[list[int]]] = {"calls": [], "answers": []}
    for number in range(NUM_RESPONSES):
        for kind, tail in (("calls", CALL % number + end), ("answers", "<|im_end|>")):
            tail_ids = tokenizer.encode(tail, add_special_tokens=False)
            start = number * RESPONSE_TOKENS % (len(words) - RESPONSE_TOKENS)
            canned[kind].append([*words[start : start + RESPONSE_TOKENS - len(tail_ids)], *tail_ids])
    return canned


# ---- checks ----


def _foreign_tokens(episodes: Sequence[Played], engine: Engine) -> int:
    """Count the trained tokens that the engine did not emit for the same trajectory, and those it emitted besides."""
    emitted = sorted(bytes(packed) for packed in engine.emitted.values())
    trained = sorted(_trained(played) for played in episodes)
    return sum(abs(len(one) - len(other)) // 4 + (one != other) for one, other in zip(emitted, trained, strict=True))


def _trained(played: Played) -> bytes:
    return b"".join(array("i", itertools.compress(ids, mask)).tobytes() for _, ids, mask, _ in played.rows)


def _digest(episodes: Sequence[Played]) -> str:
    digest = hashlib.sha256()
    for played in episodes:
        for row in played.rows:
            for values in row:
                digest.update(values)
    return digest.hexdigest()


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    main()
