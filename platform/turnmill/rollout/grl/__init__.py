"""Rollout of GRL's agents: groups that share a seed, in turns that wait for each other or do not."""
