"""Synthetic trajectory logs of any length, without a policy and an environment."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

from turnmill.observability.progress import Progress, write_progress
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog, TurnRecord

WORDS = (
    *("go", "turn", "left", "right", "forward", "pick", "up", "the", "red", "blue", "green"),
    *("ball", "key", "box", "door", "wall", "step", "see", "think", "act", "done"),
)
ENVIRONMENTS = ("babyai GoToObj", "sokoban", "maths")
JOB = """\
apiVersion: turnmill.dev/v1alpha1
kind: AgentTrainingJob
metadata: {name: long-log}
spec: {environment: {name: babyai, task: GoToObj}}
"""


def write_long_log(
    path: Path, *, trajectories: int, turns: int = 8, tokens: int = 40, per_step: int = 1000, seed: int = 0
) -> RunFolder:
    """Write a run folder with this number of trajectories and of turns per trajectory on average."""
    folder = RunFolder(path)
    folder.create()
    folder.write_job(JOB)
    folder.vocabulary.write_text(json.dumps([f" {word}" for word in WORDS]))
    generator, log = random.Random(seed), TrajectoryLog(folder)
    for first in range(0, trajectories, per_step):
        step, numbers = first // per_step + 1, range(first, min(first + per_step, trajectories))
        played = [_episode(generator, number, step, turns, tokens) for number in numbers]
        log.append(turn for episode in played for turn in episode)
        log.advantages.write_tokens(step, (each for episode in played for each in _advantages(generator, episode)))
    steps = -(-trajectories // per_step)
    write_progress(folder, Progress("training", done=steps, total=steps))
    folder.write_summary({})
    return folder


def _episode(generator: random.Random, number: int, step: int, turns: int, tokens: int) -> list[TurnRecord]:
    length, solved = generator.randint(1, 2 * turns - 1), generator.random() < 0.4
    failed = not solved and generator.random() < 0.05
    task = number % 64
    return [
        _turn(generator, number, step, turn, task, tokens, last=turn == length - 1, solved=solved, failed=failed)
        for turn in range(length)
    ]


def _turn(
    generator: random.Random, number: int, step: int, turn: int, task: int, tokens: int, *,
    last: bool, solved: bool, failed: bool,
) -> TurnRecord:  # fmt: skip
    ids = tuple(generator.randrange(len(WORDS)) for _ in range(generator.randint(tokens // 2, tokens * 3 // 2)))
    response = "".join(f" {WORDS[token]}" for token in ids)
    return TurnRecord(
        episode=f"t{task}-{number}",
        environment=task,
        turn=turn,
        step=step,
        policy_version=step - 1,
        prompt=f"task {task}: " + " ".join(WORDS[(task + each) % len(WORDS)] for each in range(40)),
        response=response,
        action=WORDS[ids[0]],
        reward=float(last and solved),
        prompt_ids=tuple(range(20)),
        response_ids=ids,
        log_probs=tuple(-(generator.random() ** 3) * 4 for _ in ids),
        done=last,
        stop_reason=("failed" if failed else "completed" if solved else "max_turns") if last else None,
        observation=" ".join(WORDS[(number + turn + each) % len(WORDS)] for each in range(20)),
        environment_name=ENVIRONMENTS[task % len(ENVIRONMENTS)] if turn == 0 else "",
        seed=task,
        asked_at=1.7e9 + number + turn,
        seconds={"generation": round(generator.random(), 4), "tools": round(generator.random() / 4, 4)},
        failed_cause="environment" if last and failed else None,
    )


def _advantages(generator: random.Random, episode: list[TurnRecord]) -> Iterator[tuple[str, int, list[float]]]:
    for turn in episode:
        yield turn.episode, turn.turn, [generator.gauss(0, 1) for _ in turn.response_ids]
