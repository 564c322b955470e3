"""One episode of a program: its trajectory at the gateway, its outcome and its result."""

import math
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import get_args

from PIL import Image

from turnmill.core.errors import EpisodeError, HarnessError, InferenceError, OvertakenError
from turnmill.core.trajectory import EpisodeSummary, TrajectoryOutcome
from turnmill.gateway.answers import Answer as GatewayAnswer
from turnmill.gateway.answers import AnswerRequest
from turnmill.gateway.pictures import Picture
from turnmill.gateway.rendering import ChatRenderer
from turnmill.gateway.trajectory import Trajectory
from turnmill.gateway.tree import BranchReason, TreeRow
from turnmill.jobs.harness_agent import HarnessAgent
from turnmill.observability.trajectory_log import TurnPosition, TurnRecord
from turnmill.rollout.episode_id import EpisodeId
from turnmill.rollout.episode_metrics import EpisodeMetrics
from turnmill.rollout.harness.program import Ended
from turnmill.rollout.timing import Timing
from turnmill.rollout.token_integrity import pack_tokens
from turnmill.rollout.tokens import Row, Tokens
from turnmill.tasks import Answer, Task

MAX_METRICS = 32
"""Number of metrics that a program may give."""

METRIC_NAME = re.compile(r"\w{1,64}")

BRANCH_REASONS = tuple(reason for reason in get_args(BranchReason) if reason)


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """Result of an episode that did not fail."""

    summary: EpisodeSummary
    rows: tuple[Row, ...]
    detail: str


