"""Processes in which environments run, and the rules of an episode that apply to every environment."""
