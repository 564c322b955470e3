"""Rules across fields, in Python for the job file and in CEL for the API server.

One file, since its list is the order in which problems are reported, and in which docs/jobs.md names them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from turnmill.jobs.fine_tuning_rules import FINE_TUNING_RULES, fine_tunes
from turnmill.jobs.grl_rules import GRL_RULES
from turnmill.jobs.harness_rules import HARNESS_RULES
from turnmill.jobs.megatron_rules import MEGATRON_RULES
from turnmill.jobs.problems import Problem
from turnmill.jobs.rollout_correction import CORRECTION_RULES
from turnmill.jobs.rule import Rule
from turnmill.jobs.settings import PLUGIN
from turnmill.jobs.values import BrokenValueError, Values


@dataclass(frozen=True, slots=True)
class Fixed:
    """A field that must not change after the start of a run."""

    path: str
    because: str

    @property
    def validation(self) -> str:
        """The rule in CEL; the API server judges it when a job changes."""
        return f"self.{self.path} == oldSelf.{self.path}"

    @property
    def sentence(self) -> str:
        """Error message for a changed field."""
        return f"must stay as it was: {self.because}. Make a job of another name"


def broken_rules(values: Values) -> Iterator[Problem]:
    """Yield a problem for every rule that the values break."""
    yield from (problem for rule in RULES if (problem := rule.check(values)))


def _nearest_multiple(number: int, factor: int) -> int:
    return max(factor, round(number / factor) * factor)


def _nearest_divisor(number: int, whole: int) -> int:
    return min((d for d in range(1, min(whole, 2 * number) + 1) if whole % d == 0), key=lambda d: abs(d - number))


def _processes(values: Values) -> int:
    return int(values["spec.resources.train.nodes"] * values["spec.resources.train.gpusPerNode"])


def _is_separate(values: Values) -> bool:
    return bool(values["spec.training.mode"] == "separate_async")


def _required(values: Values, path: str) -> int:
    """Return a number that may be left out; another rule says if it must be set. Raises BrokenValueError without it."""
    if (number := values[path]) is None:
        raise BrokenValueError(path)
    return int(number)


def _turns(values: Values) -> int:
    return _required(values, "spec.training.turnsPerStep")


def _tasks(values: Values) -> int:
    return _required(values, "spec.training.tasksPerStep")


def _max_workers(values: Values) -> int:
    return int(values["spec.environment.count"]) if values["spec.agent.type"] == "verlog" else _tasks(values)


def _learns_from_turns(values: Values) -> bool:
    return bool(values["spec.agent.type"] == "verlog" and values["spec.algorithm.type"] == "turn_ppo")


def _has_tasks(values: Values) -> bool:
    """Return whether a job sets its tasks per step, which turns and groups of agents derive from other fields."""
    return not _learns_from_turns(values) and not _has_own_environments(values)


def _has_own_environments(values: Values) -> bool:
    """Return whether a job has nothing to do with `spec.environment`."""
    return bool(values["spec.agent.type"] == "grl" or fine_tunes(values))


def _has_rewards_of_its_own(values: Values) -> bool:
    """Return whether no model can be asked for a job's rewards."""
    return bool(values["spec.agent.type"] in ("verlog", "grl") or fine_tunes(values))


def _compares_with_group(values: Values) -> bool:
    if values["spec.agent.type"] == "grl":
        return False
    if values["spec.algorithm.type"] == "grpo" and values["spec.algorithm.baseline"] == "step":
        return False
    return values["spec.algorithm.type"] in COMPARING


def _tools_are_called(values: Values) -> bool:
    agent = {
        name: values[f"spec.agent.{name}"]
        for name in ("enableAgent", "maxTurns", "minTurns", "enableMtrl", "callToolFirst")
    }
    may_call = agent["minTurns"] or agent["enableMtrl"] or agent["callToolFirst"]
    return not agent["enableAgent"] or not agent["maxTurns"] or bool(may_call) or _has_stop_tokens(values)


def _has_stop_tokens(values: Values) -> bool:
    return bool(values["spec.agent.stopTokens"]) or values["spec.agent.actionStopTokens"] is not None


def _warmup_fits(values: Values) -> bool:
    drawn = values["spec.algorithm.criticWarmup.turnsPerStep"]
    gathered = values["spec.algorithm.criticWarmup.batches"] * _turns(values)
    return drawn is None or gathered == 0 or bool(drawn <= gathered)


