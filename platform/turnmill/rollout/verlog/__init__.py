"""Agents of the kind `verlog`: environments played turn by turn, one row per turn."""
