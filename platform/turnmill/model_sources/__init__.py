"""Models that a team has on its storage: where they come from, and that they are whole."""
