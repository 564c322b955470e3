"""Watches AgentTrainingJobs and keeps the cluster in step with them."""