def _response_limit(values: Values) -> int:
    verlog = values["spec.agent.type"] == "verlog"
    return int(values["spec.agent.maxResponseTokens" if verlog else "spec.agent.maxResponseLength"])


def _overlong_fits(values: Values) -> bool:
    tokens = values["spec.algorithm.overlong.tokens"]
    return tokens is None or bool(tokens <= _response_limit(values))


def _instead_of_turns(values: Values) -> str:
    if _learns_from_turns(values):
        return "Add it."
    return f"Give {'algorithm.batchSize' if fine_tunes(values) else 'training.tasksPerStep'} instead."


def _instead_of_tasks(values: Values) -> str:
    if _has_tasks(values):
        return "Add it."
    if fine_tunes(values):
        return "Give algorithm.batchSize instead."
    return f"Give {'training.turnsPerStep' if _learns_from_turns(values) else 'agent.agentGroupNum'} instead."


FIXED = (
    Fixed("model", "the run's checkpoints belong to this model"),
    Fixed("environment", "the run's checkpoints and curve belong to this environment"),
    Fixed("agent.type", "the run's checkpoints belong to this agent"),
    Fixed("algorithm.type", "the run's checkpoints belong to this algorithm"),
    Fixed("managedBy", "two operators must never run the same job"),
)
"""Fields that identify a run; the command line checks them for resumed runs, too."""

