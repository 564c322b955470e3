"""Rules across the fields of agents of type `grl`."""

from collections.abc import Callable, Mapping

from turnmill.jobs.grl_agent import NamedAgent
from turnmill.jobs.rule import Rule
from turnmill.jobs.values import BrokenValueError, Values

GRL = ("agent.type", "grl")
COMPARING = ("grpo", "rloo", "reinforce_plus_plus_baseline", "dapo")
"""Algorithms that compare a trajectory with its group."""

_AGENTS = "self.agent.agents.map(a, a.name)"


def _names(field: str) -> str:
    """Return the CEL expression of a list of names, which is empty if the field is omitted."""
    return f"(has(self.agent.{field}) ? self.agent.{field} : [])"


_LEARNING = f"({_names('train')}.size() + {_names('training')}.size())"
"""CEL expression of the number of agents that learn, 0 if no list names them."""

_NUM_LEARNING = f"({_LEARNING} > 0 ? {_LEARNING} : self.agent.agents.size())"
_NUM_VALIDATED = f"({_names('validation')}.size() > 0 ? {_names('validation')}.size() : {_NUM_LEARNING})"


def _agents(values: Values) -> list[str]:
    if not values.within("spec.agent.agents"):
        raise BrokenValueError("agents")
    return [_name_of(agent) for agent in values["spec.agent.agents"]]


def _name_of(agent: NamedAgent | Mapping[str, object]) -> str:
    return str(agent.name if isinstance(agent, NamedAgent) else agent["name"])


def _learning(values: Values) -> list[str]:
    return [*values["spec.agent.train"], *values["spec.agent.training"]] or _agents(values)


def _validated(values: Values) -> list[str]:
    return [*values["spec.agent.validation"]] or _learning(values)


def _known(field: str) -> Rule:
    return Rule(
        path=f"agent.{field}",
        holds=lambda v: set(v[f"spec.agent.{field}"]) <= set(_agents(v)),
        cel=f"{_names(field)}.all(name, name in {_AGENTS})",
        sentence="must name agents of spec.agent.agents",
        way_out=lambda v: f"There is {', '.join(_agents(v))}.",
        only=(GRL,),
    )


def _one_for_each(field: str, names: Callable[[Values], list[str]], number: str, list_of_names: str) -> Rule:
    return Rule(
        path=f"agent.{field}",
        holds=lambda v: len(v[f"spec.agent.{field}"]) in (1, len(names(v))),
        cel=f"!has(self.agent.{field}) || self.agent.{field}.size() in [1, {number}]",
        sentence=f"must have one number, or one for each of {list_of_names}",
        way_out=lambda v: f"Give 1 number, or {len(names(v))}.",
        only=(GRL,),
    )


def _are_compared(values: Values) -> bool:
    algorithm = values["spec.algorithm.type"]
    return algorithm in COMPARING and not (algorithm == "grpo" and values["spec.algorithm.baseline"] == "step")


GRL_RULES: tuple[Rule, ...] = (
    Rule(
        path="agent.agents",
        holds=lambda v: len(set(_agents(v))) == len(_agents(v)),
        cel="has(self.agent.agents) && self.agent.agents.all(a, self.agent.agents.exists_one(b, b.name == a.name))",
        sentence="must have different names: lists and metrics refer to agents by name",
        way_out=lambda v: "Rename one of them.",
        only=(GRL,),
    ),
    Rule(
        path="agent.train",
        holds=lambda v: not v["spec.agent.train"] or not v["spec.agent.training"],
        cel=f"{_names('train')}.size() == 0 || {_names('training')}.size() == 0",
        sentence="must be left out with spec.agent.training: both name the agents that learn",
        way_out=lambda v: "Take one of them out.",
        only=(GRL,),
    ),
    *map(_known, ("train", "training", "validation")),
    _one_for_each("agentGroupNum", _learning, _NUM_LEARNING, "spec.agent.training"),
    _one_for_each("agentGroupSize", _learning, _NUM_LEARNING, "spec.agent.training"),
    _one_for_each("validationAgentGroupNum", _validated, _NUM_VALIDATED, "spec.agent.validation"),
    _one_for_each("validationAgentGroupSize", _validated, _NUM_VALIDATED, "spec.agent.validation"),
    Rule(
        path="agent.agentGroupSize",
        holds=lambda v: not _are_compared(v) or min(v["spec.agent.agentGroupSize"]) > 1,
        cel=f"!(self.algorithm.type in {list(COMPARING)}) || "
        "(has(self.algorithm.baseline) && self.algorithm.baseline == 'step') || "
        "!has(self.agent.agentGroupSize) || self.agent.agentGroupSize.all(size, size > 1)",
        sentence="must be more than 1 with spec.algorithm.type ({algorithm.type}), which compares the episodes of a "
        "group: a single one has no baseline",
        way_out=lambda v: "Try 8, or set spec.algorithm.type to reinforce_plus_plus or ppo.",
        only=(GRL,),
    ),
)
