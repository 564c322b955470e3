"""An environment with the rules of a job applied: default action, penalty, binary reward, turn limit."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from turnmill.core.errors import EnvironmentFailedError
from turnmill.environments.base import Environment
from turnmill.environments.parsing import backtrack_length, has_marker, plan_length
from turnmill.jobs.environment import SuccessRule


@dataclass(frozen=True, slots=True)
class ResetResult:
    """First observation and prompts of an episode."""

    observation: str
    instruction_prompt: str
    compact_prompt: str
    state_key: str = ""
    """Key that is equal for equal states."""


@dataclass(frozen=True, slots=True)
class ActionResult:
    """Result of one response of the policy."""

    action: str
    """Action that was executed; the default action if the response contained none."""

    valid: bool
    reward: float
    terminated: bool
    """True if the task is over."""

    truncated: bool
    """True if a limit on turns ended the episode."""

    observation: str
    instruction_prompt: str
    compact_prompt: str
    plan_length: int = 0
    """Number of phrases for actions in the response."""

    backtrack_length: int = 0
    """Number of words of the response that signal backtracking."""

    remembered: str = ""
    """The response as later prompts show it."""

    info: Mapping[str, float] = field(default_factory=dict)
    state_key: str = ""
    """Key of the state after the action."""

    @property
    def done(self) -> bool:
        """True if the episode is over, for whatever reason."""
        return self.terminated or self.truncated

    @property
    def success(self) -> bool:
        """True if the episode is over and its last reward is positive."""
        return self.done and self.reward > 0


def is_success(rule: SuccessRule, rewards: Sequence[float], *, is_solved: bool) -> bool:
    """Return whether an episode is a success, by `environment.success` of its job; `is_solved` says the environment."""
    match rule:
        case "last_reward":
            return rewards[-1] > 0
        case "total_reward":
            return sum(rewards) > 0
        case "all_rewards":
            return max(rewards) > 0 and min(rewards) >= 0
        case "environment":
            return is_solved


class TurnEnvironment:
    """An environment that takes whole responses of the policy and returns rewards as the job defines them."""

    def __init__(
        self, environment: Environment, *, invalid_penalty: float, binary_reward: bool, marker_required: bool = True
    ) -> None:
        """Wrap `environment`; with `marker_required` an action without an `ACTION:` marker before it is invalid."""
        self.environment = environment
        self.invalid_penalty = invalid_penalty
        self.binary_reward = binary_reward
        self.marker_required = marker_required
        # There is no episode before the first reset.
        self._done = True
        self._num_turns = 0

    def reset(self, seed: int) -> ResetResult:
        """Start the episode of a seed."""
        observation = self.environment.reset(seed)
        self._done, self._num_turns = False, 0
        environment = self.environment
        return ResetResult(
            observation,
            environment.instruction_prompt(),
            environment.compact_prompt(),
            environment.state_key(observation),
        )

    def act(self, response_text: str) -> ActionResult:
        """Execute the action in a response, or the default action if it contains none.

        Raises EnvironmentFailedError if there is no episode in progress or the reward is not finite.
        """
        if self._done:
            raise EnvironmentFailedError("The environment has no episode in progress: reset it first.")
        environment = self.environment
        parsed = self.parse(response_text)
        action = environment.default_action if parsed is None else parsed
        remembered = environment.remembered(response_text, action)
        result = environment.step(action)
        self._num_turns += 1
        # A task that is over on the last turn is terminated, not truncated.
        truncated = not result.terminated and (result.truncated or self._num_turns >= environment.max_turns)
        self._done = result.terminated or truncated
        return ActionResult(
            action=action,
            valid=parsed is not None,
            reward=self._reward(result.reward, valid=parsed is not None),
            terminated=result.terminated,
            truncated=truncated,
            observation=result.observation,
            instruction_prompt=environment.instruction_prompt(),
            compact_prompt=environment.compact_prompt(),
            plan_length=plan_length(remembered, environment.plan_phrases or environment.actions),
            backtrack_length=backtrack_length(remembered),
            remembered=remembered,
            info=result.info,
            state_key=environment.state_key(result.observation),
        )

    def parse(self, response_text: str) -> str | None:
        """Return the action in a response, or None if it contains no valid one."""
        if self.marker_required and not has_marker(response_text):
            return None
        return self.environment.parse_action(response_text)

    def _reward(self, reward: float, *, valid: bool) -> float:
        if not math.isfinite(reward):
            raise EnvironmentFailedError(f"The environment returned a reward of {reward}: rewards must be finite.")
        # The penalty replaces the reward: an invalid response must not profit from a lucky default action.
        if not valid:
            return -self.invalid_penalty
        return 1.0 if self.binary_reward and reward > 0 else float(reward)
