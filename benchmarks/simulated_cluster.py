"""A step on 64 machines with eight GPUs each, simulated on this one: what waits for the driver, and what limits.

OMP_NUM_THREADS=1 .venv/bin/python benchmarks/simulated_cluster.py [--tasks 32 128] [--turns 30] [--raylets 16]

Engines and training workers only wait: an engine answers a turn with the same call of a tool after a simulated time,
a worker writes its columns into the queue after another. Everything else is real: trainer, replay buffer, verl's queue
and load balancer, agent loops of type `multi_turn` with a tool, trajectory log and run folder, on a Ray cluster of
several raylets. A raylet stands for several machines, as does a process of engines or of workers, because a Ray node
takes 200 MB of memory and such a process 500; trainer and load balancer have 512 engines and 512 workers to call.

Two cores play what hundreds would, so a step takes longer than its simulated times. The table has, of the last step,
the processor time of driver and queue in each part of it, whether engines or workers are busy meanwhile, and the
processor time that a turn takes of every process that there is one of.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
from runs import table

MACHINES, GPUS = 64, 8
STEP_SECONDS = 60.0
GROUP = 8
FILLER = 30
"""Tokens of a response beside its call of the tool."""

SIMULATED = {"sleep": 0.5, "compute_log_prob": 5.0, "update_actor": 20.0, "weights": 2.0}
"""Seconds that the trainer waits for each of these."""

BESIDE = {"rollout", "sleep", "log-probs", "update", "weights"}
"""Parts of a step in which engines or workers are busy."""


def main() -> None:
    """Run each number of tasks in a process of its own, and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--raylets", type=int, default=16)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--turn-seconds", type=float, default=0.5)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        (given.tasks,) = given.tasks
        print(json.dumps(measure(given)))
        return
    for tasks in given.tasks:
        command = [sys.executable, __file__, "--one", "--tasks", str(tasks)]
        for name in ("turns", "raylets", "processes", "steps", "turn_seconds"):
            command += [f"--{name.replace('_', '-')}", str(getattr(given, name))]
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        report(json.loads(ended.stdout.splitlines()[-1]), tasks=tasks, turns=given.turns)


def report(found: dict[str, Any], *, tasks: int, turns: int) -> None:
    """Print what a run took."""
    trajectories = tasks * GROUP
    print(f"\n{trajectories:,} trajectories x {turns} turns, {found['raylets']} raylets, {found['wall']:.0f} s\n")
    rows = [
        (part, "yes" if part in BESIDE else "no", *(f"{each:.3f}" for each in found["parts"][part]))
        for part in found["parts"]
    ]
    print(table(("part", "others busy", "driver, s", "queue, s", "wall, s"), rows))
    waits = sum(sum(times[:2]) for part, times in found["parts"].items() if part not in BESIDE)
    print(f"\nWaits for the driver: {waits:.2f} s of processor time, {waits / STEP_SECONDS:.1%} of 60 s\n")
    per_turn = [
        (name, f"{seconds:.1f}", f"{seconds / (trajectories * turns) * 1e3:.3f}")
        for name, seconds in found["processes"].items()
    ]
    print(table(("processes", "s of a step", "ms per turn"), per_turn))


