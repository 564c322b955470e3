"""AgentTrainingJob and every validated setting."""

from turnmill.jobs.job import API_VERSION, KIND, AgentTrainingJob

__all__ = ["API_VERSION", "KIND", "AgentTrainingJob"]
