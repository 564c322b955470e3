"""The trajectory store: tool state, results of calls and journals of trajectories, in Redis."""
