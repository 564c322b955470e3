import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from support.jobs import (
    GRL_RULE_VIOLATIONS,
    HARNESS_RULE_VIOLATIONS,
    JOB,
    RULE_VIOLATIONS,
    SFT_RULE_VIOLATIONS,
    TOOL_RULE_VIOLATIONS,
    grl_job,
    harness_job,
    job,
    sft_job,
    tool_job,
)
from turnmill.jobs import AgentTrainingJob, JobError, Problem, check_job, parse_job
from turnmill.jobs.rules import RULES
from turnmill.jobs.values import Values


def problems_of(data: dict[str, Any]) -> list[str]:
    with pytest.raises(JobError) as caught:
        parse_job(data)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"agent__maxTurns": "16"}, "spec.agent.maxTurns: '16' must be a whole number. Write it without quotes"),
        ({"agent__maxTurns": 1.5}, "spec.agent.maxTurns: 1.5 must be a whole number."),
        ({"agent__maxTurns": True}, "spec.agent.maxTurns: true must be a whole number."),
        ({"agent__maxTurns": 0}, "spec.agent.maxTurns: 0 must be at least 1. Try 1."),
        ({"agent__temperature": 0}, "spec.agent.temperature: 0 must be greater than 0"),
        ({"agent__temperature": float("nan")}, "spec.agent.temperature: nan must be a finite number."),
        (
            {"algorithm__learningRateSchedule": "cosin"},
            "spec.algorithm.learningRateSchedule: 'cosin' must be constant or cosine. Did you mean cosine?",
        ),
        (
            {"agent__prompt": "cott"},
            "spec.agent.prompt: 'cott' must be cot, cot_actions, document, naive, compact, a file (.txt, .md) or",
        ),
        ({"agent__memory": 3}, "spec.agent.memory: 3 must be a section with fields of its own."),
        ({"agent__memory": None}, "spec.agent.memory: null must be a section with fields of its own."),
        ({"environment__binaryReward": "yes"}, "spec.environment.binaryReward: 'yes' must be true or false."),
        ({"environment__options": [1]}, "spec.environment.options: [1] must be a mapping of names to values."),
        ({"environment__task": 3}, "spec.environment.task: 3 must be text. Put it in quotes."),
        ({"tracking__loggers": ["wanbd"]}, "spec.tracking.loggers[0]: 'wanbd' must be"),
        ({"tracking__loggers": "wandb"}, "spec.tracking.loggers: 'wandb' must be a list."),
        ({"trainin": {}}, "spec.trainin: is no field of spec. Did you mean training?"),
        ({"agent__max_turns": 3}, "spec.agent.max_turns: 3 is no field of spec.agent. Did you mean maxTurns?"),
        ({"agent__zzz": 3}, "spec.agent.zzz: 3 is no field of spec.agent. There is type, maxTurns,"),
    ],
)
def test_an_invalid_field_is_refused_with_a_suggestion(change: dict[str, Any], message: str):
    (problem,) = problems_of(job(**change))

    assert problem.startswith(message)


@pytest.mark.feature("Verlog", "a fixed number of turns of each environment per step")
@pytest.mark.parametrize("change", RULE_VIOLATIONS.values(), ids=RULE_VIOLATIONS)
def test_a_rule_across_fields_is_enforced(change: dict[str, Any]):
    (problem,) = problems_of(job(**change))

    assert any(problem.startswith(f"spec.{rule.path}: ") for rule in RULES)
    assert "{" not in problem.replace("`warmStart: {}`", "")


@pytest.mark.parametrize("change", TOOL_RULE_VIOLATIONS.values(), ids=TOOL_RULE_VIOLATIONS)
def test_a_rule_across_fields_of_a_tool_agent_is_enforced(change: dict[str, Any]):
    (problem,) = problems_of(tool_job(**change))

    assert any(problem.startswith(f"spec.{rule.path}: ") for rule in RULES)


