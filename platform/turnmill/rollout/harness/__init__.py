"""Agents of type `harness`: a program per trajectory, which takes the policy for a model server."""
