"""Usual suspects when a policy does not learn: rules over the metrics of a run's steps.

Each rule reads the rows of `metrics.jsonl` from step 1 on and returns a `Suspect`, or None. What a run shows early may
be harmless at its end, so most rules read its last third.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from turnmill.observability.run_folder import MetricsRow

MORE = "docs/troubleshooting.md, The policy does not learn"

LOW_SUCCESS = 0.5
"""Above this success a policy has learned; few groups differ and entropy is low because it is good."""

UNIFORM_GROUPS = 0.8
"""Then four fifths of what a step generates are thrown away."""

NO_SPREAD = 1e-6
"""Advantages are 0 or of the order of 1; smaller ones are rounding errors."""

COLLAPSED_ENTROPY = 0.05
"""Nats per token. A choice between two tokens has this entropy if one of them has a probability of 0.99."""

LARGE_REFERENCE_KL = 1.0
"""Nats per token: on average the reference gives a sampled token less than 1/e of its probability."""

LARGE_STEP_KL = 0.1
"""Nats per token. PPO's implementations that stop a step early do so at 0.01 to 0.05."""

CLIPPED = 0.3
"""PPO clips a few tokens in a hundred; where the ratios of a third leave the range, the step is too large."""

TRUNCATED = 0.1
"""One response in ten loses its action or its answer."""

INVALID = 0.5
"""Every other turn is wasted."""

EXPLAINED = 0.0
"""At 0 a constant would be as good as the critic."""

ZERO_GRADIENT = 1e-8
"""The gradient of a policy that learns has a norm above 1e-3."""

ZERO_LEARNING_RATE = 1e-9
"""A step of Adam changes a weight by about the learning rate, and float32 numbers near 0.02 are 1.9e-9 apart."""

ENGINE_KL = 0.01
"""Nats per token. Equal weights give 1e-12 in float32, and the rounding of bfloat16 about 1e-3."""

MIN_EPISODES = 20
"""With fewer episodes, no success may be chance."""

