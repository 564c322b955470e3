"""verl settings of the algorithm and the agent kind."""

from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.verl_settings import VerlSettings
from turnmill.training.agent_kinds import agent_kind
from turnmill.training.algorithms import algorithm_of


def learning_settings(job: AgentTrainingJob) -> VerlSettings:
    """Return the settings of rows, groups, estimator and critic, by verl's dotted names."""
    return agent_kind(job.spec.agent).verl_settings(job) | algorithm_of(job.spec.algorithm).verl_settings(job)


def sampler_settings(job: AgentTrainingJob) -> VerlSettings:
    """Return the settings of the replay buffer; empty if verl's own is used."""
    sampler = algorithm_of(job.spec.algorithm).sampler(is_async=job.spec.training.mode != "sync")
    if sampler is None:
        return {}
    name, (module, _, class_name) = "trainer.v1.sampler", sampler.path.partition(":")
    arguments = {f"{name}.sampler_kwargs": dict(sampler.arguments)} if sampler.arguments else {}
    return arguments | {f"{name}.custom_sampler.path": f"pkg://{module}", f"{name}.custom_sampler.name": class_name}
