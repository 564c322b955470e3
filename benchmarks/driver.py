"""The driver's own work in a step: synthetic rows in verl's queue, one trajectory each, and no model.

OMP_NUM_THREADS=1 .venv/bin/python benchmarks/driver.py [--rows 1024 10240] [--tokens 2000] [--steps 1]

Processor time of the driver by part of a step, from the arrival of the last row to the clearing of the queue, and how
much memory it takes beside what it had before. A step waits for the first parts; what is done aside goes on while
workers compute or agents play, and is done here after the part beside which it begins. Another process puts the rows
into the queue. Workers are dealt their rows and answer without computing. No token is read.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from runs import table

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "manifests" / "examples" / "tool-arithmetic-cpu.yaml"
GROUP = 8
ROWS_AT_ONCE = 1000
GIB = 2**30
NUM_WORKERS = 64


def main() -> None:
    """Measure each number of rows in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1024, 10_240])
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--algorithm", default="grpo")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.rows[0], given.tokens, given.algorithm, given.steps)))
        return
    found = []
    for rows in given.rows:
        command = [sys.executable, __file__, "--one", "--rows", str(rows), "--tokens", str(given.tokens)]
        command += ["--algorithm", given.algorithm, "--steps", str(given.steps)]
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found.append(json.loads(ended.stdout.splitlines()[-1]))
    parts = found[0].keys()
    print(
        table(("rows", *parts), [(f"{rows:,}", *each.values()) for rows, each in zip(given.rows, found, strict=True)])
    )


def measure(rows: int, tokens: int, algorithm: str, steps: int) -> dict[str, float]:
    """Return medians of seconds by part over some steps, and the driver's memory and records in GiB."""
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf

    from turnmill.core.garbage import collect_rarely
    from turnmill.jobs import load_job
    from turnmill.training.verl.config import build_verl_config
    from turnmill.training.verl.patches import queue_controller, queue_decoding

    # As many for each worker, so that verl adds no rows.
    rows -= rows % (GROUP * NUM_WORKERS)
    tasks = rows // GROUP
    sizes = [f"training.tasksPerStep={tasks}", f"algorithm.minibatchTasks={tasks}", f"algorithm.type={algorithm}"]
    job = load_job(EXAMPLE, ["algorithm.kl.coefficient=0", *sizes])
    with tempfile.TemporaryDirectory() as folder:
        config = build_verl_config(job, model=Path(folder), run_dir=Path(folder), device="cpu")
        OmegaConf.set_struct(config, False)
        config.transfer_queue.enable = True
        OmegaConf.resolve(config)
        ray.init(address="local", include_dashboard=False, log_to_driver=False, num_cpus=16)
        queue_decoding.apply()
        with queue_controller.applied():
            tq.init(config.transfer_queue)
        ray.get(ray.remote(fill).remote(rows, tokens))
        trainer, found = trainer_without_run(job, config, folder), []
        collect_rarely()
        Path("/proc/self/clear_refs").write_text("5")
        before = memory("VmRSS")
        for repetition in range(steps):
            if repetition:
                ray.get(ray.remote(fill).remote(rows, tokens))
            watch = Stopwatch(trainer._aside)
            step(trainer, tasks, watch.during)
            found.append(watch.found)
        peak = memory("VmHWM") - before
        records = sum(file.stat().st_size for file in Path(folder).rglob("*.parquet"))
        tq.close()
        ray.shutdown()
    medians = {name: round(statistics.median(each[name] for each in found), 2) for name in found[0]}
    return medians | {"memory, GiB": round(peak / GIB, 2), "records, MiB": round(records / 2**20, 1)}


