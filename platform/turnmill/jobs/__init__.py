"""The AgentTrainingJob resource: models of all settings, their validation, and files generated from them."""

from turnmill.jobs.job import API_VERSION, KIND, AgentTrainingJob
from turnmill.jobs.load import dump_job, job_from_json, load_job
from turnmill.jobs.problems import JobError, Problem
from turnmill.jobs.validation import check_job, parse_job

__all__ = [
    "API_VERSION",
    "KIND",
    "AgentTrainingJob",
    "JobError",
    "Problem",
    "check_job",
    "dump_job",
    "job_from_json",
    "load_job",
    "parse_job",
]