@dataclass
class Timeline:
    """Processor time of the driver and of the queue, and wall-clock time, by part of a step."""

    queue: Sequence[psutil.Process] = ()
    aside: int | None = None
    """Clock of the thread that works beside others."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    part: str = "before"
    _last: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def enter(self, part: str) -> str:
        """Begin a part; return the one that ends."""
        aside = 0.0 if self.aside is None else time.clock_gettime(self.aside)
        now = (time.process_time() - aside, sum(sum(each.cpu_times()[:2]) for each in self.queue), time.perf_counter())
        spent = self.seconds.setdefault(self.part, [0.0, 0.0, 0.0])
        for number, (begin, end) in enumerate(zip(self._last, now, strict=True)):
            spent[number] += end - begin
        self._last, ended, self.part = now, self.part, part
        return ended

    @contextmanager
    def during(self, part: str) -> Iterator[None]:
        """Count what happens in the context as a part of the step."""
        outer = self.enter(part)
        try:
            yield
        finally:
            self.enter(outer)


TIMELINE = Timeline()


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Train a few steps on the simulated cluster, and return what the last one took."""
    # Ray gives a busy machine 30 s.
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "200")
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf
    from ray.cluster_utils import Cluster

    from turnmill.observability.run_folder import RunFolder
    from turnmill.rollout.multi_turn.worker import MultiTurnManager
    from turnmill.training.verl.config import build_verl_config
    from turnmill.training.verl.patches import queue_controller, queue_decoding

    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 4, "include_dashboard": False, "object_store_memory": 500 << 20},
    )
    for _ in range(given.raylets):
        share = GPUS * MACHINES / given.raylets
        cluster.add_node(num_cpus=1, resources={"H100": share}, object_store_memory=80 << 20, wait=False)
    ray.init(address=cluster.address, log_to_driver=False)
    while sum(node["Alive"] for node in ray.nodes()) <= given.raylets:
        time.sleep(0.5)
    with tempfile.TemporaryDirectory() as folder:
        job = job_of(given)
        run = RunFolder(Path(folder) / "run")
        run.create()
        save_model(Path(folder) / "model")
        config = build_verl_config(job, model=Path(folder) / "model", run_dir=run.path, device="cpu")
        OmegaConf.set_struct(config, False)
        config.transfer_queue.enable = True
        OmegaConf.resolve(config)
        queue_decoding.apply()
        with queue_controller.applied():
            tq.init(config.transfer_queue)
        TIMELINE.queue = processes("TransferQueueController", "SimpleStorageUnit")
        trainer = trainer_class()(config, given)
        trainer.init()
        manager = MultiTurnManager.create(
            config=config,
            llm_client=trainer.get_llm_client(),
            teacher_client=None,
            reward_loop_worker_handles=[],
        )
        started = time.perf_counter()
        trainer.fit(manager)
        wall = time.perf_counter() - started
        manager.close()
        tq.close()
        ray.shutdown()
        cluster.shutdown()
    return {
        "raylets": given.raylets,
        "wall": wall,
        "parts": trainer.parts,
        "processes": trainer.spent,
    }


def job_of(given: argparse.Namespace) -> Any:
    """Return a job with a tool, whose trajectories have as many turns."""
    from turnmill.jobs import AgentTrainingJob

    length = given.turns * (FILLER + 24) + 64
    return AgentTrainingJob.model_validate(
        {
            "apiVersion": "turnmill.dev/v1alpha1",
            "kind": "AgentTrainingJob",
            "metadata": {"name": "simulated"},
            "spec": {
                "model": {"warmStart": {}},
                "agent": {
                    "type": "multi_turn",
                    "functionToolPath": "pkg://turnmill/rollout/multi_turn/example_tools/calculator.py",
                    "groupSize": GROUP,
                    "maxAssistantTurns": given.turns,
                    "maxPromptLength": 64,
                    "maxResponseLength": length,
                    "tokenizationSanityCheckMode": "ignore_strippable",
                },
                "environment": {"name": "calculator"},
                "algorithm": {"type": "grpo", "kl": {"coefficient": 0}},
                "training": {
                    "steps": given.steps,
                    "tasksPerStep": given.tasks,
                    "validation": {"episodes": 0},
                },
                "resources": {"device": "cpu", "agentLoopWorkers": 2},
            },
        }
    )


def save_model(folder: Path) -> None:
    """Write a tokenizer and the configuration of a model, without weights."""
    from transformers import Qwen2Config

    from turnmill.tasks.calculator import Calculator
    from turnmill.training.warm_start.tokenizer import build_tokenizer

    tokenizer = build_tokenizer(Calculator.words)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    Qwen2Config(vocab_size=len(tokenizer), architectures=["Qwen2ForCausalLM"], **sizes).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class Engine:
    """The engines of several machines: each turn is answered with a call of the tool after a while."""

    def __init__(self, answer: list[int], seconds: float) -> None:
        self._answer, self._seconds = answer, seconds

    async def live(self) -> None:
        """Never return: the call fails when this actor ends."""
        await asyncio.Event().wait()

    async def generate(self, request_id: str, **_: object) -> Any:
        """Return the tokens of a turn."""
        from verl.workers.rollout.replica import TokenOutput

        await asyncio.sleep(self._seconds * (0.5 + hash(request_id) % 1000 / 1000))
        return TokenOutput(
            token_ids=self._answer,
            log_probs=[-0.5] * len(self._answer),
            stop_reason="completed",
            extra_fields={"global_steps": 0},
        )


