"""Agent loop for GRL's agents: groups of episodes that share a seed, played synchronously or asynchronously."""
