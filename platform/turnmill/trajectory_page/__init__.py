"""Web page that shows trajectories: `turnmill view`."""
