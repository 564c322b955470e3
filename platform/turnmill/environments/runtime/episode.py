"""One environment under the rules that all share: default action, penalty, binary reward, turn limit."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from turnmill.core.errors import EnvironmentFailedError
from turnmill.environments.base import Environment
from turnmill.environments.parsing import backtrack_length, has_marker, plan_length


@dataclass(frozen=True, slots=True)
class Opening:
    """What an episode begins with."""

    observation: str
    instruction_prompt: str
    compact_prompt: str
    state_key: str = ""
    """What is the same wherever the situation is."""


@dataclass(frozen=True, slots=True)
class ActionResult:
    """What one response of the policy brought."""

    action: str
    """What was executed: the default action where the response held none."""

    valid: bool
    reward: float
    terminated: bool
    """The task is over."""

    truncated: bool
    """A limit on turns ended the episode."""

    observation: str
    instruction_prompt: str
    compact_prompt: str
    plan_length: int = 0
    """Actions that the response mentions."""

    backtrack_length: int = 0
    """Words of the response that take something back."""

    info: Mapping[str, float] = field(default_factory=dict)
    state_key: str = ""
    """What is the same wherever the situation after the action is."""

    @property
    def done(self) -> bool:
        """Whether the episode is over, for whatever reason."""
        return self.terminated or self.truncated

    @property
    def success(self) -> bool:
        """Whether the episode ended well."""
        return self.done and self.reward > 0


class TurnEnvironment:
    """An environment that takes whole responses and answers with rewards as the job wants them."""

    def __init__(
        self, environment: Environment, *, invalid_penalty: float, binary_reward: bool, marker_required: bool = True
    ) -> None:
        """`marker_required`: an action that no `ACTION:` announces is invalid, as after a prompt for thoughts."""
        self.environment = environment
        self.invalid_penalty = invalid_penalty
        self.binary_reward = binary_reward
        self.marker_required = marker_required
        # Nothing to act on before the first reset.
        self._done = True
        self._num_turns = 0

    def reset(self, seed: int) -> Opening:
        """Begin the episode that `seed` stands for."""
        observation = self.environment.reset(seed)
        self._done, self._num_turns = False, 0
        environment = self.environment
        return Opening(
            observation,
            environment.instruction_prompt(),
            environment.compact_prompt(),
            environment.state_key(observation),
        )

    def act(self, response_text: str) -> ActionResult:
        """Execute the action in a response, or the default action where there is none."""
        if self._done:
            raise EnvironmentFailedError("There is no episode to act in: reset the environment first.")
        environment = self.environment
        parsed = self.parse(response_text)
        action = environment.default_action if parsed is None else parsed
        result = environment.step(action)
        self._num_turns += 1
        # A task that is over on the last turn is over: no limit ended it.
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
            plan_length=plan_length(response_text, environment.actions),
            backtrack_length=backtrack_length(response_text),
            info=result.info,
            state_key=environment.state_key(result.observation),
        )

    def parse(self, response_text: str) -> str | None:
        """Find the action in a response; None if it holds none."""
        if self.marker_required and not has_marker(response_text):
            return None
        return self.environment.parse_action(response_text)

    def _reward(self, reward: float, *, valid: bool) -> float:
        if not math.isfinite(reward):
            raise EnvironmentFailedError(f"The environment gave a reward of {reward}: rewards are finite numbers.")
        # Replaced, not lowered: even a lucky default action must not be worth an invalid response.
        if not valid:
            return -self.invalid_penalty
        return 1.0 if self.binary_reward and reward > 0 else float(reward)