class TrainingWorkers:
    """The training workers of several machines: each reads its rows and writes columns after a while."""

    def __init__(self, model: Any) -> None:
        import transfer_queue as tq

        tq.init()
        self._model = model

    async def wait(self, call: str) -> None:
        """Take the time of a call."""
        await asyncio.sleep(SIMULATED[call])

    async def compute_log_prob(self, part: Any) -> Any:
        """Write log-probs and entropies as a worker of the policy does, and return the places with its statistics."""
        from tensordict import TensorDict
        from verl.utils.transferqueue_utils import _async_meta_to_realdata, _async_update_meta_with_output

        from turnmill.training.response_columns import Asked

        data = await _async_meta_to_realdata(part)
        asked = Asked.of(data)
        assert asked is not None
        whole = {name: data["input_ids"].float() * 0 - 0.5 for name in ("log_probs", "entropy")}
        computed = asked.log_probs(TensorDict(whole, batch_size=part.size), self._model)
        return await _async_update_meta_with_output(computed, part)

    async def update_actor(self, part: Any) -> None:
        """Read the rows that are trained on."""
        from verl.utils.transferqueue_utils import _async_meta_to_realdata

        await _async_meta_to_realdata(part)


def trainer_class() -> type[Any]:
    """Return the trainer of synchronous steps, whose workers and engines are simulated."""
    import ray
    from tensordict import TensorDict
    from verl.single_controller.base.decorator import MAGIC_ATTR
    from verl.single_controller.base.worker_group import WorkerGroup
    from verl.workers.rollout.router import GlobalRequestLoadBalancer

    from turnmill.training.replay_buffers import StepReplayBuffer
    from turnmill.training.trainers.trajectory import TrajectoryTrainerSync
    from turnmill.training.verl.workers import PolicyWorker

    size = MACHINES * GPUS

    class Group(WorkerGroup):
        """512 workers, whose calls go to the processes that stand for them."""

        def __init__(self, hosts: Sequence[Any]) -> None:
            super().__init__(resource_pool=None)
            self.workers, self._workers, self._hosts = hosts, [None] * size, hosts
            self._dispatch_info, self._collect_info = {"actor": [*range(size)]}, {"actor": [True] * size}

        def call(self, name: str, batch: Any, part: str) -> Any:
            """Deal a batch, wait for the workers, and return what is collected."""
            mode = getattr(getattr(PolicyWorker, name), MAGIC_ATTR)["dispatch_mode"]
            ((parts,), _) = mode["dispatch_fn"](self, batch)
            hosts = [getattr(self._hosts[rank % len(self._hosts)], name) for rank in range(size)]
            calls = [host.remote(part_of_it) for host, part_of_it in zip(hosts, parts, strict=True)]
            with TIMELINE.during(part):
                ray.get([host.wait.remote(name) for host in self._hosts])
                ray.wait(calls, num_returns=len(calls))
            answers = ray.get(calls)
            return mode["collect_fn"](self, answers) if name == "compute_log_prob" else answers

        def compute_log_prob(self, batch: Any) -> Any:
            """Let the workers compute log-probs."""
            return self.call("compute_log_prob", batch, "log-probs")

        def update_actor(self, batch: Any) -> TensorDict:
            """Let the workers train."""
            self.call("update_actor", batch, "update")
            output = TensorDict({}, batch_size=())
            from verl.utils import tensordict_utils as tu

            tu.assign_non_tensor_data(output, "metrics", {"mfu": [0.5], "loss": [0.1], "grad_norm": [0.1]})
            return output

    class Buffer(StepReplayBuffer):
        """The buffer of a step, whose waiting is a part of its own."""

        def _wait_for_arrivals(self, *args: Any) -> None:
            with TIMELINE.during("rollout"):
                super()._wait_for_arrivals(*args)
            TIMELINE.enter("taking rows")

    class Simulated(TrajectoryTrainerSync):
        """The trainer of a job of synchronous steps."""

        def __init__(self, config: Any, given: argparse.Namespace) -> None:
            super().__init__(config)
            self._given, self.parts, self.spent = given, {}, {}
            TIMELINE.aside = time.pthread_getcpuclockid(self._aside.submit(threading.get_ident).result())

        def _build_replay_buffer(self) -> Any:
            return Buffer("sync", {}, None, "drop", {}, poll_interval=0.02)

        def _setup(self) -> None:
            with self.recorder.phase("starting"):
                self._init_tokenizer()
                self._init_dataloader()
                self._init_dump_executor()
                self.ref_in_actor, self.global_steps = False, 0
                self.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[])
                self.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: size)
                hosts, engines = self._start()
                self.actor_rollout_wg = Group(hosts)
                servers = {f"engine-{number}": engines[number % len(engines)] for number in range(size)}
                balancer = ray.remote(GlobalRequestLoadBalancer).remote(servers)
                model = self.config

                class Servers:
                    server_addresses = tuple(servers)

                    def get_client(self, client_cls: type[Any]) -> Any:
                        return client_cls(model, load_balancer_handle=balancer)

                self.llm_server_manager = Servers()

                class Weights:
                    replicas = tuple(SimpleNamespace(servers=[server]) for server in servers.values())

                    def _wait(self, name: str) -> None:
                        with TIMELINE.during(name):
                            ray.get([host.wait.remote(name) for host in hosts])

                    def sleep_replicas(self) -> None:
                        self._wait("sleep")

                    def update_weights(self, global_steps: int) -> None:
                        self._wait("weights")

                self.checkpoint_manager = Weights()

        def _start(self) -> tuple[list[Any], list[Any]]:
            call = '<tool_call>{"name": "calculator", "arguments": {"expression": "12*34"}}</tool_call><|im_end|>'
            answer = self.tokenizer.encode("1" * FILLER + call, add_special_tokens=False)
            options = {"num_cpus": 0, "resources": {"H100": 1}, "scheduling_strategy": "SPREAD"}
            options["max_concurrency"] = 10_000
            engine, host = ray.remote(**options)(Engine), ray.remote(**options)(TrainingWorkers)
            hosts = [host.remote(self.config.actor_rollout_ref) for _ in range(self._given.processes)]
            engines = [engine.remote(answer, self._given.turn_seconds) for _ in range(self._given.processes)]
            ray.get([each.wait.remote("sleep") for each in hosts])
            return hosts, engines

        def _load_checkpoint(self) -> None:
            """Do nothing: there are no weights."""

        def _save_checkpoint(self) -> None:
            """Do nothing: there are no weights."""

        def prepare_step(self) -> Any:
            with TIMELINE.during("submitting prompts"):
                return super().prepare_step()

        def _step_once(self, metrics: Any, *args: Any) -> Any:
            if self._cleared is not None:
                # Beside the rollout.
                with TIMELINE.during("rollout"):
                    self._cleared.result()
            batch = super()._step_once(metrics, *args)
            TIMELINE.enter("end of the step")
            return batch

        def _balance_batch(self, batch: Any, metrics: Any, **named: Any) -> Any:
            TIMELINE.enter("ordering")
            batch = super()._balance_batch(batch, metrics, **named)
            TIMELINE.enter("dealing for log-probs")
            return batch

        def _compute_advantage(self, batch: Any, metrics: Any) -> Any:
            TIMELINE.enter("advantages")
            batch = super()._compute_advantage(batch, metrics)
            TIMELINE.enter("dealing for the update")
            return batch

        def on_step_begin(self) -> None:
            TIMELINE.seconds.clear()
            TIMELINE.enter("end of the step")
            self._before = cpu_by_kind()
            super().on_step_begin()

        def _after_step(self) -> None:
            super()._after_step()
            TIMELINE.enter("after")
            self.parts = {part: times for part, times in TIMELINE.seconds.items() if part != "after"}
            now = cpu_by_kind()
            self.spent = {kind: seconds - self._before.get(kind, 0.0) for kind, seconds in now.items()}

    return Simulated


KINDS = {
    "GlobalRequestLoadBalancer": "load balancer",
    "TransferQueueController": "queue, controller",
    "SimpleStorageUnit": "queue, storage",
    "AgentLoopWorker": "agent loops, 2 processes",
    "MultiTurnWorker": "agent loops, 2 processes",
    "Engine": "simulated engines",
    "TrainingWorkers": "simulated training workers",
}


def processes(*names: str) -> list[psutil.Process]:
    """Return the Ray workers of this user's run whose actors have these classes."""
    here = {each.pid for each in psutil.Process().children(recursive=True)}
    return [each for each in psutil.process_iter() if each.pid in here and any(name in title(each) for name in names)]


def title(process: psutil.Process) -> str:
    """Return what Ray calls a worker process."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def cpu_by_kind() -> dict[str, float]:
    """Return the processor time that processes have taken so far, by what they are."""
    found = {"driver": time.process_time()}
    for process in psutil.Process().children(recursive=True):
        name = title(process)
        if not name.startswith("ray::"):
            continue
        kind = next((kind for part, kind in KINDS.items() if part in name), None)
        if kind is not None:
            times = process.cpu_times()
            found[kind] = found.get(kind, 0.0) + times.user + times.system
    return found


if __name__ == "__main__":
    main()