VERLOG, TOOL = ("agent.type", "verlog"), ("agent.type", "tool")
TURN_PPO = ("algorithm.type", "turn_ppo")
ONE_ROW_PER_TURN = ("turn_ppo", "gigpo")
"""Algorithms for agents that have one row per turn."""
COMPARING = ("grpo", "rloo", "reinforce_plus_plus_baseline", "dapo", "gigpo")
"""Algorithms that compare a trajectory with its group."""
TRAJECTORIES = (
    "algorithm.type",
    ("ppo", "grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "dapo", "gigpo", PLUGIN),
)
WITH_KL = ("algorithm.type", (TURN_PPO[1], *(kind for kind in TRAJECTORIES[1] if kind != "dapo")))
# A field of one type alone has no default in the API server, where all types share one schema.
_MINIBATCH_TURNS = "(has(self.algorithm.minibatchTurns) ? self.algorithm.minibatchTurns : 128)"
_LEARNS_FROM_TURNS = "(self.agent.type == 'verlog' && self.algorithm.type == 'turn_ppo')"
_IS_GRL = "self.agent.type == 'grl'"
_IS_SFT = "self.algorithm.type == 'sft'"
_SEPARATE = "self.training.mode == 'separate_async'"
_PROCESSES = "(self.resources.train.nodes * self.resources.train.gpusPerNode)"

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
        "attention heads share the hidden size, in pairs of numbers",
        way_out=lambda v: (
            f"Try {_nearest_multiple(v['spec.model.warmStart.hiddenSize'], 2 * v['spec.model.warmStart.heads'])}."
        ),
    ),
    Rule(
        path="agent.prompt",
        holds=lambda v: v["spec.model.warmStart"] is None or v["spec.agent.prompt"] == "compact",
        cel="!has(self.model.warmStart) || (has(self.agent.prompt) && self.agent.prompt == 'compact')",
        only=(VERLOG,),
        sentence="must be compact with spec.model.warmStart: a tiny model has learned no other prompt",
        way_out=lambda v: "Set it to compact, or give the folder of a larger model as spec.model.path.",
    ),
    Rule(
        path="training.validation.samples",
        holds=lambda v: v["spec.training.validation.samples"] == 1,
        cel="self.training.validation.samples == 1",
        only=(("agent.type", ("verlog", "grl")),),
        sentence="must be 1 with agents of type verlog and grl: they play each episode of a validation once",
        way_out=lambda v: "Raise spec.training.validation.episodes instead.",
    ),
    Rule(
        path="agent.memory.thoughtTurns",
        holds=lambda v: v["spec.agent.memory.thoughtTurns"] <= v["spec.agent.memory.textTurns"],
        cel="!has(self.agent.memory) || self.agent.memory.thoughtTurns <= self.agent.memory.textTurns",
        only=(VERLOG,),
        sentence="must be at most spec.agent.memory.textTurns ({agent.memory.textTurns}): "
        "a thought is shown only with its turn",
        way_out=lambda v: f"Try {v['spec.agent.memory.textTurns']}.",
    ),
    Rule(
        path="training.turnsPerStep",
        holds=lambda v: _turns(v) % v["spec.environment.count"] == 0,
        cel="!has(self.training.turnsPerStep) || self.training.turnsPerStep % self.environment.count == 0",
        only=(VERLOG,),
        sentence="must be a multiple of spec.environment.count ({environment.count}): "
        "every environment gives the same number of turns",
        way_out=lambda v: f"Try {_nearest_multiple(v['spec.training.turnsPerStep'], v['spec.environment.count'])}.",
    ),
    Rule(
        path="algorithm.minibatchTurns",
        holds=lambda v: _turns(v) % v["spec.algorithm.minibatchTurns"] == 0,
        cel=f"!has(self.training.turnsPerStep) || self.training.turnsPerStep % {_MINIBATCH_TURNS} == 0",
        only=(VERLOG, TURN_PPO),
        sentence="must divide spec.training.turnsPerStep ({training.turnsPerStep}): "
        "every update takes the same number of turns",
        way_out=lambda v: (
            f"Try {_nearest_divisor(v['spec.algorithm.minibatchTurns'], v['spec.training.turnsPerStep'])}."
        ),
    ),
    Rule(
        path="algorithm.minibatchTurns",
        holds=lambda v: v["spec.algorithm.minibatchTurns"] % _processes(v) == 0,
        cel=f"{_MINIBATCH_TURNS} % {_PROCESSES} == 0",
        only=(TURN_PPO,),
        sentence="must be a multiple of spec.resources.train.nodes ({resources.train.nodes}) times gpusPerNode "
        "({resources.train.gpusPerNode}): all training processes take the same number of turns",
        way_out=lambda v: f"Try {_nearest_multiple(v['spec.algorithm.minibatchTurns'], _processes(v))}.",
    ),
    Rule(
        path="algorithm.criticWarmup.turnsPerStep",
        holds=_warmup_fits,
        cel="!has(self.algorithm.criticWarmup) || !has(self.algorithm.criticWarmup.turnsPerStep) || "
        "!has(self.training.turnsPerStep) || self.algorithm.criticWarmup.batches == 0 || "
        "self.algorithm.criticWarmup.turnsPerStep <= self.algorithm.criticWarmup.batches * self.training.turnsPerStep",
        sentence="must be at most spec.algorithm.criticWarmup.batches ({algorithm.criticWarmup.batches}) "
        "times spec.training.turnsPerStep ({training.turnsPerStep}): no turn is drawn twice",
        way_out=lambda v: "Gather more batches, or leave it out for one tenth of the turns.",
        only=(VERLOG, TURN_PPO),
    ),
    Rule(
        path="resources.rollout.replicas",
        holds=lambda v: _is_separate(v) or v["spec.resources.rollout.replicas"] == 1,
        cel=f"{_SEPARATE} || self.resources.rollout.replicas == 1",
        sentence="is for spec.training.mode separate_async: in the other modes every GPU of "
        "spec.resources.train has an engine",
        way_out=lambda v: "Leave it out, or set spec.training.mode to separate_async.",
    ),
    Rule(
        path="resources.rollout.accelerator",
        holds=lambda v: (
            _is_separate(v) or v["spec.resources.rollout.accelerator"] in (None, v["spec.resources.train.accelerator"])
        ),
        cel=f"{_SEPARATE} || !has(self.resources.rollout.accelerator) || (has(self.resources.train.accelerator) && "
        "self.resources.rollout.accelerator == self.resources.train.accelerator)",
        sentence="must be that of spec.resources.train with spec.training.mode {training.mode}: "
        "both share their devices",
        way_out=lambda v: "Leave it out, or set spec.training.mode to separate_async.",
    ),
    Rule(
        path="training.checkpointEvery",
        holds=lambda v: (
            not v["spec.retries"]
            or v["spec.training.steps"] <= 1
            or v["spec.training.checkpointEvery"] < v["spec.training.steps"]
        ),
        cel="!has(self.retries) || self.retries == 0 || self.training.steps <= 1 || "
        "self.training.checkpointEvery < self.training.steps",
        sentence="must be less than spec.training.steps ({training.steps}) with spec.retries ({retries}): "
        "a retry starts from a checkpoint",
        way_out=lambda v: f"Try {max(1, v['spec.training.steps'] // 2)}, or set spec.retries to 0.",
    ),
    Rule(
        path="training.validation.episodes",
        holds=lambda v: v["spec.training.steps"] > 0 or v["spec.training.validation.episodes"] > 0,
        cel="self.training.steps > 0 || self.training.validation.episodes > 0",
        sentence="must be more than 0 with spec.training.steps 0: a run without steps only validates",
        way_out=lambda v: "Try 128.",
    ),
    Rule(
        path="queue",
        holds=lambda v: v["spec.queue"] is None or v["spec.cluster"] == "own",
        cel="!has(self.queue) || self.cluster == 'own'",
        sentence="must be left out with spec.cluster shared: Kueue admits whole Ray clusters, not single runs",
        way_out=lambda v: "Take it out, or set spec.cluster to own.",
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
        holds=lambda v: v["spec.resources.agentLoopWorkers"] <= _max_workers(v),
        cel="self.agent.type == 'verlog' ? self.resources.agentLoopWorkers <= self.environment.count : "
        "!has(self.training.tasksPerStep) || self.resources.agentLoopWorkers <= self.training.tasksPerStep",
        sentence="must be at most spec.environment.count, or spec.training.tasksPerStep with tools: "
        "a worker without an environment has nothing to do",
        way_out=lambda v: f"Try {_max_workers(v)}.",
    ),
    Rule(
        path="algorithm.type",
        holds=lambda v: v["spec.agent.type"] == "verlog" or v["spec.algorithm.type"] not in ONE_ROW_PER_TURN,
        cel=f"self.agent.type == 'verlog' || !(self.algorithm.type in {list(ONE_ROW_PER_TURN)})",
        sentence="cannot be used with spec.agent.type ({agent.type}): turn_ppo and gigpo learn from single turns, "
        "which only verlog has",
        way_out=lambda v: "Set it to grpo, or another that learns from whole trajectories.",
    ),
    Rule(
        path="training.turnsPerStep",
        holds=lambda v: _learns_from_turns(v) == (v["spec.training.turnsPerStep"] is not None),
        cel=f"{_LEARNS_FROM_TURNS} == has(self.training.turnsPerStep)",
        sentence="must be set with spec.algorithm.type turn_ppo, and left out with others: "
        "only its steps consist of turns",
        way_out=_instead_of_turns,
    ),
    Rule(
        path="training.tasksPerStep",
        holds=lambda v: _has_tasks(v) == (v["spec.training.tasksPerStep"] is not None),
        cel=f"({_LEARNS_FROM_TURNS} || {_IS_GRL} || {_IS_SFT}) != has(self.training.tasksPerStep)",
        sentence="must be left out with spec.algorithm.type turn_ppo or sft or spec.agent.type grl, and set with "
        "others: steps of turn_ppo consist of turns, those of sft of rows, and those of grl of groups",
        way_out=_instead_of_tasks,
    ),
    Rule(
        path="algorithm.minibatchTasks",
        holds=lambda v: (
            v["spec.algorithm.minibatchTasks"] is None or _tasks(v) % v["spec.algorithm.minibatchTasks"] == 0
        ),
        cel="!has(self.algorithm.minibatchTasks) || !has(self.training.tasksPerStep) || "
        "self.training.tasksPerStep % self.algorithm.minibatchTasks == 0",
        sentence="must divide spec.training.tasksPerStep ({training.tasksPerStep}): "
        "every update takes the same number of tasks",
        way_out=lambda v: f"Try {_nearest_divisor(v['spec.algorithm.minibatchTasks'], _tasks(v))}.",
        only=(TRAJECTORIES,),
    ),
    Rule(
        path="agent.groupSize",
        holds=lambda v: not _compares_with_group(v) or v["spec.agent.groupSize"] > 1,
        cel=f"!(self.algorithm.type in {list(COMPARING)}) || "
        "(has(self.algorithm.baseline) && self.algorithm.baseline == 'step') || "
        "!has(self.agent.groupSize) || self.agent.groupSize > 1",
        sentence="must be more than 1 with spec.algorithm.type ({algorithm.type}), which compares the trajectories of "
        "a task: a single one has no baseline",
        way_out=lambda v: "Try 8, or set spec.algorithm.type to reinforce_plus_plus or ppo.",
    ),
    Rule(
        path="algorithm.overlong.tokens",
        holds=_overlong_fits,
        cel="!has(self.algorithm.overlong) || !has(self.algorithm.overlong.tokens) || self.algorithm.overlong.tokens <="
        " (self.agent.type == 'verlog' ? (has(self.agent.maxResponseTokens) ? self.agent.maxResponseTokens : 512)"
        " : has(self.agent.maxResponseLength) ? self.agent.maxResponseLength : self.agent.type == 'grl' ? 400"
        " : self.agent.type == 'harness' ? 4096 : 1024)",
        sentence="must be at most the limit of a response, spec.agent.maxResponseTokens or maxResponseLength: "
        "the penalty grows below that limit",
        way_out=lambda v: f"Try {max(1, _response_limit(v) // 4)}.",
        only=(("algorithm.type", "dapo"),),
    ),
    Rule(
        path="agent.minTurns",
        holds=lambda v: v["spec.agent.minTurns"] <= v["spec.agent.maxTurns"],
        cel="!has(self.agent.minTurns) || self.agent.minTurns <= (has(self.agent.maxTurns) ? self.agent.maxTurns : 1)",
        sentence="must be at most spec.agent.maxTurns ({agent.maxTurns}): later turns call no tools",
        way_out=lambda v: f"Try {v['spec.agent.maxTurns']}.",
        only=(TOOL,),
    ),
    Rule(
        path="agent.actionStopTokens",
        holds=lambda v: v["spec.agent.actionStopTokens"] is None or not v["spec.agent.stopTokens"],
        cel="!has(self.agent.actionStopTokens) || !has(self.agent.stopTokens) || self.agent.stopTokens.size() == 0",
        sentence="must be left out with spec.agent.stopTokens: stop tokens come from a file or from the job",
        way_out=lambda v: "Take one of them out.",
        only=(TOOL,),
    ),
    Rule(
        path="agent.stopTokens",
        holds=_tools_are_called,
        cel="(has(self.agent.enableAgent) && !self.agent.enableAgent) || "
        "(has(self.agent.maxTurns) && self.agent.maxTurns == 0) || "
        "(has(self.agent.minTurns) && self.agent.minTurns > 0) || "
        "(has(self.agent.enableMtrl) && self.agent.enableMtrl) || "
        "(has(self.agent.callToolFirst) && self.agent.callToolFirst) || "
        "(has(self.agent.stopTokens) && self.agent.stopTokens.size() > 0) || has(self.agent.actionStopTokens)",
        sentence="must name a string that ends an action: without one no tool is ever called",
        way_out=lambda v: "Try [</python>], or set spec.agent.enableMtrl to true for an action in every turn.",
        only=(TOOL,),
    ),
    Rule(
        path="training.validation.renderEpisodes",
        holds=lambda v: v["spec.training.validation.renderEpisodes"] == 0,
        cel="self.training.validation.renderEpisodes == 0",
        sentence="must be 0 with spec.agent.type {agent.type}: there is nothing to draw",
        way_out=lambda v: "Leave it out.",
        only=(("agent.type", ("tool", "multi_turn", "grl", "harness", PLUGIN)),),
    ),
    Rule(
        path="environment.name",
        holds=lambda v: (v["spec.environment.name"] != "") != _has_own_environments(v),
        cel=f"(self.environment.name != '') != ({_IS_GRL} || {_IS_SFT})",
        sentence="must be left out with spec.agent.type grl or spec.algorithm.type sft, and set with others: "
        "agents of type grl have environments of their own, and sft has none",
        way_out=lambda v: "Take it out." if v["spec.environment.name"] else "Add it, for example babyai.",
    ),
    Rule(
        path="algorithm.kl.type",
        holds=lambda v: v["spec.algorithm.kl.in"] == "reward" or v["spec.algorithm.kl.type"] == "fixed",
        # CEL's name of a field that is called `in`.
        cel="!has(self.algorithm.kl) || !has(self.algorithm.kl.__in__) || self.algorithm.kl.__in__ == 'reward' || "
        "!has(self.algorithm.kl.type) || self.algorithm.kl.type == 'fixed'",
        sentence="must be fixed with spec.algorithm.kl.in loss: only the coefficient of the reward's penalty adapts",
        way_out=lambda v: "Set it to fixed, or spec.algorithm.kl.in to reward.",
        only=(WITH_KL,),
    ),
    Rule(
        path="rewardModel",
        holds=lambda v: v["spec.rewardModel"] is None or not _has_rewards_of_its_own(v),
        cel=f"!has(self.rewardModel) || !(self.agent.type == 'verlog' || {_IS_GRL} || {_IS_SFT})",
        sentence="must be left out with spec.agent.type verlog or grl, whose environments give the rewards, and with "
        "spec.algorithm.type sft, which has none",
        way_out=lambda v: "Take it out, or set spec.agent.type to tool.",
    ),
    *CORRECTION_RULES,
    *FINE_TUNING_RULES,
    *MEGATRON_RULES,
    *GRL_RULES,
    *HARNESS_RULES,
)
