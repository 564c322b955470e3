"""The driver's own work in a step: synthetic rows in verl's queue, one trajectory each, and no model.

OMP_NUM_THREADS=1 .venv/bin/python benchmarks/driver.py [--rows 1000 10000] [--tokens 2000]

Seconds of each part of `_compute_advantage` of a job with GRPO, and how much memory the driver takes beside what it had
before. Rows are put into the queue by another process, and stay there.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runs import table

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "manifests" / "examples" / "tool-arithmetic-cpu.yaml"
GROUP = 8
ROWS_AT_ONCE = 1000
GIB = 2**30


def main() -> None:
    """Measure each number of rows in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.rows[0], given.tokens)))
        return
    found = []
    for rows in given.rows:
        command = [sys.executable, __file__, "--one", "--rows", str(rows), "--tokens", str(given.tokens)]
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found.append(json.loads(ended.stdout.splitlines()[-1]))
    parts = found[0].keys()
    print(
        table(("rows", *parts), [(f"{rows:,}", *each.values()) for rows, each in zip(given.rows, found, strict=True)])
    )


def measure(rows: int, tokens: int) -> dict[str, float]:
    """Return seconds by part, and the driver's memory in GiB."""
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf

    from turnmill.jobs import load_job
    from turnmill.observability.run_folder import RunFolder
    from turnmill.observability.trajectory_log import TrajectoryLog
    from turnmill.training.trainers.trajectory import TrajectoryTrainer
    from turnmill.training.verl.config import build_verl_config
    from turnmill.training.verl.patches import queue_controller

    tasks = rows // GROUP
    sizes = [f"training.tasksPerStep={tasks}", f"algorithm.minibatchTasks={tasks}"]
    job = load_job(EXAMPLE, ["algorithm.kl.coefficient=0", *sizes])
    with tempfile.TemporaryDirectory() as folder:
        config = build_verl_config(job, model=Path(folder), run_dir=Path(folder), device="cpu")
        OmegaConf.set_struct(config, False)
        config.transfer_queue.enable = True
        OmegaConf.resolve(config)
        ray.init(address="local", include_dashboard=False, log_to_driver=False, num_cpus=16)
        with queue_controller.applied():
            tq.init(config.transfer_queue)
        batch = ray.get(ray.remote(fill).remote(rows, tokens))

        class WithoutRun(TrajectoryTrainer):
            """A trainer with only what the batch of a step needs."""

            def __init__(self) -> None:
                self.job, self.config, self.global_steps = job, config, 1
                run = RunFolder(folder)
                run.create()
                self.trajectory_log = TrajectoryLog(run)

        trainer, seconds = WithoutRun(), {}
        with timed_parts(seconds):
            from turnmill.training.batches.trajectory import split

            trainer._split = split(batch)
            Path("/proc/self/clear_refs").write_text("5")
            before, started = memory("VmRSS"), time.perf_counter()
            trainer._compute_advantage(batch, {})
            seconds["all"] = time.perf_counter() - started
        peak = memory("VmHWM") - before
        tq.close()
        ray.shutdown()
    return {name: round(spent, 2) for name, spent in seconds.items()} | {"memory, GiB": round(peak / GIB, 2)}


@contextmanager
def timed_parts(seconds: dict[str, float]) -> Iterator[None]:
    """Add up the seconds of the parts of a step's batch."""
    from turnmill.observability.advantage_log import AdvantageLog
    from turnmill.training.algorithms.grpo import GrpoAlgorithm
    from turnmill.training.batches import trajectory
    from turnmill.training.trainers import trajectory as trainer

    places: list[tuple[str, Any, str]] = [
        ("reading", trajectory.tq, "kv_batch_get"),
        ("foreign tokens", trajectory, "_count_unsampled"),
        ("advantages", GrpoAlgorithm, "advantages"),
        ("writing", trajectory.TrajectoryBatch, "write"),
        ("means", trainer, "mean_over_trajectories"),
        ("log", AdvantageLog, "write"),
        ("token log", AdvantageLog, "write_tokens"),
        ("metrics", trainer, "trajectory_metrics"),
    ]
    kept = [(owner, name, getattr(owner, name)) for _, owner, name in places]
    for (part, owner, name), (_, _, function) in zip(places, kept, strict=True):
        setattr(owner, name, timed(function, seconds, part))
    try:
        yield
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)


def timed(function: Callable[..., Any], seconds: dict[str, float], part: str) -> Callable[..., Any]:
    """Return the function, which adds its seconds to those of a part."""

    def measured(*arguments: Any, **named: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*arguments, **named)
        finally:
            seconds[part] = seconds.get(part, 0.0) + time.perf_counter() - started

    return measured


def fill(rows: int, tokens: int) -> Any:
    """Put a step's rows into the queue, in a worker; return their keys and tags."""
    import torch
    import transfer_queue as tq
    from tensordict import TensorDict
    from transfer_queue import KVBatchMeta

    from turnmill.core.trajectory import EpisodeSummary
    from turnmill.rollout.queue_payload import EPISODE_SUMMARY, encode
    from turnmill.rollout.token_integrity import pack_tokens

    tq.init()
    keys, tags = [], []
    for first in range(0, rows, ROWS_AT_ONCE):
        numbers = range(first, min(rows, first + ROWS_AT_ONCE))
        responses = [torch.randint(0, 150_000, (tokens - n % 7,)) for n in numbers]
        columns = {
            "responses": responses,
            "response_mask": [torch.ones_like(each) for each in responses],
            "rm_scores": [torch.zeros(len(each)).index_fill_(0, torch.tensor([len(each) - 1]), float(n % 3 == 0))
                          for n, each in zip(numbers, responses, strict=True)],
            "old_log_probs": [torch.zeros(len(each)) for each in responses],
        }  # fmt: skip
        summaries = [
            encode(
                EpisodeSummary(
                    episode_id=str(n),
                    reward=float(n % 3 == 0),
                    stop_reason="completed",
                    success=n % 3 == 0,
                    num_turns=1,
                    seconds={"generation": 1.0, "tools": 1.0, "loop": 0.1},
                    sampled_tokens=pack_tokens(each.tolist()),
                )
            )
            for n, each in zip(numbers, responses, strict=True)
        ]
        fields: dict[str, Any] = {
            name: torch.nested.as_nested_tensor(column, layout=torch.jagged) for name, column in columns.items()
        }
        fields[EPISODE_SUMMARY] = summaries
        new = [f"task{n // GROUP}_{n % GROUP}_0" for n in numbers]
        labels = [{"status": "success", "prompt_len": 500, "response_len": len(each)} for each in responses]
        tq.kv_batch_put(keys=new, partition_id="train", tags=labels, fields=TensorDict(fields, batch_size=len(new)))
        keys += new
        tags += labels
    return KVBatchMeta(partition_id="train", keys=keys, tags=tags)


def memory(name: str) -> int:
    """Return a figure of this process's memory in bytes."""
    (line,) = [each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
