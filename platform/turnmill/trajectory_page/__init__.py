"""The page on which trajectories are looked at: `turnmill view`."""
