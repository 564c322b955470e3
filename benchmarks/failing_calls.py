"""Trains agents with tools while a share of their calls is made to fail for good; beside it, the same undisturbed.

.venv/bin/python benchmarks/failing_calls.py --share 0.15 --steps 4
"""

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from runs import Measured, measure, table

from support.failed_trajectories import RunTrajectories
from support.faulty_proxy import ERROR_TEXT, FaultyProxy
from support.server_process import ServerProcess

EXAMPLE = Path("manifests/examples/tool-arithmetic-cpu.yaml")
# What turnmill and verl-tool tell of calls that fail.
ERRORS = (ERROR_TEXT, "Tool call error", "Tool call timeout", "Tool server connection error")


@dataclass(frozen=True)
class Trained:
    """A run and what was done to it."""

    run: Measured
    played: RunTrajectories
    num_calls: int
    num_failed_calls: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=0.15)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--job", type=Path, default=EXAMPLE)
    parser.add_argument("--output", type=Path, default=Path("runs/benchmarks/failing_calls"))
    options = parser.parse_args()
    folder = options.output / str(int(time.time()))
    calm, forced = (
        train(options.job, folder / name, share, options.steps)
        for name, share in (("undisturbed", 0.0), ("forced", options.share))
    )
    show(calm, forced)


def train(job: Path, run_dir: Path, share: float, steps: int) -> Trained:
    with tempfile.TemporaryDirectory(prefix="failing-calls-") as logs:
        server = ServerProcess(Path(logs) / "server.log", "--tool_type", "python_code")
        try:
            with FaultyProxy(server.wait_until_ready().url, share=share) as proxy:
                run = measure(
                    job,
                    run_dir,
                    *("--set", f"agent.toolServerUrl={proxy.url}", "--set", "agent.toolCallMaxRetries=1"),
                    # With a penalty, rewards alone do not tell the advantages.
                    *("--set", "algorithm.kl.coefficient=0", "--set", f"training.steps={steps}"),
                    # On a busy machine Ray may not start in time.
                    *("--set", "retries=3", "--set", "training.checkpointEvery=1"),
                )
        finally:
            server.close()
    return Trained(run, RunTrajectories.read(run_dir), len(proxy.calls), len(proxy.failed))


def show(calm: Trained, forced: Trained) -> None:
    rewards = {name: episode.reward for name, episode in calm.played.learned.items() if name.startswith("t1-")}
    both = (calm, forced)
    rows = [
        ["exit code", *(trained.run.exit_code for trained in both)],
        ["calls", *(trained.num_calls for trained in both)],
        ["made to fail", *(f"{t.num_failed_calls} ({t.num_failed_calls / t.num_calls:.1%})" for t in both)],
        ["trajectories learned from", *(len(trained.played.learned) for trained in both)],
        ["failed", *(len(trained.played.failed) for trained in both)],
        [
            "largest difference of an advantage from that of a group without the failed",
            *(f"{trained.played.largest_difference():.1e}" for trained in both),
        ],
        ["the same in step 1, with the undisturbed run's rewards", "", step_one(forced.played, rewards)],
        ["tokens of error text in contexts", *(trained.played.error_tokens(ERRORS) for trained in both)],
        ["success before", *(f"{trained.run.summary['success_first']:.3f}" for trained in both)],
        ["after", *(f"{trained.run.summary['success_final']:.3f}" for trained in both)],
    ]
    print(table(["", "undisturbed", "forced"], rows))


def step_one(forced: RunTrajectories, rewards: dict[str, float]) -> str:
    """Policies are the same in step 1 alone."""
    shared = [name for name in forced.learned if name in rewards]
    alike = sum(forced.learned[name].reward == rewards[name] for name in shared)
    return f"{forced.largest_difference(rewards):.1e} ({alike} of {len(shared)} rewards alike)"


if __name__ == "__main__":
    main()
