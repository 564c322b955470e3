"""A job on a data file of NeMo Gym and a resources server trains until its first update."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from threading import Thread

import pytest

from support.random_policy import write_policy
from support.training_runs import TrainingRun
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900)]

JOB = """
apiVersion: turnmill.dev/v1alpha1
kind: AgentTrainingJob
metadata: {{name: nemo-gym}}
spec:
  model: {{path: {model}}}
  agent:
    type: harness
    entryPoint: turnmill.nemo_gym:simple_agent
    reward: program
    groupSize: 4
    maxTurns: 3
    maxPromptLength: 300
    maxResponseLength: 200
    maxAnswerLength: 16
    maxConcurrentTrajectories: 2
  environment: {{name: "turnmill.nemo_gym.rows:Rows", options: {{path: {rows}, url: "{url}", validationTasks: 1}}}}
  algorithm: {{type: grpo, minibatchTasks: 1}}
  training: {{steps: 1, tasksPerStep: 1, validation: {{episodes: 1}}}}
  resources: {{device: cpu}}
"""


class EverySecond(BaseHTTPRequestHandler):
    """Verifies every second trajectory, whatever it says: there is something to learn."""

    numbers = count()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = json.dumps({**body, "reward": next(self.numbers) % 2} if self.path == "/verify" else {}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Be silent."""


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), EverySecond) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_rows_train_until_the_first_update(url: str, tmp_path: Path):
    write_policy(tmp_path / "policy", [JOB], context=1024)
    rows, job = tmp_path / "rows.jsonl", tmp_path / "job.yaml"
    rows.write_text(
        "".join(json.dumps({"responses_create_params": {"input": f"Add {n} and 1."}}) + "\n" for n in range(3))
    )
    job.write_text(JOB.format(model=tmp_path / "policy", rows=rows, url=url))

    with TrainingRun(job, tmp_path / "run") as run:
        run.train()

    update = run.metrics[1]
    assert update["actor/grad_norm"] > 0
    assert update["training/rollout_probs_diff_mean"] < 1e-4
    assert update["turnmill/token_mismatches"] == 0
    episodes = list(TrajectoryLog(RunFolder(run.folder)).read_episodes())
    assert len(episodes) == 1 + 4 + 1
    assert not [episode.failed_cause for episode in episodes if episode.failed_cause]
