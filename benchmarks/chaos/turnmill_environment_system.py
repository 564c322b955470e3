"""turnmill: an agent of type `verlog`, whose environments run in processes of their own."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from chaos.effects import TURNS, digest_of
from chaos.measures import Played
from chaos.processes import children_among, find
from chaos.systems import GROUP_SIZE, TASKS_PER_STEP, Given
from chaos.turnmill_system import STALL_SECONDS, Turnmill
from chaos.turnmill_system import SYSTEM as TURNMILL

from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog

JOB = f"""
apiVersion: turnmill.dev/v1alpha1
kind: AgentTrainingJob
metadata: {{{{name: chaos}}}}
spec:
  retries: {{retries}}
  model: {{{{path: {{model}}}}}}
  agent:
    {{{{type: verlog, groupSize: {GROUP_SIZE}, maxTurns: {TURNS}, prompt: "chaos.game_prompt:prompt",
      maxPromptTokens: 32, maxResponseTokens: 8}}}}
  environment: {{{{name: "chaos.game:Game", count: {TASKS_PER_STEP * GROUP_SIZE}, binaryReward: false}}}}
  algorithm: {{{{type: gigpo, minibatchTasks: {TASKS_PER_STEP}, actorLearningRate: 1.0e-30, weightDecay: 0}}}}
  training:
    {{{{steps: {{steps}}, tasksPerStep: {TASKS_PER_STEP}, checkpointEvery: 1, stallTimeoutSeconds: {STALL_SECONDS},
      seed: {{seed}}, validation: {{{{episodes: 0}}}}}}}}
  resources: {{{{device: cpu}}}}
"""


class TurnmillWithEnvironments(Turnmill):
    """turnmill, where the environment is what turns have their effect on."""

    parts: Mapping[str, str] = {
        "environment": r"environments\.runtime\.fork_server_main",
        **{name: TURNMILL.parts[name] for name in ("trainer", "engine", "engine core", "agent loop", "store")},
    }
    tool_server: Sequence[str] = ()

    def __init__(self) -> None:
        super().__init__("turnmill-environment")
        self._folder = Path()
        self._names: dict[str, list[str]] = {}

    def model(self) -> Path:
        """Return the folder of the model, which is that of the agent with tools."""
        return TURNMILL.model()

    def processes(self, part: str) -> list[int]:
        """Return the processes of a kind: environments bear the name of the server that they were forked from."""
        return children_among(find(self.parts[part])) if part == "environment" else super().processes(part)

    def played(self, folder: Path) -> Mapping[str, Played]:
        """Return the trajectories of the log; its advantages are those of turns."""
        log = TrajectoryLog(RunFolder(folder / "run"))
        episodes = [e for e in log.read_episodes() if e.turns[0].step <= self.steps(folder)]
        return {e.name: Played(e.reward, e.failed_cause is None and e.outcome != "failed") for e in episodes}

    def name_of(self, trajectory: str) -> str:
        """Return the name of the episode in which exactly this has been said; of several, each once, then the last."""
        if not self._names:
            for episode in TrajectoryLog(RunFolder(self._folder / "run")).read_episodes():
                said = [str(episode.turns[0].seed), *(turn.action for turn in episode.turns)]
                for length in range(2, len(said) + 1):
                    self._names.setdefault(digest_of(said[:length]), []).append(episode.name)
        names = self._names.get(trajectory, [trajectory])
        return names.pop(0) if len(names) > 1 else names[0]

    def _job(self, given: Given) -> str:
        self._folder = given.folder
        return JOB.format(steps=given.steps, seed=given.seed, retries=given.retries, model=self.model().resolve())


SYSTEM = TurnmillWithEnvironments()
