"""Settings of the correction for rows that another policy sampled than the one that learns from them."""

from typing import Literal

from pydantic import Field

from turnmill.jobs.fine_tuning_rules import fine_tunes
from turnmill.jobs.rule import Rule
from turnmill.jobs.settings import Settings
from turnmill.jobs.values import BrokenValueError, Values

Level = Literal["none", "token", "sequence"]


class RolloutCorrection(Settings):
    """Correction for rows that an older policy sampled, or an engine that computes other probabilities. A ratio is the
    probability of sampled tokens by the trainer at the start of a step, divided by that by the engine."""

    importance_sampling: Level | None = None
    """Weight of a token in the loss: its ratio (`token`), the product of its row's ratios (`sequence`; a row is a
    trajectory, or a turn of `verlog`), or 1 (`none`). Left out, `none` in mode `sync` and `token` in the others."""

    threshold: float = Field(default=2.0, gt=0, le=1_000_000)
    """Upper limit of a weight; larger ratios are truncated to it, or masked if there is a `lowerThreshold`."""

    lower_threshold: float | None = Field(default=None, gt=0, le=1_000_000)
    """With it, weights outside `lowerThreshold` to `threshold` are 0 instead of truncated."""

    normalise: bool = False
    """Divide the weights by their mean over the step."""

    rejection: Literal["none", "token", "sequence", "geometric"] = "none"
    """What leaves the loss if its ratio is not between `rejectionLow` and `rejectionHigh`: nothing (`none`), the token
    (`token`), or the row, by the product (`sequence`) or the geometric mean (`geometric`) of its ratios."""

    rejection_low: float = Field(default=0.5, gt=0, le=1_000_000)
    """Smallest ratio that `rejection` keeps."""

    rejection_high: float = Field(default=2.0, gt=0, le=1_000_000)
    """Largest ratio that `rejection` keeps."""

    bypass: bool = False
    """Take the engine's log-probs as those before the update, so that the clip range starts from the policy that
    sampled; without it they are those of the policy at the start of the step (decoupled PPO)."""


_SECTION = "algorithm.rolloutCorrection"
_CEL = f"self.{_SECTION}"


def _of(values: Values, name: str) -> object:
    """Return a value. Raises BrokenValueError for an algorithm without rollout, whose rules are not judged."""
    if fine_tunes(values):
        raise BrokenValueError(name)
    return values[f"spec.{_SECTION}.{name}"]


def _number(values: Values, name: str) -> float:
    number = _of(values, name)
    if not isinstance(number, (int, float)):
        raise BrokenValueError(name)
    return float(number)


_WITHOUT = f"!has({_CEL})"


def _corrects(values: Values) -> bool:
    return _of(values, "importanceSampling") in ("token", "sequence") or _of(values, "rejection") != "none"


_CORRECTS = f"((has({_CEL}.importanceSampling) && {_CEL}.importanceSampling != 'none') || {_CEL}.rejection != 'none')"

CORRECTION_RULES = (
    Rule(
        path=f"{_SECTION}.bypass",
        holds=lambda v: not (_of(v, "bypass") and _corrects(v)),
        cel=f"{_WITHOUT} || !({_CEL}.bypass && {_CORRECTS})",
        sentence="must be false with importance sampling or rejection: the loss then starts from the engine's "
        "log-probs, and there is no ratio to correct",
        way_out=lambda v: "Set it to false, or set importanceSampling and rejection to none.",
    ),
    Rule(
        path=f"{_SECTION}.lowerThreshold",
        holds=lambda v: _of(v, "lowerThreshold") is None or _number(v, "lowerThreshold") <= _number(v, "threshold"),
        cel=f"{_WITHOUT} || !has({_CEL}.lowerThreshold) || {_CEL}.lowerThreshold <= {_CEL}.threshold",
        sentence=f"must be at most spec.{_SECTION}.threshold ({{{_SECTION}.threshold}}): "
        "weights between the two are kept",
        way_out=lambda v: f"Try {min(0.5, _number(v, 'threshold')):g}.",
    ),
    Rule(
        path=f"{_SECTION}.rejectionLow",
        holds=lambda v: _number(v, "rejectionLow") < _number(v, "rejectionHigh"),
        cel=f"{_WITHOUT} || {_CEL}.rejectionLow < {_CEL}.rejectionHigh",
        sentence=f"must be less than spec.{_SECTION}.rejectionHigh ({{{_SECTION}.rejectionHigh}}): "
        "ratios between the two are kept",
        way_out=lambda v: f"Try {_number(v, 'rejectionHigh') / 4:g}.",
    ),
    Rule(
        path="agent.logprobs",
        holds=lambda v: bool(v["spec.agent.logprobs"]) or not (_corrects(v) or _of(v, "bypass")),
        cel=f"{_WITHOUT} || !has(self.agent.logprobs) || self.agent.logprobs || !({_CORRECTS} || {_CEL}.bypass)",
        sentence=f"must be true with spec.{_SECTION}: it compares the engine's log-probs with the trainer's",
        way_out=lambda v: f"Leave it out, or take out spec.{_SECTION}.",
        only=(("agent.type", "tool"),),
    ),
)