@pytest.mark.parametrize("change", HARNESS_RULE_VIOLATIONS.values(), ids=HARNESS_RULE_VIOLATIONS)
def test_a_rule_across_fields_of_a_program_is_enforced(change: dict[str, Any]):
    (problem,) = problems_of(harness_job(**change))

    assert any(problem.startswith(f"spec.{rule.path}: ") for rule in RULES)


@pytest.mark.parametrize(
    "program",
    [
        {"command": ["mini"]},
        {"entryPoint": "agents.coder:play", "python": "/opt/agent/bin/python"},
        {"entryPoint": "/home/me/agent.py:play"},
        {"url": "http://agent.agents.svc:8000/play"},
    ],
)
def test_an_agent_is_a_program_a_function_or_a_service(program: dict[str, Any]):
    agent = parse_job(harness_job(agent={"type": "harness", **program})).spec.harness_agent

    assert [agent.command is not None, agent.entry_point is not None, agent.url is not None].count(True) == 1


def test_an_environment_of_verifiers_needs_no_program():
    environment = {"name": "verifiers", "task": "glossary", "python": "/opt/verifiers/bin/python"}

    job = parse_job(harness_job(agent={"type": "harness"}, environment=environment))

    assert job.spec.environment.label == "verifiers glossary"


@pytest.mark.parametrize(
    ("field", "value"), [("entryPoint", "agents.coder"), ("entryPoint", "agent.py: play"), ("url", "agent:8000")]
)
def test_what_is_no_function_or_no_address_is_refused(field: str, value: str):
    (problem,) = problems_of(harness_job(agent={"type": "harness", field: value}))

    assert problem.startswith(f"spec.agent.{field}: '{value}'")


@pytest.mark.parametrize("change", SFT_RULE_VIOLATIONS.values(), ids=SFT_RULE_VIOLATIONS)
def test_a_rule_across_fields_of_a_fine_tuning_is_enforced(change: dict[str, Any]):
    (problem,) = problems_of(sft_job(**change))

    assert any(problem.startswith(f"spec.{rule.path}: ") for rule in RULES)


def test_a_job_that_fine_tunes_needs_neither_agent_nor_environment():
    spec = parse_job(sft_job()).spec

    assert spec.fine_tuning is not None
    assert (spec.fine_tuning.source, spec.kl.coefficient) == ("/data/conversations.jsonl", 0)
    assert parse_job(job()).spec.fine_tuning is None


@pytest.mark.parametrize(
    ("data", "paths"),
    [
        (job(algorithm={"type": "grpo"}), ["spec.training.turnsPerStep", "spec.training.tasksPerStep"]),
        (tool_job(algorithm={"type": "turn_ppo"}), ["spec.algorithm.type"]),
        (tool_job(algorithm={"type": "gigpo"}), ["spec.algorithm.type"]),
        (job(training={"steps": 1}), ["spec.training.turnsPerStep"]),
        (job(training__tasksPerStep=4), ["spec.training.tasksPerStep"]),
    ],
)
def test_agent_algorithm_and_step_size_must_match(data: dict[str, Any], paths: list[str]):
    assert [problem.split(":")[0] for problem in problems_of(data)] == paths


@pytest.mark.parametrize(
    "resources",
    [
        {"train": {"accelerator": "H100"}, "rollout": {"accelerator": "A40", "replicas": 4}},
        {"train": {"accelerator": "H100"}, "rollout": {"accelerator": "H100"}},
        {},
    ],
)
def test_rollout_can_have_its_own_machines(resources: dict[str, Any]):
    spec = parse_job(job(training__mode="separate_async", resources=resources)).spec

    assert spec.resources.rollout.replicas == resources.get("rollout", {}).get("replicas", 1)