MIN_CRITIC_STEPS = 5
"""A critic begins below 0, also in runs that learn."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """Something that keeps a policy from learning."""

    name: str
    finding: str
    """Sentence with the value that was measured."""

    advice: str
    """What to try."""


class History:
    """Metrics of the steps of a run, in order."""

    def __init__(self, rows: Sequence[MetricsRow]) -> None:
        self.rows = [row for row in rows if row.get("step", 0) >= 1]

    def values(self, key: str) -> list[float]:
        """Return the values of a metric over all steps, without those that are missing or not finite."""
        found = (row.get(key) for row in self.rows)
        return [float(value) for value in found if isinstance(value, int | float) and math.isfinite(value)]

    def recent(self, key: str) -> float | None:
        """Return the mean over the last third of the steps that have a metric; None if none has."""
        values = self.values(key)
        return fmean(values[-math.ceil(len(values) / 3) :]) if values else None

    def is_low(self) -> bool:
        """Return whether few of the recent episodes were solved."""
        success = self.recent("turnmill/success")
        return success is None or success < LOW_SUCCESS

    @property
    def episodes(self) -> float:
        """Number of episodes that ended and did not fail."""
        reasons = ("completed", "max_turns", "max_tokens", "timeout")
        return sum(sum(self.values(f"turnmill/episodes/{reason}")) for reason in reasons)


def find_suspects(rows: Sequence[MetricsRow]) -> list[Suspect]:
    """Return what may have kept a run from learning, the most likely causes first."""
    history = History(rows)
    found = (rule(history) for rule in RULES)
    return [suspect for suspect in found if suspect is not None] if history.rows else []


def engine_disagrees(history: History) -> Suspect | None:
    """Engine and trainer give the sampled tokens different probabilities."""
    kl = history.recent("rollout_corr/k3_kl")
    if kl is None or kl <= ENGINE_KL:
        return None
    return Suspect(
        "engine and trainer disagree",
        f"Their KL divergence is {kl:.3g} nats per token; the same weights give less than {ENGINE_KL:g}.",
        "Report it: the engine may not get the trainer's weights. With quantized engines, raise their precision.",
    )


def no_update(history: History) -> Suspect | None:
    """The gradient is not finite or zero, or the learning rate is zero."""
    rates, norms = history.values("actor/lr"), history.values("actor/grad_norm")
    broken = sum("actor/grad_norm" in row and row["actor/grad_norm"] is None for row in history.rows)
    if broken:
        return Suspect(
            "gradient not finite",
            f"The policy's gradient was infinite or not a number in {broken} of {len(history.rows)} steps.",
            "A smaller `actorLearningRate`; with bfloat16, look for rewards and lengths out of the ordinary.",
        )
    # With the schedule `cosine` the rate of the last step is 0.
    if len(rates) > 1 and max(rates) < ZERO_LEARNING_RATE:
        return Suspect(
            "learning rate zero",
            f"The policy's learning rate is never above {max(rates):.3g}, too little to change a weight.",
            "A larger `actorLearningRate`; look for a learning rate in `spec.verl`.",
        )
    if norms and max(norms) < ZERO_GRADIENT:
        return Suspect(
            "gradient zero",
            f"The norm of the policy's gradient is never above {max(norms):.3g}.",
            "Look at rewards and advantages: where all are equal, there is nothing to learn.",
        )
    return None


def never_solved(history: History) -> Suspect | None:
    """No episode of the run was solved."""
    success = history.values("turnmill/success")
    if not success or max(success) > 0 or history.episodes < MIN_EPISODES:
        return None
    return Suspect(
        "no episode solved",
        f"None of {history.episodes:.0f} episodes was solved.",
        "An easier task, a longer warm start or a better model: what never succeeds cannot become more frequent.",
    )


def no_signal(history: History) -> Suspect | None:
    """Rewards do not differ where they are compared, so there are no advantages."""
    spreads = history.values("critic/advantages/std")
    if spreads and max(spreads) < NO_SPREAD:
        return Suspect(
            "no signal",
            f"All advantages are 0: their standard deviation is never above {max(spreads):.3g}.",
            "A task that some episodes solve and others do not.",
        )
    ratio = history.recent("turnmill/uniform_groups_ratio")
    if ratio is None or ratio < UNIFORM_GROUPS or not history.is_low():
        return None
    return Suspect(
        "no signal in groups",
        f"In {ratio:.0%} of the groups all trajectories have the same reward, so nothing is learned from them.",
        "Larger groups (`groupSize`), easier tasks, a higher `temperature`, or `algorithm.type: dapo`.",
    )


def truncated(history: History) -> Suspect | None:
    """Responses reach the token limit."""
    ratio = history.recent("turnmill/truncated_ratio")
    if ratio is None or ratio < TRUNCATED:
        return None
    return Suspect(
        "responses cut off",
        f"{ratio:.0%} of the responses reach the token limit, and what they were about to do is lost.",
        "More tokens: `maxResponseTokens` or `maxResponseLength`, with a tool also `maxActionLength`.",
    )


def invalid_actions(history: History) -> Suspect | None:
    """Responses hold no valid action."""
    ratio = history.recent("turnmill/valid_action_ratio")
    if ratio is None or ratio >= INVALID:
        return None
    return Suspect(
        "invalid actions",
        f"Only {ratio:.0%} of the actions are valid.",
        "Read some turns (`turnmill trajectories`): the prompt must name the actions and their form.",
    )


def large_steps(history: History) -> Suspect | None:
    """A step moves the policy too far."""
    kls, clipped = history.values("actor/ppo_kl"), history.values("actor/pg_clipfrac")
    advice = "A smaller `actorLearningRate`, fewer `epochs`, larger mini-batches."
    if kls and max(map(abs, kls)) > LARGE_STEP_KL:
        kl = max(map(abs, kls))
        return Suspect("steps too large", f"One step moved the policy by a KL divergence of {kl:.3g} nats.", advice)
    if clipped and max(clipped) > CLIPPED:
        return Suspect("steps too large", f"In one step the loss clipped {max(clipped):.0%} of the tokens.", advice)
    return None


def far_from_reference(history: History) -> Suspect | None:
    """The policy has left the model that it started as."""
    kl = history.recent("turnmill/kl_reference")
    if kl is None or kl <= LARGE_REFERENCE_KL or not history.is_low():
        return None
    return Suspect(
        "KL exploded",
        f"The KL divergence from the reference is {kl:.3g} nats per token: the policy is a different model.",
        "A smaller `actorLearningRate`, a larger `kl.coefficient`.",
    )


def entropy_collapsed(history: History) -> Suspect | None:
    """The policy has stopped exploring before it was good."""
    entropy = history.recent("actor/entropy")
    if entropy is None or entropy >= COLLAPSED_ENTROPY or not history.is_low():
        return None
    return Suspect(
        "entropy collapsed",
        f"The policy's entropy is {entropy:.3g} nats per token: it does the same again and again, at low success.",
        "A smaller `actorLearningRate`, some `entropyCoefficient`, a higher `temperature`.",
    )


def critic_explains_nothing(history: History) -> Suspect | None:
    """The critic's values are no better than a constant."""
    explained = history.recent("critic/vf_explained_var")
    if len(history.values("critic/vf_explained_var")) < MIN_CRITIC_STEPS:
        return None
    if explained is None or explained > EXPLAINED or not history.is_low():
        return None
    return Suspect(
        "critic explains nothing",
        f"The critic explains {explained:.2f} of the returns' variance; a constant explains 0.",
        "A larger `criticLearningRate`, more `criticWarmup`.",
    )


RULES: Sequence[Callable[[History], Suspect | None]] = (
    engine_disagrees,
    large_steps,
    far_from_reference,
    truncated,
    invalid_actions,
    never_solved,
    no_signal,
    no_update,
    entropy_collapsed,
    critic_explains_nothing,
)