def trainer_without_run(job: Any, config: Any, folder: str) -> Any:
    """Return a trainer with only what the batch of a step needs."""
    from verl.single_controller.base.worker_group import WorkerGroup
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

    from turnmill.observability.run_folder import RunFolder
    from turnmill.observability.trajectory_log import TrajectoryLog
    from turnmill.training.replay_buffers import StepReplayBuffer
    from turnmill.training.trainers.trajectory import TrajectoryTrainer

    class Workers(WorkerGroup):
        """Workers that are dealt rows and do nothing with them."""

        def __init__(self) -> None:
            super().__init__(resource_pool=None)
            self._workers = [None] * NUM_WORKERS
            self._dispatch_info, self._collect_info = {"actor": [*range(NUM_WORKERS)]}, {"actor": [True] * NUM_WORKERS}

        def compute_log_prob(self, batch: Any) -> Any:
            """Deal a batch, and collect what workers answer that have written two columns."""
            return hand_out(self, batch, "compute_log_prob")

    class WithoutRun(TrajectoryTrainer):
        """The trainer of a step, whose rows one process trains on."""

        def __init__(self) -> None:
            self.job, self.config, self.global_steps, self.use_critic = job, config, 1, False
            self.total_training_steps = 2
            run = RunFolder(folder)
            run.create()
            self.trajectory_log = TrajectoryLog(run)
            self.replay_buffer: ReplayBuffer = StepReplayBuffer(
                "sync", config, None, "drop", config, poll_interval=0.02
            )
            self._num_requested = Counter({1: job.spec.tasks_per_step})
            self.actor_rollout_wg = Workers()
            self.tokenizer = SimpleNamespace(eos_token_id=0)
            self._rollout_moe_lb_metrics_accumulator = None

        def _get_n_gpus_for_throughput(self) -> int:
            return 1

    return WithoutRun()


def step(trainer: Any, tasks: int, during: Callable[[str], AbstractContextManager[None]]) -> None:
    """Do the driver's part of a step: take the rows, hand them out, compute advantages and metrics, clear the queue."""
    import transfer_queue as tq

    metrics: dict[str, float] = {}
    with during("taking"):
        batch, _ = trainer.replay_buffer.sample(1, "train", tasks)
    with during("ordering"):
        batch = trainer._balance_batch(batch, metrics)
    with during("dealing"):
        batch = trainer._compute_old_log_prob(batch, metrics)
    with during("aside: advantages"):
        trainer._estimated.result()
    with during("advantages"):
        batch = trainer._compute_advantage(batch, metrics)
    with during("dealing"):
        hand_out(trainer.actor_rollout_wg, batch, "update_actor")
    with during("aside: metrics"):
        metrics.update(trainer._described.result())
    with during("metrics"):
        trainer._compute_metrics(batch, metrics, {"step": 1.0, "gen": 1.0}, global_steps=1, epoch=0)
    with during("aside: clearing"):
        trainer._cleared.result()
    with during("metrics"):
        tq.kv_clear(keys=batch.keys, partition_id=batch.partition_id)


def hand_out(group: Any, batch: Any, call: str) -> Any:
    """Deal a batch to 64 workers as verl does for a call of theirs, and return what they answer, if it is collected."""
    import ray
    from verl.single_controller.base.decorator import MAGIC_ATTR

    from turnmill.training.verl.workers import PolicyWorker

    mode = getattr(getattr(PolicyWorker, call), MAGIC_ATTR)["dispatch_mode"]
    ((parts,), _) = mode["dispatch_fn"](group, batch)
    return mode["collect_fn"](group, [answer(part) for part in ray.get(parts)]) if call == "compute_log_prob" else None


def answer(part: Any) -> Any:
    """Return what a worker answers that has written log-probs and entropies, with its statistics of them."""
    from turnmill.training import response_columns

    shapes = [(1,)] * part.size
    column = {"dtype": None, "shape": None, "is_nested": True, "is_non_tensor": False, "per_sample_shapes": shapes}
    part.field_schema |= {"old_log_probs": column, "entropy": column}
    tokens = torch.full((1, 2), -0.5), torch.full((1, 2), -0.4), torch.ones(1, 2)
    found = response_columns.LogProbStatistics(0.5, part.size, response_columns.compare(*tokens))
    part.extra_info = {response_columns._STATISTICS: found}
    return part


PARTS = ("taking", "ordering", "dealing", "advantages", "metrics")
"""What a step waits for; the rest is done while workers compute or agents play."""


