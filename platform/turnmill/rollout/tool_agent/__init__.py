"""Agent loop over tools: tools over HTTP, one context per trajectory, training on whole trajectories."""
