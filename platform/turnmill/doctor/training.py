"""Checks that train: small runs of a tiny model, by the command that users run."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml

from turnmill.doctor.results import CheckFailedError, CheckSkippedError, Machine
from turnmill.observability.run_folder import RunFolder
from turnmill.runs import processes

POLL_SECONDS = 0.2
# A run that is asked to end removes its processes and files.
STOP_SECONDS = 60.0
MAX_TRAINING_GPUS = 8
STEPS = 2
STEPS_WITH_LOSS = 6
# The engine's probabilities of sampled tokens against the trainer's, after the learning rate below has moved them by
# more than a tenth: rounding of the type in which a device computes is far less.
PROBABILITY_ERROR = "training/rollout_probs_diff_mean"
MAX_PROBABILITY_ERROR = {"cpu": 1e-3, "cuda": 3e-2}
# Ray's name of the actor, cut off at 15 characters as Linux does.
ENGINE = "ray::EngineServ"

_TURNS, _MINIBATCH = 64, 32
_JOB: Mapping[str, object] = {
    "model": {"warmStart": {"turns": 600, "gradientSteps": 40, "maxLoss": 10}},
    "agent": {"type": "verlog", "maxTurns": 6, "prompt": "compact", "maxPromptTokens": 160, "maxResponseTokens": 20},
    "environment": {"name": "babyai", "task": "GoToObj", "count": 8},
    "algorithm": {
        "type": "turn_ppo",
        "minibatchTurns": _MINIBATCH,
        "actorLearningRate": 5e-3,
        "criticWarmup": {"batches": 1, "steps": 1},
        "kl": {"coefficient": 0.01},
    },
}


def training(machine: Machine) -> str:
    """Rollout, two updates, weight sync in between, sleep and wake of engines, and checkpoints, in mode `sync`."""
    gpus = _training_gpus(machine)
    run = _Run(machine, "training", mode="sync", gpus=gpus)
    with run.started() as process:
        run.wait(process)
    rows = run.steps(1, STEPS)
    error, seconds = run.require_synced(rows), rows[-1]["timing_s/step"]
    return f"{STEPS} steps on {gpus} x {machine.device}, the last in {seconds:.1f} s, {error}"


def resume(machine: Machine) -> str:
    """The next step, from the checkpoint of the check `training`."""
    run = _Run(machine, "training", mode="sync", gpus=_training_gpus(machine))
    with run.started("--resume", "--set", f"training.steps={STEPS + 1}") as process:
        run.wait(process)
    error = run.require_synced(run.steps(1, STEPS + 1))
    return f"step {STEPS + 1} from the checkpoint of step {STEPS}, {error}"


def engine_loss(machine: Machine) -> str:
    """Weight sync to an engine on a device of its own, whose core process is killed: it is replaced, and serves."""
    if machine.device == "cuda" and _count_gpus() < 2:
        raise CheckSkippedError("needs a second GPU")
    run = _Run(machine, "engine-loss", mode="separate_async", gpus=1, steps=STEPS_WITH_LOSS)
    with run.started() as process:
        run.wait(process, until=lambda: run.folder.last_step().get("step", 0) >= 1)
        marked = processes.find_marked(processes.recorded_mark(run.folder.path))
        engines = {pid for pid in marked if _stat(pid)[:1] == [ENGINE]}
        # Its helper, which tracks shared memory, has no other name than the core if a fork server has started both.
        cores = [pid for pid in marked if _stat(pid)[1:] and int(_stat(pid)[1]) in engines]
        if not cores:
            raise CheckFailedError("no core process of an engine was found", run.where)
        for pid in cores:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        run.wait(process)
        seconds = time.monotonic() - killed
    error = run.require_synced(run.steps(1, STEPS_WITH_LOSS))
    return f"all {STEPS_WITH_LOSS} steps, the last {seconds:.0f} s after the kill, {error}"


class _Run:
    """A run of the checks' own job."""

    def __init__(self, machine: Machine, name: str, *, mode: str, gpus: int, steps: int = STEPS) -> None:
        self.machine = machine
        self.folder = RunFolder(machine.scratch / name)
        self._output = machine.scratch / f"{name}.out"
        self._job = machine.scratch / f"{name}.yaml"
        training = {
            "mode": mode,
            "steps": steps,
            "turnsPerStep": _TURNS,
            "checkpointEvery": 1,
            "validation": {"episodes": 0},
        }
        resources = {"device": machine.device, "train": {"gpusPerNode": gpus}}
        job = {
            "apiVersion": "turnmill.dev/v1alpha1",
            "kind": "AgentTrainingJob",
            "metadata": {"name": f"doctor-{name}"},
            "spec": {**_JOB, "training": training, "resources": resources, "retries": 0},
        }
        self._job.write_text(yaml.safe_dump(job))

    @property
    def where(self) -> str:
        """Where to look after a failure."""
        return f"See {self._output} and {self.folder.logs}."

    @contextmanager
    def started(self, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
        """Run `turnmill run`; at the end of the context it is asked to end, and is killed if it does not."""
        command = [sys.executable, "-m", "turnmill.cli.main", "run", str(self._job), "--output", str(self.folder.path)]
        with self._output.open("ab") as output:
            process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                processes.terminate_marked(processes.recorded_mark(self.folder.path))

    def wait(self, process: "subprocess.Popen[bytes]", until: Callable[[], bool] = lambda: False) -> None:
        """Wait until a condition holds, or else until the run has succeeded. Raises CheckFailedError if it failed.

        A run that stalls fails by itself.
        """
        while not until():
            if (code := process.poll()) is not None:
                if code:
                    raise CheckFailedError(self._last_line(), self.where)
                return
            time.sleep(POLL_SECONDS)

    def steps(self, first: int, last: int) -> list[dict[str, float]]:
        """Return the metrics of these steps, which must all be there once and in order."""
        rows = [row for row in self.folder.read_metrics() if row["step"] > 0]
        found = [row["step"] for row in rows]
        if found != list(range(first, last + 1)):
            raise CheckFailedError(f"steps {found} instead of {first} to {last}", self.where)
        return rows

    def require_synced(self, rows: list[dict[str, float]]) -> str:
        """Describe how far the engine's probabilities are from the trainer's; raise CheckFailedError if too far."""
        errors = [row[PROBABILITY_ERROR] for row in rows if PROBABILITY_ERROR in row]
        if not errors:
            # In mode `separate_async`, every row of a step may be from before the last update.
            return "no rows of the newest policy to compare"
        error, limit = max(errors), MAX_PROBABILITY_ERROR[self.machine.device]
        if not error <= limit:
            raise CheckFailedError(
                f"the engine's probabilities differ from the trainer's by {error:.2g}, allowed is {limit:g}: "
                "weights did not arrive",
                self.where,
            )
        return f"engine and trainer agree within {error:.0e}"

    def _last_line(self) -> str:
        lines = [line for line in self._output.read_text(errors="replace").splitlines() if line.strip()]
        failures = [line for line in lines if line.startswith("The run failed")]
        return (failures or lines or ["turnmill run printed nothing"])[-1]


def _training_gpus(machine: Machine) -> int:
    """Return the largest power of two of this machine's GPUs; without GPUs, one process."""
    if machine.device == "cpu":
        return 1
    count = min(_count_gpus(), MAX_TRAINING_GPUS)
    return 1 << (count.bit_length() - 1)


def _count_gpus() -> int:
    """Return the number of GPUs, as a process of its own sees them: this one must not hold memory on any."""
    code = "import torch; print(torch.cuda.device_count())"
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def _stat(pid: int) -> list[str]:
    """Return the name of a process and its parent's id; empty if it has ended."""
    try:
        before, _, after = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except OSError:
        return []
    return [before.partition("(")[2], after.split()[1]]
