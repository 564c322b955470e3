"""The job whose agent and environment are evaluated; it takes no step."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from turnmill.core.errors import SettingsError
from turnmill.environments import registry as environments
from turnmill.evaluation.players import player_class
from turnmill.jobs import AgentTrainingJob, JobError, parse_job
from turnmill.jobs.job import API_VERSION, KIND
from turnmill.jobs.load import model_folders
from turnmill.jobs.overrides import apply_overrides
from turnmill.jobs.problems import Problem
from turnmill.jobs.values import Values
from turnmill.jobs.yaml_file import parse_yaml
from turnmill.tasks.registry import source_names
from turnmill.training.agent_kinds import agent_kind, agent_kind_class

DEFAULT_EPISODES = 128
_MAX_NAME = 40


def evaluation_job(
    model: str,
    *,
    job_file: Path | None,
    environment: str | None,
    overrides: Sequence[str],
    episodes: int | None,
    seed: int | None,
    temperature: float,
    is_local: bool,
    takes_tokens: bool,
) -> AgentTrainingJob:
    """Return the job of an evaluation: that of a file, or one with an environment's defaults.

    Without a number of episodes or a seed, they are those of a job's defaults, or of the groups of agents of type
    `grl`. Raises SettingsError with all problems.
    """
    data, _, problems = apply_overrides(_base(job_file, environment), overrides)
    spec = data.setdefault("spec", {})
    spec["model"] = {"path": model}
    validation = {"episodes": episodes or DEFAULT_EPISODES, "seed": seed or 0, "temperature": temperature}
    training = dict(spec.get("training") or {})
    spec["training"] = training | {"steps": 0, "validation": validation}
    if problems:
        raise JobError(problems)
    job = parse_job(data, (*((model_folders,) if is_local else ()), _agent_problems))
    if job.spec.reward_model is not None:
        raise SettingsError(
            "spec.rewardModel: an evaluation serves no second model. Evaluate with `turnmill run JOB.yaml --evaluate`, "
            "or leave it out and give the address of a judge as environment.options.judge.url."
        )
    player = player_class(job)
    job = player.with_episodes(job, episodes=episodes, seed=seed)
    player.require_playable(job, takes_tokens=takes_tokens)
    # Raises SettingsError for files that are missing.
    agent_kind(job.spec.agent).verl_settings(job)
    return job


def _base(job_file: Path | None, environment: str | None) -> dict[str, object]:
    if (job_file is None) == (environment is None):
        raise SettingsError(
            "An evaluation needs an environment: give its name with --environment, or a job file with --job, whose "
            "agent and environment are taken, and not both."
        )
    if job_file is not None:
        try:
            value = parse_yaml(job_file.read_text(encoding="utf-8")).value
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"--job {job_file} cannot be read ({error}). Give a job file.") from error
        if not isinstance(value, Mapping):
            raise SettingsError(f"--job {job_file} is no job file. Start it with `kind: {KIND}`.")
        return dict(value)
    assert environment is not None
    has_tasks = environment in source_names()
    if not has_tasks and ":" not in environment:
        environments.find(environment)
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": _name(environment)},
        "spec": {
            "agent": {"type": "tool" if has_tasks else "verlog"},
            "environment": {"name": environment},
            "algorithm": {"type": "grpo"},
            "training": {"tasksPerStep": 1},
        },
    }


def _name(environment: str) -> str:
    """Return a name for runs, of the characters that names of jobs may have."""
    words = re.sub(r"[^a-z0-9]+", "-", environment.lower())
    return f"evaluate-{words}"[:_MAX_NAME].strip("-")


def _agent_problems(values: Values) -> Iterator[Problem]:
    yield from agent_kind_class(values["spec.agent.type"]).problems(values)
