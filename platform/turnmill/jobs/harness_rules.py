"""Rules of agents of type `harness`, in Python for the job file and in CEL for the API server."""

from turnmill.jobs.rule import Rule
from turnmill.jobs.values import Values

_HARNESS = (("agent.type", "harness"),)
_PROGRAMS = ("command", "entryPoint", "url")
_NUM_GIVEN = " + ".join(f"(has(self.agent.{name}) ? 1 : 0)" for name in _PROGRAMS)


VERIFIERS = "verifiers"
"""`environment.name` of environments that play their own episodes."""


def _given(values: Values) -> list[str]:
    return [name for name in _PROGRAMS if values[f"spec.agent.{name}"] is not None]


def _plays_itself(values: Values) -> bool:
    return bool(values["spec.environment.name"] == VERIFIERS)


HARNESS_RULES = (
    Rule(
        path="agent",
        holds=lambda v: _plays_itself(v) or len(_given(v)) == 1,
        cel=f"self.environment.name == '{VERIFIERS}' || {_NUM_GIVEN} == 1",
        sentence="needs exactly one of command, entryPoint and url: a program, a function or a service",
        way_out=lambda v: (
            f"Keep one of {', '.join(given)}."
            if (given := _given(v))
            else 'Give the program, such as command: ["{python}", /home/me/agent.py].'
        ),
        only=_HARNESS,
    ),
    Rule(
        path="agent",
        holds=lambda v: not _plays_itself(v) or not _given(v),
        cel=f"self.environment.name != '{VERIFIERS}' || {_NUM_GIVEN} == 0",
        sentence=f"takes no command, entryPoint or url with spec.environment.name {VERIFIERS}, whose environments play "
        "their episodes themselves",
        way_out=lambda v: f"Take {', '.join(_given(v))} out.",
        only=_HARNESS,
    ),
    Rule(
        path="agent.python",
        holds=lambda v: v["spec.agent.python"] is None or v["spec.agent.entryPoint"] is not None,
        cel="!has(self.agent.python) || has(self.agent.entryPoint)",
        sentence="is the interpreter of entryPoint, and there is none",
        way_out=lambda v: "Take it out, or name the interpreter in the command.",
        only=_HARNESS,
    ),
    Rule(
        path="agent.preload",
        holds=lambda v: not v["spec.agent.preload"] or v["spec.agent.entryPoint"] is not None,
        cel="!has(self.agent.preload) || !self.agent.preload || has(self.agent.entryPoint)",
        sentence="imports the module of entryPoint, and there is none",
        way_out=lambda v: "Take it out, or give the function as entryPoint.",
        only=_HARNESS,
    ),
    Rule(
        path="agent.preload",
        holds=lambda v: not v["spec.agent.preload"] or v["spec.agent.sandbox"] is None,
        cel="!has(self.agent.preload) || !self.agent.preload || !has(self.agent.sandbox)",
        sentence="forks one process for all trajectories, and a sandbox has a process of its own for each",
        way_out=lambda v: "Take one of them out.",
        only=_HARNESS,
    ),
    Rule(
        path="agent.sandbox",
        holds=lambda v: v["spec.agent.sandbox"] is None or v["spec.agent.url"] is None,
        cel="!has(self.agent.sandbox) || !has(self.agent.url)",
        sentence="is for programs, and a service is none that the run starts",
        way_out=lambda v: "Take it out, or give the program as command.",
        only=_HARNESS,
    ),
)