class Stopwatch:
    """Wall-clock time, and processor time of this process without what is done aside, by part of a step."""

    def __init__(self, aside: ThreadPoolExecutor) -> None:
        self.wall: Counter[str] = Counter()
        self.cpu: Counter[str] = Counter()
        self._clock = time.pthread_getcpuclockid(aside.submit(threading.get_ident).result())
        self._begin = time.clock_gettime(self._clock)

    @contextmanager
    def during(self, part: str) -> Iterator[None]:
        """Add the time of the context to a part."""
        started, cpu = time.perf_counter(), time.process_time() - time.clock_gettime(self._clock)
        yield
        self.wall[part] += time.perf_counter() - started
        self.cpu[part] += time.process_time() - time.clock_gettime(self._clock) - cpu

    @property
    def found(self) -> dict[str, float]:
        """Seconds by part, of all parts that a step waits for, and of what is done aside."""
        waits = sum(self.cpu[part] for part in PARTS)
        aside = time.clock_gettime(self._clock) - self._begin + self.cpu.total() - waits
        wall = sum(self.wall[part] for part in PARTS)
        parts = {part: self.cpu[part] for part in PARTS}
        return parts | {"waits, CPU": waits, "aside, CPU": aside, "all, CPU": waits + aside, "waits, wall": wall}


def fill(rows: int, tokens: int) -> None:
    """Put a step's prompts and rows into the queue, in a worker, in narrow types so that they fit on one machine."""
    import transfer_queue as tq
    from tensordict import TensorDict

    from turnmill.core.trajectory import EpisodeSummary
    from turnmill.rollout.queue_payload import encode
    from turnmill.rollout.row_tags import EPISODE, NUM_TURNS, SCORE, TRAINED_TOKENS, UNSAMPLED_TOKENS

    tq.init()
    for first in range(0, rows, ROWS_AT_ONCE):
        numbers = range(first, min(rows, first + ROWS_AT_ONCE))
        lengths = [tokens - n % 7 for n in numbers]
        responses = [torch.randint(0, 150_000, (length,), dtype=torch.int32) for length in lengths]
        columns = {
            "responses": responses,
            "response_mask": [torch.ones(length, dtype=torch.int8) for length in lengths],
            "rm_scores": [torch.zeros(length, dtype=torch.float16) for length in lengths],
        }
        tags = [
            {
                "status": "success", "prompt_len": 500, "response_len": length, "seq_len": 500 + length,
                "global_steps": 1, "min_global_steps": 0, "max_global_steps": 0, NUM_TURNS: 1,
                SCORE: float(n % 3 == 0), TRAINED_TOKENS: length, UNSAMPLED_TOKENS: 0,
                EPISODE: encode(
                    EpisodeSummary(
                        episode_id=str(n), reward=float(n % 3 == 0), stop_reason="completed", success=n % 3 == 0,
                        num_turns=1, seconds={"generation": 1.0, "tools": 1.0, "loop": 0.1},
                        metrics={f"metric{number}": 1.0 for number in range(12)},
                    )
                ),
            }
            for n, length in zip(numbers, lengths, strict=True)
        ]  # fmt: skip
        # What follows is not read here, and has one token.
        short = [torch.zeros(1, dtype=torch.int8)] * len(numbers)
        columns |= dict.fromkeys(("prompts", "input_ids", "position_ids", "rollout_log_probs"), short)
        fields = {name: torch.nested.as_nested_tensor(column, layout=torch.jagged) for name, column in columns.items()}
        new = [f"task{n // GROUP}_{n % GROUP}_0" for n in numbers]
        tq.kv_batch_put(keys=new, partition_id="train", tags=tags, fields=TensorDict(fields, batch_size=len(new)))
        uids = sorted({key.partition("_")[0] for key in new})
        prompts = [{"is_prompt": True, "status": "finished", "global_steps": 1} for _ in uids]
        tq.kv_batch_put(keys=uids, partition_id="train", tags=prompts)


def memory(name: str) -> int:
    """Return a figure of this process's memory in bytes."""
    (line,) = [each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
