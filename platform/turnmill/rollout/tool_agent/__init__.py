"""The agent loop over tools: one context per trajectory, tools over HTTP, whole trajectories to learn from."""
