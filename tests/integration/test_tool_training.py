"""Whole runs of agents with tools, as a user starts them, under failures."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.failed_trajectories import RunTrajectories
from support.faulty_proxy import ERROR_TEXT, FaultyProxy
from support.server_process import ServerProcess, descendants, kill_now
from support.training_runs import DIAGNOSTICS, TOOL_JOB, Attempt, TrainingRun
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import EpisodeRecord, TrajectoryLog
from turnmill.runs import processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

TURNS = 4
COUNTING_AGENT = f"""{{type: tool, toolType: "support.tool_server:SlowCounter", stopTokens: ["</python>"], groupSize: 4,
  minTurns: {TURNS}, maxTurns: {TURNS}, maxPromptLength: 32, maxResponseLength: 112, maxActionLength: 8,
  maxObsLength: 8, toolCallMaxRetries: 20}}"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[TrainingRun]:
    job = tmp_path / "job.yaml"
    job.write_text(TOOL_JOB)
    with TrainingRun(job, tmp_path / "run", {"CALLS_FILE": str(tmp_path / "calls")}) as run:
        yield run


def episodes(run: TrainingRun) -> list[EpisodeRecord]:
    return list(TrajectoryLog(RunFolder(run.folder)).read_episodes())


def in_mid_step(run: TrainingRun, step: int) -> Callable[[], bool]:
    """Return a condition: some calls of this step's trajectories have been made, but not all."""
    calls_file = Path(run.environment["CALLS_FILE"])

    def holds() -> bool:
        made = calls_file.read_text().splitlines() if calls_file.exists() else []
        return sum(f"-t{step}-" in trajectory for trajectory in made) >= 20

    return holds


def kill_in_mid_step(run: TrainingRun, attempt: Attempt, step: int, word: str) -> None:
    attempt.wait_for(in_mid_step(run, step))
    attempt.kill_processes(word)


def require_each_step_and_each_effect_once(run: TrainingRun, steps: int) -> None:
    assert [row["step"] for row in run.metrics] == list(range(steps + 1))
    assert all(row.get("training/rollout_probs_diff_mean", 0) < 1e-4 for row in run.metrics)
    assert all({*DIAGNOSTICS, "turnmill/uniform_groups_ratio"} <= row.keys() for row in run.metrics[1:])
    played = episodes(run)
    assert len(played) == 16 * steps + 2 * 8
    assert not [episode.failed_cause for episode in played if episode.failed_cause]
    for episode in played:
        assert [turn.observation for turn in episode.turns[:-1]] == [str(turn + 1) for turn in range(TURNS)]


def most_resumed_turns(run: TrainingRun, step: int) -> float:
    (row,) = (row for row in run.metrics if row["step"] == step)
    return float(row["turnmill/tool/turns_carried_on/max"])


def test_a_killed_run_resumes_its_trajectories(run):
    attempt = run.start("--set", f"agent={COUNTING_AGENT}")
    attempt.wait_for(in_mid_step(run, 2))
    mark, folders = run.mark(), run.folders()
    attempt.kill()

    run.train("--resume", "--set", f"agent={COUNTING_AGENT}")

    require_each_step_and_each_effect_once(run, steps=3)
    assert most_resumed_turns(run, 2) >= 1
    assert most_resumed_turns(run, 3) == 0
    assert processes.find_marked(mark) == []
    # The folders of Ray and of the store.
    assert len(folders) == 2
    assert not any(folder.exists() for folder in folders)


@pytest.mark.nightly
def test_a_retried_run_resumes_its_trajectories_and_a_dead_agent_loop_worker_is_replaced_without_a_retry(run):
    attempt = run.start("--set", f"agent={COUNTING_AGENT}", "--set", "retries=1", "--set", "training.checkpointEvery=1")

    kill_in_mid_step(run, attempt, 1, "TurnTaskRunner")
    # No retry is left.
    kill_in_mid_step(run, attempt, 2, "ToolLoopWorker")
    mark = run.mark()
    attempt.wait()

    # Step 1 has no earlier checkpoint to resume from: it begins with the run.
    require_each_step_and_each_effect_once(run, steps=3)
    assert most_resumed_turns(run, 2) >= 1
    assert processes.find_marked(mark) == []


def test_a_run_continues_after_its_tool_server_and_its_store_are_killed(run):
    attempt = run.start("--set", f"agent={COUNTING_AGENT}")

    kill_in_mid_step(run, attempt, 1, "tool-server")
    attempt.wait_for(in_mid_step(run, 2))
    (supervisor,) = run.processes("store_supervisor.py")
    (store,) = descendants(supervisor)
    kill_now([store])
    mark = run.mark()
    attempt.wait()

    require_each_step_and_each_effect_once(run, steps=3)
    assert processes.find_marked(mark) == []


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[FaultyProxy]:
    """A proxy that fails every seventh call, in front of a real tool server."""
    server = ServerProcess(tmp_path / "server.log", "--tool_type", "python_code")
    try:
        with FaultyProxy(server.wait_until_ready().url, share=0.15) as proxy:
            yield proxy
    finally:
        server.close()


@pytest.mark.nightly
def test_failed_calls_change_no_advantage_of_others_and_are_in_no_context(run, proxy):
    run.train(
        *("--set", f"agent.toolServerUrl={proxy.url}", "--set", "agent.toolCallMaxRetries=1"),
        *("--set", "agent.groupSize=8", "--set", "training.tasksPerStep=8", "--set", "algorithm.kl.coefficient=0"),
    )

    played = RunTrajectories.read(run.folder)
    failed_calls = {trajectory for trajectory, _ in proxy.failed if trajectory.startswith("t")}
    assert set(played.failed) == failed_calls
    assert 0.08 < len(played.failed) / (3 * 64) < 0.22
    assert len(set(played.advantages.values())) > 10
    assert played.advantages.keys() == played.learned.keys()
    assert played.largest_difference() < 1e-6
    assert played.error_tokens((ERROR_TEXT, "Tool call error", "Tool server connection error")) == 0
    assert [row["step"] for row in run.metrics] == [0, 1, 2, 3]
    assert sum(row.get("turnmill/episodes/failed", 0) for row in run.metrics) == len(played.failed)


@pytest.mark.nightly
def test_too_many_failures_end_a_run_with_the_reason(run):
    attempt = run.start("--set", "agent.toolServerUrl=http://127.0.0.1:9", "--set", "agent.toolOutageTimeout=1")

    attempt.wait(code=1)

    assert "(outage)" in run.output.read_text()
    assert "tool_connection: 8" in run.output.read_text()
