"""Agent loops of kind `verlog`: environments played turn by turn, with one row per turn."""