class HarnessEpisode:
    """An episode as the journal and the trajectory log know it."""

    def __init__(self, episode_id: EpisodeId, task: Task, *, run_name: str) -> None:
        self.name = str(episode_id)
        self.step = episode_id.step
        self.validate = episode_id.validate
        self.sampling_stream = episode_id.sampling_stream
        self.trajectory_id = f"{run_name}-{episode_id}-{secrets.token_hex(16)}"
        self.task = task
        self.timing = Timing()
        self.trajectory: Trajectory | None = None
        self.num_resumed = 0
        """Number of turns that the journal had."""

        self._pictures: dict[str, Picture] = {}
        """Pictures by their digests, as the turns have only these."""

    @property
    def num_turns(self) -> int:
        """Number of answers so far."""
        return self.trajectory.num_turns if self.trajectory is not None else 0

    async def ask(self, request: AnswerRequest) -> list[GatewayAnswer]:
        """Return the answers to a request of the program."""
        assert self.trajectory is not None
        self._pictures |= {picture.digest: picture for picture in request.pictures}
        return await self.trajectory.answer(request)

    def outcome(self, ended: Ended, agent: HarnessAgent) -> TrajectoryOutcome:
        """Return the outcome of an episode whose program has ended. Raises EpisodeError if it failed."""
        assert self.trajectory is not None
        failure = self.trajectory.failure
        if isinstance(failure, OvertakenError):
            raise failure
        if ended.how == "stopped" or ended.result.get("stopReason") == "max_turns":
            return TrajectoryOutcome("max_turns", "max_turns_reached")
        if ended.exit_code and failure is not None:
            # It gave up because of what failed it: that says nothing of the policy.
            raise failure if isinstance(failure, EpisodeError) else InferenceError(f"{self.name}: {failure}")
        if ended.how == "timeout":
            if agent.on_timeout == "fail":
                raise HarnessError(f"{self.name}: the agent took more than {agent.timeout_seconds:g} s.")
            return TrajectoryOutcome("timeout", "program_timeout")
        if not self.num_turns:
            raise HarnessError(
                f"{self.name}: the agent ended with {ended.exit_code} and asked the policy for nothing: "
                f"{ended.last_words}"
            )
        return TrajectoryOutcome("completed", f"exit_code_{ended.exit_code}" if ended.exit_code else "exited")

    def program_reward(self, ended: Ended) -> float:
        """Return the reward that the program gave. Raises HarnessError if it gave none, although it exited."""
        reward = ended.result.get("reward")
        if isinstance(reward, (int, float)):
            return float(reward)
        if ended.how != "exited":
            return 0.0
        raise HarnessError(
            f"{self.name}: the agent's result, the last line of a program or the body of a service, is no JSON object "
            f"with a number `reward`; it ended with {ended.exit_code}: {ended.last_words}"
        )

    def program_metrics(self, ended: Ended) -> dict[str, float]:
        """Return the numbers among the metrics that the program gave, by names that metrics may have."""
        given = ended.result.get("metrics")
        found = given.items() if isinstance(given, Mapping) else ()
        numbers = {
            f"result_{name}": float(value)
            for name, value in found
            if METRIC_NAME.fullmatch(name) and isinstance(value, (int, float)) and math.isfinite(value)
        }
        return dict(list(numbers.items())[:MAX_METRICS])

    def answer(self, ended: Ended, renderer: ChatRenderer) -> Answer:
        """Return the texts from which the task's reward is computed."""
        assert self.trajectory is not None
        served = sorted(self.trajectory.served)
        texts = [renderer.text_of(self.trajectory.turns[number].response_ids) for number in served]
        given = ended.result.get("answer")
        last = given if isinstance(given, str) else str(self.trajectory.last_message()["content"])
        whole = "".join(renderer.text_of(row.ids) for row in self.trajectory.rows())
        return Answer(last=last, responses="".join(texts), whole=whole)

    def result(self, outcome: TrajectoryOutcome, reward: float, given: dict[str, float]) -> EpisodeResult:
        """Return the summary and the rows; `given` are the metrics that the program gave."""
        assert self.trajectory is not None
        rows = self.trajectory.rows()
        turns = [self.trajectory.turns[number] for row in rows for number in row.generations]
        versions = [int(turn.metrics["oldest_version"]) for turn in turns] + [turn.policy_version for turn in turns]
        summary = EpisodeSummary(
            episode_id=self.name,
            reward=reward,
            stop_reason=outcome.stop_reason,
            success=reward > 0,
            num_turns=self.num_turns,
            num_rows=len(rows),
            policy_versions=(min(versions, default=0), max(versions, default=0)),
            # In the order of the rows, each generation once.
            sampled_tokens=b"".join(pack_tokens(turn.response_ids) for turn in turns),
            seconds=self.timing.elapsed_seconds(),
            metrics=self._metrics(rows) | given,
        )
        # Whatever was served was asked for with all pictures before it.
        images = {digest: self._pictures[digest].image() for row in rows for digest in row.pictures}
        return EpisodeResult(summary, tuple(_row(row, images) for row in rows), outcome.detail)

    def _metrics(self, rows: list[TreeRow]) -> dict[str, float]:
        assert self.trajectory is not None
        generations = [self.trajectory.tree.generations[number] for row in rows for number in row.generations]
        metrics = EpisodeMetrics()
        reasons = [generation.reason for generation in generations]
        for reason in BRANCH_REASONS:
            metrics.put(f"branches_{reason}", float(reasons.count(reason)))
        for generation in generations:
            metrics.add("per_action_length", len(generation.response_ids))
        for name, value in {
            "num_turns": self.num_turns,
            "turns_carried_on": self.num_resumed,
            "branches": sum(map(bool, reasons)),
            "traj_actions_length": sum(sum(row.mask) for row in rows),
            "traj_obs_length": sum(len(row.mask) - sum(row.mask) for row in rows),
        }.items():
            metrics.put(name, float(value))
        return metrics.read()

    def turn_records(self, environment: str) -> list[TurnRecord]:
        """Return the turns for the trajectory log, each with what was added before it."""
        if self.trajectory is None:
            return []
        records = []
        numbers = {place: number for number, place in enumerate(sorted(self.trajectory.served))}
        for place, number in numbers.items():
            turn = self.trajectory.turns[place]
            position = TurnPosition(self.name, self.task.number, number, self.step, "" if number else environment)
            before = int(turn.metrics["parent"])
            parent = -1 if before < 0 else numbers.get(before, -2)
            records.append(
                replace(TurnRecord.of(turn, position), observation="", parent=None if parent == number - 1 else parent)
            )
        return records


def _row(row: TreeRow, images: Mapping[str, Image.Image]) -> Row:
    response = Tokens(row.ids, row.mask, row.log_probs)
    return Row(row.prompt_ids, response, tuple(images[digest] for digest in row.pictures))
