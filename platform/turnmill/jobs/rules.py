"""Rules across fields, once for the file on a laptop and once, as CEL, for the API server."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from turnmill.jobs.problems import MISSING, Problem
from turnmill.jobs.values import BrokenValueError, Values

_PLACEHOLDER = re.compile(r"\{([A-Za-z.]+)\}")


@dataclass(frozen=True, slots=True)
class Rule:
    """What must hold between fields; `{path}` in the sentence stands for a value, paths start below `spec`."""

    path: str
    holds: Callable[[Values], bool]
    cel: str
    sentence: str
    way_out: Callable[[Values], str]

    def check(self, values: Values) -> Problem | None:
        """The problem, if the rule is broken; none if it cannot be judged."""
        try:
            if self.holds(values):
                return None
            sentence = _PLACEHOLDER.sub(lambda match: str(values[f"spec.{match[1]}"]), self.sentence)
            value = values[f"spec.{self.path}"]
            shown = MISSING if value is None or isinstance(value, dict) else value
            return Problem(f"spec.{self.path}", shown, sentence, self.way_out(values))
        except BrokenValueError:
            return None

    @property
    def message(self) -> str:
        """The sentence without values."""
        return re.sub(r" ?\(?\{[A-Za-z.]+\}\)?", "", self.sentence)


def broken_rules(values: Values) -> Iterator[Problem]:
    """A problem for every rule that the values break."""
    yield from (problem for rule in RULES if (problem := rule.check(values)))


def _nearest_multiple(number: int, factor: int) -> int:
    return max(factor, round(number / factor) * factor)


def _nearest_divisor(number: int, whole: int) -> int:
    return min((d for d in range(1, min(whole, 2 * number) + 1) if whole % d == 0), key=lambda d: abs(d - number))


def _processes(values: Values) -> int:
    return int(values["spec.resources.train.nodes"] * values["spec.resources.train.gpusPerNode"])


def _warmup_fits(values: Values) -> bool:
    drawn = values["spec.algorithm.criticWarmup.turnsPerStep"]
    gathered = values["spec.algorithm.criticWarmup.batches"] * values["spec.training.turnsPerStep"]
    return drawn is None or gathered == 0 or bool(drawn <= gathered)


RULES: tuple[Rule, ...] = (
    Rule(
        path="model",
        holds=lambda v: (v["spec.model.path"] is None) != (v["spec.model.warmStart"] is None),
        cel="has(self.model.path) != has(self.model.warmStart)",
        sentence="needs exactly one of path and warmStart: a model is either loaded or made",
        way_out=lambda v: (
            "Give the folder of a model as path, or `warmStart: {}` for a tiny one."
            if v["spec.model.path"] is None
            else "Take one of them out."
        ),
    ),
    Rule(
        path="model.warmStart.hiddenSize",
        holds=lambda v: (
            v["spec.model.warmStart"] is None
            or v["spec.model.warmStart.hiddenSize"] % (2 * v["spec.model.warmStart.heads"]) == 0
        ),
        cel="!has(self.model.warmStart) || self.model.warmStart.hiddenSize % (2 * self.model.warmStart.heads) == 0",
        sentence="must be a multiple of twice spec.model.warmStart.heads ({model.warmStart.heads}): "
        "heads share the width, in pairs of numbers",
        way_out=lambda v: (
            f"Try {_nearest_multiple(v['spec.model.warmStart.hiddenSize'], 2 * v['spec.model.warmStart.heads'])}."
        ),
    ),
    Rule(
        path="agent.prompt",
        holds=lambda v: v["spec.model.warmStart"] is None or v["spec.agent.prompt"] == "compact",
        cel="!has(self.model.warmStart) || self.agent.prompt == 'compact'",
        sentence="must be compact with spec.model.warmStart: a tiny model has learned no other prompt",
        way_out=lambda v: "Set it to compact, or give the folder of a larger model as spec.model.path.",
    ),
    Rule(
        path="agent.memory.thoughtTurns",
        holds=lambda v: v["spec.agent.memory.thoughtTurns"] <= v["spec.agent.memory.textTurns"],
        cel="self.agent.memory.thoughtTurns <= self.agent.memory.textTurns",
        sentence="must be at most spec.agent.memory.textTurns ({agent.memory.textTurns}): "
        "a thought is shown only with its turn",
        way_out=lambda v: f"Try {v['spec.agent.memory.textTurns']}.",
    ),
    Rule(
        path="training.turnsPerStep",
        holds=lambda v: v["spec.training.turnsPerStep"] % v["spec.environment.count"] == 0,
        cel="self.training.turnsPerStep % self.environment.count == 0",
        sentence="must be a multiple of spec.environment.count ({environment.count}): "
        "every environment gives the same number of turns",
        way_out=lambda v: f"Try {_nearest_multiple(v['spec.training.turnsPerStep'], v['spec.environment.count'])}.",
    ),
    Rule(
        path="algorithm.minibatchTurns",
        holds=lambda v: v["spec.training.turnsPerStep"] % v["spec.algorithm.minibatchTurns"] == 0,
        cel="self.training.turnsPerStep % self.algorithm.minibatchTurns == 0",
        sentence="must divide spec.training.turnsPerStep ({training.turnsPerStep}): every update takes as many turns",
        way_out=lambda v: (
            f"Try {_nearest_divisor(v['spec.algorithm.minibatchTurns'], v['spec.training.turnsPerStep'])}."
        ),
    ),
    Rule(
        path="algorithm.minibatchTurns",
        holds=lambda v: v["spec.algorithm.minibatchTurns"] % _processes(v) == 0,
        cel="self.algorithm.minibatchTurns % (self.resources.train.nodes * self.resources.train.gpusPerNode) == 0",
        sentence="must be a multiple of spec.resources.train.nodes ({resources.train.nodes}) times gpusPerNode "
        "({resources.train.gpusPerNode}): all that train together take as many turns",
        way_out=lambda v: f"Try {_nearest_multiple(v['spec.algorithm.minibatchTurns'], _processes(v))}.",
    ),
    Rule(
        path="algorithm.criticWarmup.turnsPerStep",
        holds=_warmup_fits,
        cel="!has(self.algorithm.criticWarmup.turnsPerStep) || self.algorithm.criticWarmup.batches == 0 || "
        "self.algorithm.criticWarmup.turnsPerStep <= self.algorithm.criticWarmup.batches * self.training.turnsPerStep",
        sentence="must be at most spec.algorithm.criticWarmup.batches ({algorithm.criticWarmup.batches}) "
        "times spec.training.turnsPerStep ({training.turnsPerStep}): no turn is drawn twice",
        way_out=lambda v: "Gather more batches, or leave it out for one tenth of the turns.",
    ),
    Rule(
        path="training.mode",
        holds=lambda v: v["spec.training.mode"] != "separate_async",
        cel="self.training.mode != 'separate_async'",
        sentence="must not be separate_async: this version cannot give training and rollout machines of their own",
        way_out=lambda v: "Use sync or colocate_async.",
    ),
    Rule(
        path="training.checkpointEvery",
        holds=lambda v: (
            v["spec.retries"] == 0
            or v["spec.training.steps"] == 1
            or v["spec.training.checkpointEvery"] < v["spec.training.steps"]
        ),
        cel="self.retries == 0 || self.training.steps == 1 || self.training.checkpointEvery < self.training.steps",
        sentence="must be less than spec.training.steps ({training.steps}) with spec.retries ({retries}): "
        "a retry starts from a checkpoint",
        way_out=lambda v: f"Try {max(1, v['spec.training.steps'] // 2)}, or set spec.retries to 0.",
    ),
    Rule(
        path="training.validation.renderEpisodes",
        holds=lambda v: v["spec.training.validation.renderEpisodes"] <= v["spec.training.validation.episodes"],
        cel="self.training.validation.renderEpisodes <= self.training.validation.episodes",
        sentence="must be at most spec.training.validation.episodes ({training.validation.episodes}): "
        "only those are played",
        way_out=lambda v: f"Try {v['spec.training.validation.episodes']}.",
    ),
    Rule(
        path="resources.agentLoopWorkers",
        holds=lambda v: v["spec.resources.agentLoopWorkers"] <= v["spec.environment.count"],
        cel="self.resources.agentLoopWorkers <= self.environment.count",
        sentence="must be at most spec.environment.count ({environment.count}): "
        "a worker without an environment has nothing to do",
        way_out=lambda v: f"Try {v['spec.environment.count']}.",
    ),
)