def test_every_rule_has_a_job_that_breaks_it():
    broken = [problems_of(job(**change)) for change in RULE_VIOLATIONS.values()]
    broken += [problems_of(tool_job(**change)) for change in TOOL_RULE_VIOLATIONS.values()]
    broken += [problems_of(grl_job(**change)) for change in GRL_RULE_VIOLATIONS.values()]
    broken += [problems_of(sft_job(**change)) for change in SFT_RULE_VIOLATIONS.values()]
    broken += [problems_of(harness_job(**change)) for change in HARNESS_RULE_VIOLATIONS.values()]

    assert {problem.split(":")[0] for problems in broken for problem in problems} == {
        f"spec.{rule.path}" for rule in RULES
    }


def test_a_valid_job_of_a_tool_agent_is_accepted():
    spec = parse_job(tool_job()).spec

    assert (spec.tool_agent.group_size, spec.tool_agent.stop_tokens) == (8, ("</python>",))
    assert (spec.group_size, spec.algorithm.type, spec.kl.coefficient) == (8, "grpo", 0.001)
    assert AgentTrainingJob.model_validate_json(parse_job(tool_job()).model_dump_json(by_alias=True)).spec == spec


@pytest.mark.parametrize(
    "algorithm", ["ppo", "grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "dapo"]
)
def test_verlog_and_tool_agents_accept_every_trajectory_algorithm(algorithm: str):
    turns = job(algorithm={"type": algorithm}, training={"steps": 3, "tasksPerStep": 4})

    for data in (turns, tool_job(algorithm={"type": algorithm})):
        spec = parse_job(data).spec
        assert spec.trajectory_algorithm.type == algorithm
        assert spec.kl.coefficient == (0 if algorithm == "dapo" else 0.001)


@pytest.mark.parametrize(
    ("algorithm", "allowed"),
    [("ppo", True), ("reinforce_plus_plus", True), ("rloo", False), ("dapo", False), ("grpo", False)],
)
def test_a_group_of_one_is_allowed_if_the_algorithm_compares_no_groups(algorithm: str, allowed: bool):
    data = tool_job(algorithm={"type": algorithm}, agent__groupSize=1)

    problems = [] if allowed else problems_of(data)

    assert [problem.partition(":")[0] for problem in problems] == ([] if allowed else ["spec.agent.groupSize"])
    if allowed:
        assert parse_job(data).spec.group_size == 1


def test_steps_with_dynamic_sampling_never_share_a_task():
    spec = parse_job(tool_job(algorithm={"type": "dapo", "dynamicSampling": {"maxBatches": 3}}, training__steps=2)).spec

    taken = [spec.task_number(step, position) for step in (1, 2) for position in range(3 * 16)]

    assert taken[:16] == list(range(16))
    assert taken[48:64] == list(range(16, 32))
    assert sorted(taken) == list(range(96))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"agent__type": "tol"},
            "spec.agent.type: 'tol' must be verlog, tool, multi_turn, grl, harness or package.module:Class. "
            "Did you mean tool?",
        ),
        ({"agent__maxTurns": -1}, "spec.agent.maxTurns: -1 must be at least 0. Try 0."),
        ({"agent__memory": {}}, "spec.agent.memory: is no field of spec.agent."),
        ({"agent__stopTokens": "x"}, "spec.agent.stopTokens: 'x' must be a list."),
        ({"agent__truncateObsSide": "top"}, "spec.agent.truncateObsSide: 'top' must be left, right or middle."),
    ],
)
def test_an_invalid_field_of_a_tool_agent_is_refused(change: dict[str, Any], message: str):
    (problem,) = problems_of(tool_job(**change))

    assert problem.startswith(message)


@pytest.mark.parametrize(
    ("change", "suggestion"),
    [
        ({"training__turnsPerStep": 250, "algorithm__minibatchTurns": 125}, "Try 256."),
        ({"training__turnsPerStep": 3, "algorithm__minibatchTurns": 3}, "Try 32."),
        ({"algorithm__minibatchTurns": 100}, "Try 128."),
        ({"algorithm__minibatchTurns": 512}, "Try 256."),
    ],
)
def test_the_suggestion_of_a_rule_is_a_valid_number(change: dict[str, Any], suggestion: str):
    (problem,) = problems_of(job(**change))

    assert problem.endswith(suggestion)


