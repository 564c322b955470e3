"""turnmill: an agent of type `tool`, as `turnmill run` starts it."""

import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from chaos.effects import CALL_SECONDS, TURNS
from chaos.measures import Played
from chaos.processes import find, resident_kilobytes
from chaos.systems import GROUP_SIZE, TASKS_PER_STEP, Given

from turnmill import __version__
from turnmill.jobs.load import load_job
from turnmill.jobs.tool_server import RunToolServer
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog
from turnmill.runs.preparation import ensure_model
from turnmill.runs.services import ToolServerProcess

STALL_SECONDS = 60
"""`training.stallTimeoutSeconds`: a step takes four. By default it is ten minutes."""

FORKED_WITH_CORE = 3
"""How many processes bear the fork server's name when an engine runs: its core, and a helper of each of two others."""

JOB = f"""
apiVersion: turnmill.dev/v1alpha1
kind: AgentTrainingJob
metadata: {{{{name: chaos}}}}
spec:
  retries: {{retries}}
  model: {{{{warmStart: {{{{turns: 600, gradientSteps: 60, maxLoss: 10}}}}}}}}
  agent:
    {{{{type: tool, toolType: "chaos.task:Counter", stopTokens: ["</python>"], groupSize: {GROUP_SIZE},
      minTurns: {TURNS}, maxTurns: {TURNS}, toolCallTimeout: {CALL_SECONDS:g}, maxPromptLength: 32,
      maxResponseLength: 112, maxActionLength: 8, maxObsLength: 8{{tools}}}}}}
  environment: {{{{name: "chaos.task:Chances"}}}}
  algorithm:
    {{{{type: grpo, minibatchTasks: {TASKS_PER_STEP}, actorLearningRate: 1.0e-30, weightDecay: 0{{algorithm}}}}}}
  training:
    {{{{steps: {{steps}}, tasksPerStep: {TASKS_PER_STEP}, checkpointEvery: 1, stallTimeoutSeconds: {STALL_SECONDS},
      seed: {{seed}}, validation: {{{{episodes: 0}}}}{{training}}}}}}
  resources: {{{{device: cpu{{resources}}}}}}
"""
"""The learning rate is so small that no weight changes: a step's trajectories follow from the seed alone."""


class Turnmill:
    """turnmill, with further fields of the job's `algorithm`, `training` and `resources` as text."""

    parts: Mapping[str, str] = {
        "trainer": r"ray::TurnTaskRunner",
        "engine": r"ray::EngineServer",
        "engine core": r"fork_server\.server",
        "agent loop": r"ray::\w*LoopWorker",
        "tool server": r"cli\.main tool-server",
        # Not its supervisor, which has the program among its arguments.
        "store": r"^(valkey|redis)-server",
        "Ray node": r"^raylet ",
        "Ray controller": r"^gcs_server ",
        "queue": r"ray::(TransferQueue|SimpleStorage)",
    }
    tool_server: Sequence[str] = (
        *(sys.executable, "-m", "turnmill.cli.main", "tool-server", "--tool_type", "chaos.task:Counter"),
        *("--host", "127.0.0.1", "--port", "{port}", "--redis", "{store}"),
    )
    model_server: Sequence[str] = ()
    starts_tool_server = True

    def __init__(self, name: str = "turnmill", *, algorithm: str = "", training: str = "", resources: str = "") -> None:
        self.name = name
        self._fields = {"algorithm": algorithm, "training": training, "resources": resources}

    def version(self) -> str:
        """Return its version."""
        return __version__

    def serve_tools(self, store_url: str, logs: Path) -> str:
        """Start the tool server of a run."""
        server = ToolServerProcess("chaos.task:Counter", store_url, RunToolServer(), run_name="chaos", log_file=logs)
        server.start()
        return server.url

    def prepare(self, folder: Path) -> None:
        """Make the model, unless it was made before."""
        self.model()

    def model(self) -> Path:
        """Return the folder of the model; it is kept for all runs of a user."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "job.yaml").write_text(self._job(Given(folder, steps=1, seed=0)))
            return ensure_model(load_job(folder / "job.yaml"), RunFolder(folder), lambda _: None)

    def command(self, given: Given) -> tuple[list[str], Mapping[str, str]]:
        """Return `turnmill run`."""
        job = given.folder / "job.yaml"
        job.write_text(self._job(given))
        command = [sys.executable, "-m", "turnmill.cli.main", "run", str(job), "--output", str(given.folder / "run")]
        return command, {"TURNMILL_REDIS": given.store_url} if given.store_url else {}

    def processes(self, part: str) -> list[int]:
        """Return the processes of a kind."""
        if part != "engine core":
            return find(self.parts[part])
        # It bears the name of the servers that it was forked from, as do small helpers; these are the oldest two.
        forked = find(self.parts[part])[2:]
        return sorted(forked, key=resident_kilobytes)[-1:] if len(forked) >= FORKED_WITH_CORE else []

    def steps(self, folder: Path) -> int:
        """Return the number of the last step."""
        return int(RunFolder(folder / "run").last_step().get("step", 0))

    def step_times(self, folder: Path) -> list[float]:
        """Return the times in the rows of metrics."""
        rows = {row["step"]: row["timing_s/step"] for row in RunFolder(folder / "run").read_metrics() if row["step"]}
        return list(rows.values())

    def played(self, folder: Path) -> Mapping[str, Played]:
        """Return the trajectories of the log, with the trainer's advantages."""
        log = TrajectoryLog(RunFolder(folder / "run"))
        last = self.steps(folder)
        episodes = [e for e in log.read_episodes() if not e.validation and e.turns[0].step <= last]
        advantages = {name: value for step in range(1, last + 1) for name, value in log.advantages.read(step).items()}
        return {
            e.name: Played(e.reward, e.failed_cause is None and e.outcome != "failed", advantages.get(e.name))
            for e in episodes
        }

    def name_of(self, trajectory: str) -> str:
        """Return the name of the episode, without run and hash."""
        found = re.search(r"t\d+-\d+-\d+", trajectory)
        return found[0] if found else trajectory

    def _job(self, given: Given) -> str:
        tools = f", toolServerUrl: {given.tools_url}" if given.tools_url else ""
        fields = {name: f", {text}" if text else "" for name, text in self._fields.items()}
        return JOB.format(
            steps=given.steps,
            seed=given.seed,
            retries=given.retries,
            tools=tools,
            **fields,
        )


SYSTEM = Turnmill()
