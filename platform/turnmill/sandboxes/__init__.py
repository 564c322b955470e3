"""Execution of untrusted code in confined, limited processes, of which nothing remains after a task."""