TENSOR_PARALLEL = "actor_rollout_ref.rollout.tensor_model_parallel_size"


@pytest.mark.parametrize(
    "verl", [{TENSOR_PARALLEL: 2}, {"actor_rollout_ref.rollout": {"tensor_model_parallel_size": 2}}]
)
def test_tensor_parallel_size_must_divide_the_gpus_shared_with_training(verl: dict[str, Any]):
    (problem,) = problems_of(job(verl=verl))

    assert problem.startswith(f"spec.verl.{TENSOR_PARALLEL}: 2 must divide the GPUs of spec.resources.train (1)")
    assert parse_job(job(verl=verl, resources__train={"gpusPerNode": 2})).spec.gpus_per_engine == 2


def test_the_gpus_of_an_engine_must_divide_the_gpus_shared_with_training():
    engine = {"tensorParallel": 2}
    (problem,) = problems_of(job(resources__rollout=engine))

    assert problem.startswith(
        "spec.resources.rollout.tensorParallel: 2 must divide the GPUs of spec.resources.train (1)"
    )
    spec = parse_job(job(resources={"rollout": engine, "train": {"gpusPerNode": 2}})).spec
    assert (spec.gpus_per_engine, spec.gpus_per_engine_field) == (2, "spec.resources.rollout.tensorParallel")


def test_the_gpus_of_an_engine_are_set_once():
    resources = {"rollout": {"tensorParallel": 2}, "train": {"gpusPerNode": 2}}

    (problem,) = problems_of(job(verl={TENSOR_PARALLEL: 2}, resources=resources))

    assert problem.startswith(f"spec.verl.{TENSOR_PARALLEL}: 2 is set a second time")


def test_a_rule_is_not_checked_on_an_invalid_value():
    problems = problems_of(job(training__turnsPerStep="many"))

    assert problems == [
        "spec.training.turnsPerStep: 'many' must be a whole number. Write it without quotes and without a fraction."
    ]


def test_api_version_and_kind_are_required():
    data = {name: value for name, value in JOB.items() if name not in ("apiVersion", "kind")}

    problems = problems_of(data)

    assert problems == [
        "apiVersion: is missing. Add `apiVersion: turnmill.dev/v1alpha1`.",
        "kind: is missing. Add `kind: AgentTrainingJob`.",
    ]


def test_fields_that_kubernetes_adds_are_ignored():
    data = job()
    data["metadata"] = {"name": "small", "uid": "1", "generation": 2, "resourceVersion": "3", "managedFields": []}
    data["status"] = {"state": "Running"}

    assert parse_job(data) == parse_job(job())


def test_a_missing_field_is_reported_with_its_description():
    data = job()
    del data["spec"]["training"]["steps"]

    (problem,) = problems_of(data)
    assert problem.startswith("spec.training.steps: is missing. Add it: Updates of the policy. With 0,")


def test_job_errors_can_be_pickled():
    with pytest.raises(JobError) as caught:
        parse_job(job(agent__maxTurns=0))

    assert pickle.loads(pickle.dumps(caught.value)).problems == caught.value.problems


def test_further_checks_of_a_parsed_job_raise_all_of_their_problems():
    def steps(values: Values) -> Iterator[Problem]:
        yield Problem("spec.training.steps", values["spec.training.steps"], "is too many", "Take fewer.")

    parsed = parse_job(JOB)

    check_job(parsed, [lambda values: ()])
    with pytest.raises(JobError) as caught:
        check_job(parsed, [steps, steps])
    assert [problem.value for problem in caught.value.problems] == [parsed.spec.training.steps] * 2
