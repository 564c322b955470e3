"""Learning from GRL's agents: scores, filters, and the trainer by the name that GRL gives it."""
