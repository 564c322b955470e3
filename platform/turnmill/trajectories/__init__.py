"""The trajectory store: what tools remember and what calls did, outside every process that may die."""
