"""Training of GRL's agents: configuration, scores, group filter and trainer."""
